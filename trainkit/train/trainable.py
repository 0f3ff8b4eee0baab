"""A trainer as a trial of `tune.Tuner`; the one place where training knows of tuning."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.train.gang import named_after
from trainkit.train.keys import BATCH_COUNT, EPOCH, NUM_SAMPLES, SHOULD_STOP
from trainkit.train.options import TrainerOptions
from trainkit.train.overruling import Overrule, SetUp, as_set_up, differ, read_set_up, write_set_up
from trainkit.tune.placement import PlacementGroupFactory
from trainkit.tune.running.house import divert
from trainkit.tune.trainable import Trainable
from trainkit.tune.utils.util import merge_dicts

if TYPE_CHECKING:
    from trainkit.train.trainer import TorchTrainer

TuneStep = Callable[[Any, dict[str, Any]], Mapping[str, Any]]
"""(trainer, {"iteration": n}) to a result."""


@dataclass(frozen=True)
class TrialPlan:
    """What the trials of one trainable share.

    Attributes:
        trainer_cls: the trainer that each trial is.
        options: its arguments.
        step: instead of an epoch of training and a validation; None for these.
    """

    trainer_cls: type[TorchTrainer]
    options: TrainerOptions
    step: TuneStep | None


@dataclass(frozen=True)
class Diverted:
    """The first call in a worker: what it prints goes into the trial's files, as `log_to_file` asks.

    Attributes:
        paths: of the files for stdout and stderr.
        pid: the trial's own process, which prints there already.
        hook: the user's, called next.
    """

    paths: Sequence[str]
    pid: int
    hook: Callable[[], Any] | None

    def __call__(self) -> None:
        if os.getpid() != self.pid:
            divert(self.paths)
        if self.hook is not None:
            self.hook()


class TrainerTrainable(Trainable):
    """A trial that is a trainer; `TorchTrainer.as_trainable` makes subclasses of it."""

    plan: ClassVar[TrialPlan]

    _trainer: TorchTrainer
    _set_up: Sequence[SetUp | None]

    @property
    def trainer(self) -> TorchTrainer:
        """The trial's trainer."""
        return self._trainer

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return a bundle for each worker, after an empty one for the trial's own process, which waits.

        With `use_local` the trial's process is worker 0, and its bundle the first.
        """
        options = cls.plan.options
        own: list[dict[str, float]] = [] if options.use_local else [{}]
        return PlacementGroupFactory([*own, *[options.bundle] * options.num_workers])

    def setup(self, config: dict[str, Any]) -> None:
        options = self.plan.options
        arguments = {**options.arguments(), "config": merge_dicts(options.config, config)}
        files = self._trial.house.log_files
        if files is not None:
            paths = tuple(os.path.join(self._trial.trial_dir, name) for name in files)
            arguments["initialization_hook"] = Diverted(paths, os.getpid(), options.initialization_hook)
        with named_after(self._trial.trial_id or self._trial.trial_name):
            self._trainer = self.plan.trainer_cls(**arguments)
        self._set_up = self._trainer.apply_all_operators(as_set_up)

    def step(self) -> dict[str, Any]:
        if self.plan.step is not None:
            return dict(self.plan.step(self._trainer, {"iteration": self.training_iteration}))
        result: dict[str, Any] = self._trainer.train()
        if result.get(SHOULD_STOP):
            result["done"] = True
        # Lightning validates at the end of an epoch, for its callbacks and schedulers to see.
        validated = getattr(self.plan.options.training_operator_cls, "validates_in_training", False)
        if validated or not self._trainer.has_validation:
            return result
        return both(result, self._trainer.validate())

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._trainer.save(checkpoint_dir)
        write_set_up(checkpoint_dir, self._known_set_up())

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self._trainer.load(checkpoint_dir)
        then, now = read_set_up(checkpoint_dir), self._known_set_up()
        if differ(then, now):
            self._trainer.apply_all_operators(Overrule(then, now))

    def _known_set_up(self) -> Sequence[SetUp]:
        """By rank; [] as long as Lightning has made no optimizers."""
        if None in self._set_up:
            self._set_up = self._trainer.apply_all_operators(as_set_up)
        return [each for each in self._set_up if each is not None]

    def cleanup(self) -> None:
        self._trainer.shutdown()


def make_trainable(plan: TrialPlan) -> type[TrainerTrainable]:
    """The class that `TorchTrainer.as_trainable` returns."""
    if plan.step is not None:
        try:
            inspect.signature(plan.step).bind("trainer", {})
        except TypeError as error:
            raise ConfigError(
                f"as_trainable(override_tune_step={plan.step!r}) can't be called ({error}): give a function "
                f"(trainer, info)"
            ) from error
    operator = plan.options.training_operator_cls
    return type(
        f"{operator.__name__}Trainable", (TrainerTrainable,), {"plan": plan, "__doc__": operator.__doc__}
    )


def both(training: Mapping[str, Any], validation: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of both; under a name that both have validation's, but counts are of training."""
    counts = {name: training[name] for name in (NUM_SAMPLES, BATCH_COUNT, EPOCH) if name in training}
    return {**training, **validation, **counts}
