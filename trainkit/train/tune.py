"""Trials of `tune.Tuner` that train an operator with a `TorchTrainer`."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from trainkit.errors import ConfigError
from trainkit.train.checkpoint.state import (
    Hyperparameters,
    differ,
    hyperparameters_of,
    override_hyperparameters,
    read_hyperparameters,
    write_hyperparameters,
)
from trainkit.train.keys import BATCH_COUNT, EPOCH, NUM_SAMPLES, SHOULD_STOP
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import TrainerOptions
from trainkit.train.workers.worker_group import worker_labels
from trainkit.tune.core.metrics import merge_dicts, plain_metrics
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.trial.environment import divert
from trainkit.tune.trial.trainable import Trainable

_TRAINED = "trained.json"
"""File with the result of training in a checkpoint that was saved in the step's validation."""

TuneStep = Callable[[Any, dict[str, Any]], Mapping[str, Any]]
"""Function of (trainer, {"iteration": n}) that runs one step of a trial and returns its result."""


@dataclass(frozen=True)
class TrialPlan:
    """Settings that are equal for all trials of a search.

    Attributes:
        trainer_cls: `TorchTrainer` or a subclass.
        options: arguments of each trial's trainer.
        step: function that replaces a trial's step, which is an epoch of training and a validation; or None.
    """

    trainer_cls: type[Any]
    options: TrainerOptions
    step: TuneStep | None


def diverted(paths: Sequence[str], pid: int, hook: Callable[[], Any] | None) -> None:
    """Redirect a worker's output to the trial's files, for `log_to_file`; called first in each worker.

    Args:
        paths: paths of the trial's files for stdout and stderr.
        pid: id of the trial's own process, whose output is already redirected.
        hook: the user's `initialization_hook`, which is called after the redirection.
    """
    if os.getpid() != pid:
        divert(paths)
    if hook is not None:
        hook()


class TrainerTrainable(Trainable):
    """Trial that trains an operator; `TorchTrainer.as_trainable` makes subclasses of this class."""

    plan: ClassVar[TrialPlan]

    _trainer: Any
    _set_up: Sequence[Hyperparameters | None]

    @property
    def trainer(self) -> Any:
        """The trial's trainer."""
        return self._trainer

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """Return the bundles of a trial: an empty bundle for the trial's own process, which only waits, and a
        bundle for each worker.

        With `use_local` the trial's process is worker 0 and uses the first worker's bundle.
        """
        options = cls.plan.options
        own: list[dict[str, float]] = [] if options.use_local else [{}]
        return PlacementGroupFactory([*own, *[options.bundle] * options.num_workers])

    def setup(self, config: dict[str, Any]) -> None:
        options = self.plan.options
        arguments = {**options.arguments(), "config": merge_dicts(options.config, config)}
        files = self._trial_spec.environment.log_files
        if files is not None:
            paths = tuple(os.path.join(self._trial_spec.trial_dir, name) for name in files)
            arguments["initialization_hook"] = partial(
                diverted, paths, os.getpid(), options.initialization_hook
            )
        with worker_labels(self._trial_spec.trial_id or self._trial_spec.trial_name):
            self._trainer = self.plan.trainer_cls(**arguments)
        self._set_up = self._trainer.apply_all_operators(initial_hyperparameters)

    def step(self) -> dict[str, Any]:
        if self.plan.step is not None:
            return dict(self.plan.step(self._trainer, {"iteration": self.training_iteration}))
        result: dict[str, Any] = self._part_of_step or self._trainer.train()
        if result.get(SHOULD_STOP):
            result["done"] = True
        # Lightning has already validated at the end of the epoch, for its callbacks and schedulers.
        validated = getattr(self.plan.options.training_operator_cls, "validates_in_training", False)
        if validated or not self._trainer.has_validation:
            return result
        # The generators of a worker in this process move on in validation, also if it is interrupted.
        self._part_of_step = None if self.plan.options.use_local else result
        validation = self._trainer.validate()
        self._part_of_step = None
        return both(result, validation)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        self._trainer.save(checkpoint_dir)
        if self._part_of_step is not None:
            Path(checkpoint_dir, _TRAINED).write_text(json.dumps(plain_metrics(self._part_of_step)))
        write_hyperparameters(checkpoint_dir, self._known_set_up())

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self._trainer.load(checkpoint_dir)
        trained = Path(checkpoint_dir, _TRAINED)
        self._part_of_step = json.loads(trained.read_text()) if trained.exists() else None
        then, now = read_hyperparameters(checkpoint_dir), self._known_set_up()
        if differ(then, now):
            self._trainer.apply_all_operators(partial(override_operator, then=then, now=now))

    def _known_set_up(self) -> Sequence[Hyperparameters]:
        """Return the initial hyperparameters, by rank; [] until Lightning has made optimizers."""
        if None in self._set_up:
            self._set_up = self._trainer.apply_all_operators(initial_hyperparameters)
        return [each for each in self._set_up if each is not None]

    def cleanup(self) -> None:
        self._trainer.shutdown()


def override_operator(
    operator: TrainingOperator, *, then: Sequence[Hyperparameters], now: Sequence[Hyperparameters]
) -> None:
    """Apply the current configuration's hyperparameters to an operator that has loaded a checkpoint.

    Args:
        operator: operator of the worker.
        then: hyperparameters that `setup` derived from the checkpoint's configuration, by rank.
        now: hyperparameters that `setup` derived from the current configuration, by rank.
    """
    before = then[min(operator.world_rank, len(then) - 1)]
    override_hyperparameters(*_steering(operator), then=before, now=now[operator.world_rank])


def initial_hyperparameters(operator: TrainingOperator) -> Hyperparameters | None:
    """Return the hyperparameters set by `setup`; call it before anything is trained or loaded.

    For a Lightning module, return the hyperparameters set by `configure_optimizers`, or None if this method
    has not run yet. A Lightning module's hyperparameters may be requested at any time.
    """
    if hasattr(operator, "lightning_trainer"):
        held: Hyperparameters | None = getattr(operator, "lightning_set_up", None)
        return held
    return hyperparameters_of(*_steering(operator))


def _steering(operator: TrainingOperator) -> tuple[Sequence[torch.optim.Optimizer], Sequence[Any]]:
    """Return the optimizers and schedulers in use: the registered objects, or Lightning's own."""
    trainer = getattr(operator, "lightning_trainer", None)
    if trainer is None:
        return operator._registered.optimizers, operator._registered.schedulers
    return trainer.optimizers, [each.scheduler for each in trainer.lr_scheduler_configs]


def make_trainable(plan: TrialPlan) -> type[TrainerTrainable]:
    """Return the class of trials that `TorchTrainer.as_trainable` returns."""
    if plan.step is not None:
        try:
            inspect.signature(plan.step).bind("trainer", {})
        except TypeError as error:
            raise ConfigError(
                f"as_trainable(override_tune_step={plan.step!r}): {error}; pass a function of (trainer, info)"
            ) from error
    if plan.options.checkpoint_dir is not None:
        raise ConfigError(
            "a Tuner does not support checkpoint_dir, which all trials would share: leave it out, and pass "
            "RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=1))"
        )
    operator = plan.options.training_operator_cls
    return type(
        f"{operator.__name__}Trainable", (TrainerTrainable,), {"plan": plan, "__doc__": operator.__doc__}
    )


def both(training: Mapping[str, Any], validation: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the metrics of training and validation.

    For equal names, the validation's value is used, except for the counts of training.
    """
    counts = {name: training[name] for name in (NUM_SAMPLES, BATCH_COUNT, EPOCH) if name in training}
    return {**training, **validation, **counts}
