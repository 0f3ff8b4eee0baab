"""`Trainable`: base class for trainables with steps, checkpoints and clean-up as methods."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from trainkit.errors import CheckpointError, ConfigError
from trainkit.tune.core.checkpoint import Checkpoint, commit_directory, given_back, keep_returned
from trainkit.tune.core.checks import call_problem
from trainkit.tune.core.metrics import plain_metrics
from trainkit.tune.core.resources import TrialResources
from trainkit.tune.trial.messages import ReportMeter, TrialSpec

_RENAMED = {"_setup": "setup", "_train": "step", "_save": "save_checkpoint", "_restore": "load_checkpoint"}

COUNTED = ".counted.json"
"""File with the number of steps and the time of a trainable that is saved without a Tuner.

A Tuner stores both in the experiment's file.
"""


class WrittenCheckpoint(str):
    """Path of a checkpoint written by `Trainable.save`.

    Attributes:
        metrics: progress of the trainable: `training_iteration` and `time_total_s`.
    """

    metrics: Mapping[str, Any]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint at this path."""
        return Checkpoint(self)


class Trainable:
    """Base class of trainables that are classes: `setup` runs once, then `step` repeatedly.

    Without a Tuner, use `MyTrainable(config).train()`.

    Args:
        config: the hyperparameters.
        storage: always None; exists for Ray's signature only.
    """

    _trial_spec: TrialSpec
    _part_of_step: dict[str, Any] | None = None
    """Result of a part of the step; if it is not None, a checkpoint lets an interrupted step continue."""
    __parameters: Mapping[str, Any] = {}

    def __init__(self, config: Mapping[str, Any] | None = None, storage: Any = None) -> None:
        self.config: dict[str, Any] = dict(config or {})
        if not hasattr(self, "_trial_spec"):
            self._trial_spec = TrialSpec("", type(self).__name__, os.getcwd(), "", self.config)
        self.__meter = ReportMeter(self._trial_spec)
        self.setup(self.config, **self.__parameters)

    @classmethod
    def _of_trial(cls, trial: TrialSpec, parameters: Mapping[str, Any]) -> Self:
        """Return the object of a trial; `setup` receives the bound `parameters` as keyword arguments."""
        made = cls.__new__(cls)
        made._trial_spec, made.__parameters = trial, parameters
        storage = {"storage": None} if "storage" in inspect.signature(cls).parameters else {}
        if call_problem(cls, 0, ["config", *storage]) is None:
            cls.__init__(made, config=trial.config, **storage)
        else:
            cls.__init__(made, trial.config, **storage)
        return made

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for old, new in _RENAMED.items():
            # If the class also defines the new name, the old name belongs to an unrelated method of the user.
            if old in cls.__dict__ and getattr(cls, new) is getattr(Trainable, new):
                raise ConfigError(f"{cls.__name__}.{old}() is an old name, never called: rename it {new}()")

    # --- to override ------------------------------------------------------------------------------

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare for the first step."""

    def step(self) -> dict[str, Any]:
        """Train for one iteration and return its metrics; {"done": True} among them ends the trial."""
        raise NotImplementedError(f"{type(self).__name__} must define step(), which returns its metrics")

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        """Write the trainable's state as files into the existing folder `checkpoint_dir`.

        Returns:
            None; or a dictionary, which is stored instead of files; or the path of a file in the folder.
        """
        raise NotImplementedError(f"{type(self).__name__} must define save_checkpoint() to be checkpointed")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Load a saved state.

        `checkpoint` is the value that `save_checkpoint` returned, or the folder of the checkpoint.
        """
        raise NotImplementedError(f"{type(self).__name__} must define load_checkpoint() to be resumed")

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become the object of another trial, as after `setup` with `new_config`; return True on success.

        With TuneConfig(reuse_actors=True), this method is called if the class overrides it. Before the call,
        `self.config` is already the new configuration, `iteration` starts again and `logdir` is the new
        trial's folder. If `reset_config` returns False, `cleanup` runs and a new object is created.
        """
        return False

    def cleanup(self) -> None:
        """Release the resources that `setup` acquired; called once, however the trial ends."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """Return the resource request of a trial if `with_resources` is not used; None: 1 CPU."""
        return None

    # --- to use -----------------------------------------------------------------------------------

    @property
    def iteration(self) -> int:
        """Number of finished steps, including steps before a resumption."""
        return self.__meter.iteration

    training_iteration = _iteration = iteration

    @property
    def logdir(self) -> str:
        """Path of the trial's own folder."""
        return self._trial_spec.trial_dir

    @property
    def trial_id(self) -> str:
        """Id of the trial, unique in the experiment."""
        return self._trial_spec.trial_id

    @property
    def trial_name(self) -> str:
        """The trainable's name and the trial's id."""
        return self._trial_spec.trial_name

    @property
    def trial_resources(self) -> TrialResources:
        """Resources of the trial by name."""
        return self._trial_spec.resources

    def get_config(self) -> dict[str, Any]:
        """Return the hyperparameters."""
        return self.config

    def train(self) -> dict[str, Any]:
        """Run one step; return its metrics with automatic keys such as `training_iteration` added.

        Raises:
            MetricError: `step` did not return a dictionary, or a value can't be stored.
        """
        return self.__meter.fill(plain_metrics(self.step()))

    def save(self, checkpoint_dir: str | None = None) -> WrittenCheckpoint:
        """Write a checkpoint under a temporary name, rename it when complete, and return its path.

        Without a Tuner, a hidden file ".counted.json" stores the number of steps, so that `restore` continues
        the count.

        Args:
            checkpoint_dir: folder of the checkpoint; None: a new temporary folder, which the caller must
                delete.

        Raises:
            CheckpointError: writing failed, or `save_checkpoint` returned an unsupported value.
        """
        target = os.path.abspath(checkpoint_dir or tempfile.mkdtemp(prefix="trainkit_checkpoint_"))
        partial = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.partial")
        try:
            shutil.rmtree(partial, ignore_errors=True)
            os.makedirs(partial)
            keep_returned(partial, self.save_checkpoint(partial))
            if not self._trial_spec.trial_id:
                Path(partial, COUNTED).write_text(json.dumps(self.__meter.counted))
            commit_directory(partial, target, durable=self._trial_spec.durable)
        except OSError as error:
            raise CheckpointError(f"no checkpoint could be written to {target}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        saved = WrittenCheckpoint(target)
        saved.metrics = self.__meter.counted
        return saved

    def restore(self, checkpoint: str | os.PathLike[str] | Checkpoint) -> None:
        """Load this checkpoint, or the checkpoint in this folder, and continue from its state."""
        folder = checkpoint.path if isinstance(checkpoint, Checkpoint) else os.fspath(checkpoint)
        written = Path(folder, COUNTED)
        if not self._trial_spec.trial_id and written.exists():
            counted = json.loads(written.read_text())
            iteration, spent_s = counted["training_iteration"], counted["time_total_s"]
            self.__meter = ReportMeter(replace(self._trial_spec, iteration=iteration, time_total_s=spent_s))
        self.load_checkpoint(given_back(folder))

    def _take_over(self, trial: TrialSpec) -> bool:
        """Let another trial take over this object.

        Return False if `reset_config` does not allow the takeover, so that the trial needs a new object.
        """
        before = self._trial_spec, self.__meter, self.config
        accepted = False
        try:
            self._trial_spec, self.__meter, self.config = trial, ReportMeter(trial), dict(trial.config)
            accepted = bool(self.reset_config(self.config))
        finally:
            if not accepted:  # if `reset_config` fails, the clean-up that follows must see the former trial
                self._trial_spec, self.__meter, self.config = before
        return accepted

    def stop(self) -> None:
        """End the trainable by calling `cleanup`."""
        self.cleanup()

    @classmethod
    def _can_save(cls) -> bool:
        """Return True if the class defines `save_checkpoint`."""
        return cls.save_checkpoint is not Trainable.save_checkpoint
