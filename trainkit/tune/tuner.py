"""`Tuner`, the entry point of tuning, which checks its arguments and runs the experiment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from trainkit.errors import ConfigError
from trainkit.tune import experiment as running
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.core.configs import ResumeConfig
from trainkit.tune.core.objectives import require_both
from trainkit.tune.experiment.run import ExperimentRun
from trainkit.tune.experiment.setup import make_space
from trainkit.tune.experiment.trainable import checked_trainable

if TYPE_CHECKING:
    from trainkit.tune.results.result import Result
    from trainkit.tune.results.result_grid import ResultGrid


class Tuner:
    """Experiment that runs a trainable with many configurations and finds the best configuration.

    Args:
        trainable: a function of the configuration that reports metrics by `tune.report`, `yield` or its
            return value; or a `Trainable` class; or such a function or class wrapped by `with_resources` or
            `with_parameters`; or a name registered with `register_trainable`.
        param_space: hyperparameters by name: domains such as `tune.uniform(0, 1)`, `tune.grid_search`,
            constants, nested dictionaries and lists.
        tune_config: settings of the search.
        run_config: settings of storage, stopping and callbacks. None: the defaults, or the RunConfig of a
            trainer that is passed as the trainable.

    Raises:
        ConfigError: an argument is wrong; SpaceError: the search space is wrong.
    """

    _needs_both: ClassVar[bool] = True

    def __init__(
        self,
        trainable: Any = None,
        *,
        param_space: Mapping[str, Any] | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> None:
        # A trainer that is passed as the trainable may have its own RunConfig.
        own = getattr(trainable, "run_config", None)
        run = run_config or (own if isinstance(own, RunConfig) else RunConfig())
        tune = tune_config or TuneConfig()
        for name, value, kind in (("tune_config", tune, TuneConfig), ("run_config", run, RunConfig)):
            if not isinstance(value, kind):
                raise ConfigError(f"{name}={value!r} is not a tune.{kind.__name__}")
        if run.chdir_to_trial_dir is None and tune.chdir_to_trial_dir is not None:
            run = replace(run, chdir_to_trial_dir=tune.chdir_to_trial_dir)
        self._hold(
            ExperimentRun.new(checked_trainable(trainable, run), make_space(param_space, tune), tune, run)
        )
        if self._needs_both:
            require_both(self._experiment.metric, self._experiment.mode)

    def _hold(self, experiment: ExperimentRun) -> None:
        self._experiment = experiment
        self._results: ResultGrid | None = None

    def fit(self) -> ResultGrid:
        """Run the experiment and return its results; after a Ctrl-C, return the results so far.

        Raises:
            InfeasibleError: a trial requests more resources than the machine has.
            SerializationError: the trainable or a value can't be sent to a worker; the message names the part
                that failed.
            ConfigError: the folder already contains an experiment; or the scheduler pauses trials that save
                no checkpoints. The reports so far are kept.
            StoreError: the folder can't be written.
            StorageError: the copy at storage_path can't be written or is incomplete at the end; `get_results`
                still returns the results.
            NodeDiedError: the runtime's node died repeatedly without progress of any trial.
            KeyboardInterrupt: Ctrl-C was pressed twice; the experiment can still be restored.
            SystemExit: SIGTERM was received. The experiment first ends as after Ctrl-C; the error has the
                code 143.
        """
        self._results = self._experiment.fit()
        return self._results

    def get_results(self) -> ResultGrid:
        """Return the results of `fit`; for a restored experiment, return its results so far.

        Raises:
            StoreError: the experiment has no results yet.
        """
        return self._results if self._results is not None else self._experiment.results()

    @classmethod
    def restore(
        cls,
        path: str | os.PathLike[str],
        trainable: Any,
        resume_unfinished: bool = True,
        resume_errored: bool = False,
        restart_errored: bool = False,
        param_space: Mapping[str, Any] | None = None,
        storage_filesystem: Any = None,
        *,
        resume_finished: bool | Sequence[str | Result] = False,
        resume_config: ResumeConfig | None = None,
        tune_config: TuneConfig | None = None,
        run_config: RunConfig | None = None,
    ) -> Tuner:
        """Return a Tuner whose `fit` resumes the experiment in `path`.

        Existing reports are kept. Unfinished trials resume from their last checkpoint, or restart if they
        have no checkpoint. The scheduler and the searcher are restored by a replay of the experiment's
        events.

        Args:
            path: the experiment's folder, or an address that the folder was copied to.
            trainable: the trainable of the first run.
            resume_unfinished: False ends the unfinished trials instead of resuming them.
            resume_errored: True resumes failed trials from their last checkpoint.
            restart_errored: True restarts failed trials from the beginning.
            param_space: required if the search space contains functions or objects. A different space is
                allowed: existing trials keep their configurations, and new trials are sampled from the new
                space.
            storage_filesystem: an fsspec file system for `path`.
            resume_finished: finished trials to resume from their last checkpoints, under the current rules,
                such as RunConfig(stop=...): True for all, or trial ids, or results.
            resume_config: treatment of each kind of trial, in place of the arguments `resume_...` and
                `restart_errored`.
            tune_config: settings to change, such as `num_samples`, and any custom scheduler or searcher of
                the first run; settings left at their defaults stay as stored.
            run_config: settings to change, such as the stop rule; its callbacks replace the former callbacks.

        Raises:
            StoreError: `path` contains no experiment, or the file in `path` is damaged or not an experiment
                file.
            StorageError: the address can't be read.
            ConfigError: an object that the file can't store, such as a custom scheduler, is missing from the
                arguments.
            MetricError: `tune_config` names a metric that is missing from all reports.
        """
        rule = running.ResumeRule.of(
            resume_unfinished, resume_errored, restart_errored, resume_finished, resume_config
        )
        folder, address = running.working_folder(path, storage_filesystem)
        experiment = ExperimentRun.restored(
            folder,
            checked_trainable(trainable, run_config or RunConfig()),
            rule,
            param_space,
            tune_config,
            run_config,
            address,
        )
        tuner = cls.__new__(cls)
        tuner._hold(experiment)
        return tuner

    @classmethod
    def can_restore(cls, path: str | os.PathLike[str], storage_filesystem: Any = None) -> bool:
        """Return True if `path`, a folder or an address, contains a readable experiment.

        Args:
            path: folder or address of the experiment.
            storage_filesystem: an fsspec file system for `path`.

        Raises:
            StorageError: the address can't be reached.
        """
        return running.can_read(path, storage_filesystem)
