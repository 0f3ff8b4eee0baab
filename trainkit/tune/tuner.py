"""`Tuner`: the front door. It checks what it is given and hands over."""

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
from trainkit.tune.experiment.setup import checked_trainable, make_space

if TYPE_CHECKING:
    from trainkit.tune.results.result import Result
    from trainkit.tune.results.result_grid import ResultGrid


class Tuner:
    """Runs a trainable with many configurations, and finds the best.

    Args:
        trainable: a function of the configuration, which reports by `tune.report`, by yielding or by
            returning metrics; or a `Trainable` class; either may be bound by `with_resources` and
            `with_parameters`, or be a name that `register_trainable` was given.
        param_space: hyperparameters by name: domains such as `tune.uniform(0, 1)`, `tune.grid_search`,
            constants, nested dictionaries and lists.
        tune_config: what is searched for, and how.
        run_config: where the experiment is kept, when trials end, who is told; None: as the trainer says that
            is the trainable, or the defaults.

    Raises:
        ConfigError: an argument is wrong; SpaceError: the search space is.
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
        # A trainer may bring settings of its own.
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
        """Run the experiment; return when all trials have ended, or after a Ctrl-C what there is by then.

        Raises:
            InfeasibleError: a trial asks for more than the machine has.
            SerializationError: the trainable or a value can't be sent to a worker; the part is named.
            ConfigError: the folder holds an experiment already; or the scheduler pauses trials, and they save
                no checkpoints: what was reported is kept.
            StoreError: the folder can't be written.
            StorageError: the copy at storage_path can't be written, or is not complete in the end; the
                results are there all the same, by `get_results`.
            NodeDiedError: the runtime's node died again and again, and no trial got any further.
            KeyboardInterrupt: Ctrl-C was pressed twice; the experiment can be restored all the same.
            SystemExit: with code 143, by SIGTERM, once the experiment has ended as by Ctrl-C.
        """
        self._results = self._experiment.fit()
        return self._results

    def get_results(self) -> ResultGrid:
        """Return the results of `fit`, or of a restored experiment as far as it has come.

        Raises:
            StoreError: there are none yet.
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
        """Return a Tuner whose `fit` goes on with the experiment in `path`.

        Results that were reported stay. Trials that had not ended go on from their last checkpoint, or
        start again without one. Scheduler and searcher are rebuilt by replaying what they were told.

        Args:
            path: of the experiment's folder, or an address that it was copied to.
            trainable: as at the start.
            resume_unfinished: False ends them instead.
            resume_errored: go on with trials that failed, from their last checkpoint.
            restart_errored: start trials that failed from the beginning.
            param_space: needed if it holds functions or objects; or another one: trials of before stay as
                they are, and further ones are drawn from it.
            storage_filesystem: an fsspec file system that `path` is a path of.
            resume_finished: True, or trial ids, or results: finished trials that go on from their last
                checkpoints, under the rules that hold now, such as RunConfig(stop=...).
            resume_config: what is done with each kind of trial, in place of the arguments `resume_...` and
                `restart_errored`.
            tune_config: settings to change, such as `num_samples`, and a scheduler or searcher of your own
                to give again; what is left at its default stays as stored.
            run_config: the same, for a stop rule and callbacks; callbacks are those given here.

        Raises:
            StoreError: `path` holds no experiment, or its file is damaged or foreign.
            StorageError: the address can't be read.
            ConfigError: a part that the file can't hold was not given.
            MetricError: `tune_config` names a metric that none of the reports has.
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
        """True if `path`, a folder or an address, holds an experiment that can be read.

        Args:
            path: of the experiment.
            storage_filesystem: an fsspec file system that `path` is a path of.

        Raises:
            StorageError: the address can't be reached.
        """
        return running.can_read(path, storage_filesystem)
