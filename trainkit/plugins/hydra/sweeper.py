"""Sweeper that runs the jobs of a multirun as the trials of a Tuner."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import filter_overrides
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.hydra.jobs import INSTALLED, JobRunner, begin
from trainkit.plugins.hydra.launcher import JobLauncher
from trainkit.plugins.hydra.objective import Objective, read_objective
from trainkit.plugins.hydra.space import SweepSpace, read_space
from trainkit.tune.store.ownership import Ownership
from trainkit.tune.trial.context import current_session

if TYPE_CHECKING:
    from trainkit.tune.core.trial import Trial

log = logging.getLogger(__name__)

_LOCK = "multirun.lock"

_CHANGEABLE = (
    "params", "num_samples", "n_trials", "max_concurrent", "n_jobs", "max_failure_rate", "tune_config",
    "stop", "verbose",
)  # fmt: skip
"""Settings that may change between two runs of a sweep, and `params`, which is compared by itself."""


@dataclass
class SweeperSettings:
    """Settings below `hydra.sweeper`.

    Attributes:
        params: the space, from override keys to values in Hydra's grammar, such as "interval(0, 1)".
        search_alg: name of a searcher, or "grid" for all combinations of the listed values.
        search_settings: arguments of the searcher.
        scheduler: name of a scheduler that stops jobs early; None: no job is stopped early.
        scheduler_settings: arguments of the scheduler.
        num_samples: number of jobs; None: 20, or one repetition of a grid.
        max_concurrent: maximum number of jobs that run at once; None: as many as the resources allow.
        metric: name of the objective, or a list of names; None: the objective is the return value.
        mode: "min" or "max", or a list; None: "min".
        seed: seed of the search; None: a random seed.
        max_failure_rate: part of the jobs that may fail before the sweep ends with an error.
        tune_config: further arguments of `tune.TuneConfig`, such as `time_budget_s` and `constraints`.
        stop: stop rule of each job, such as {training_iteration: 10}.
        verbose: 0: no progress; 1: progress; 2 and 3: more output.
        direction, n_trials, n_jobs, sampler, storage, study_name, custom_search_space: names that Hydra's
            sweeper for Optuna has.
    """

    _target_: str = f"{INSTALLED}.TrainkitSweeper"
    defaults: list[Any] = field(default_factory=lambda: ["_self_", {"sampler": None}])
    params: dict[str, Any] = field(default_factory=dict)
    search_alg: Any = None
    search_settings: dict[str, Any] = field(default_factory=dict)
    scheduler: str | None = None
    scheduler_settings: dict[str, Any] = field(default_factory=dict)
    num_samples: int | None = None
    max_concurrent: int | None = None
    metric: Any = None
    mode: Any = None
    seed: int | None = None
    max_failure_rate: float = 0.0
    tune_config: dict[str, Any] = field(default_factory=dict)
    stop: Any = None
    verbose: int = 1
    direction: Any = None
    n_trials: int | None = None
    n_jobs: int | None = None
    sampler: Any = None
    storage: Any = None
    study_name: str | None = None
    custom_search_space: str | None = None


_SAMPLERS = {
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
    "grid": "GridSampler",
    "nsgaii": "NSGAIISampler",
    "qmc": "QMCSampler",
    "random": "RandomSampler",
    "tpe": "TPESampler",
}
"""Class in Optuna of each `hydra/sweeper/sampler` that Hydra's sweeper for Optuna has."""


def _register() -> None:
    store = ConfigStore.instance()
    store.store("trainkit", SweeperSettings, "hydra/sweeper", provider="trainkit")
    if "sampler" in store.repo["hydra"]["sweeper"]:
        return  # Hydra's sweeper for Optuna is installed, too
    for name, sampler in _SAMPLERS.items():
        node = {"_target_": f"optuna.samplers.{sampler}", "_partial_": name == "grid", "seed": None}
        store.store(name, node, "hydra/sweeper/sampler", provider="trainkit")


_register()


class TuneSweeper(Sweeper):
    """Sweeper with trainkit's searchers and schedulers; the same command resumes an interrupted sweep.

    Args:
        settings: see `SweeperSettings`.

    Raises:
        ConfigError: a setting is not supported, or contradicts another setting.
    """

    hydra_context: HydraContext
    config: DictConfig

    def __init__(self, **settings: Any) -> None:
        if settings.get("custom_search_space") is not None:
            raise ConfigError(
                "hydra.sweeper.custom_search_space is not supported by hydra/sweeper=trainkit: "
                "write the space as overrides, or use trainkit.tune.Tuner with tune.when"
            )
        self.settings = SweeperSettings(**{name: _plain(value) for name, value in settings.items()})
        self.objective = read_objective(self.settings.metric, self.settings.mode, self.settings.direction)
        # Hydra leaves the sampler of a grid without its space.
        self.is_grid = self.settings.search_alg == "grid" or isinstance(self.settings.sampler, partial)
        rate = self.settings.max_failure_rate
        if not 0 <= rate <= 1:
            raise ConfigError(f"hydra.sweeper.max_failure_rate={rate}: give a number from 0 to 1")

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config
        launcher = Plugins.instance().instantiate_launcher(hydra_context, task_function, config)
        name = config.hydra.runtime.choices["hydra/launcher"]
        if not isinstance(launcher, JobLauncher) and name != "basic":
            raise ConfigError(
                f"hydra/launcher={name} is not supported with hydra/sweeper=trainkit, which runs the jobs "
                "itself: use hydra/launcher=trainkit, or hydra/sweeper=basic"
            )
        self.jobs = launcher if isinstance(launcher, JobLauncher) else JobLauncher(1, 0, None, None)

    def sweep(self, arguments: list[str]) -> None:
        """Run or resume the sweep.

        Raises:
            Exception: more jobs failed than `max_failure_rate` allows; the error of the first failed job.
        """
        folder = begin(self.config).absolute()
        loader = self.hydra_context.config_loader
        space = read_space(self.settings.params, arguments, loader, grid=self.is_grid)
        self.validate_batch_is_legal(space.checks(loader))
        with contextlib.closing(Ownership(folder, _LOCK)):
            resumes = tune.Tuner.can_restore(folder)
            self._save_command(folder, must_equal=resumes)
            with self.jobs.session():
                results = self._tuner(folder, space, resumes).fit()
            self._conclude(folder, results)

    def _save_command(self, folder: Path, *, must_equal: bool) -> None:
        """Write `multirun.yaml`, or check that the sweep to resume has the same space and search.

        Raises:
            ConfigError: the spaces or the searches differ.
        """
        path = folder / "multirun.yaml"
        if must_equal and path.exists():
            earlier, now = _command_of(OmegaConf.load(path)), _command_of(self.config)
            if earlier != now:
                raise ConfigError(
                    f"hydra.sweep.dir={folder} contains a sweep of {sorted(earlier - now)}, not of "
                    f"{sorted(now - earlier)}: give the same overrides to resume the sweep, or another "
                    "hydra.sweep.dir to begin a new sweep"
                )
        OmegaConf.save(self.config, path)

    def _tuner(self, folder: Path, space: SweepSpace, resumes: bool) -> tune.Tuner:
        trainable = tune.with_resources(
            self._trainable(space), {"cpu": self.jobs.cpus, "gpu": self.jobs.gpus}
        )
        tune_config, run_config = self._tune_config(space), self._run_config(folder)
        if not resumes:
            return tune.Tuner(
                trainable, param_space=space.params, tune_config=tune_config, run_config=run_config
            )
        log.info(f"trainkit resumes the sweep in {folder}")
        return tune.Tuner.restore(
            folder, trainable, restart_errored=True, tune_config=tune_config, run_config=run_config
        )

    def _trainable(self, space: SweepSpace) -> Callable[[dict[str, Any]], Any]:
        runner = JobRunner.of(self.hydra_context, self.config, self.task_function)
        objective = self.objective

        def job(config: dict[str, Any]) -> dict[str, Any] | None:
            return _run_trial(runner, objective, space, config)

        job.__name__ = job.__qualname__ = str(self.config.hydra.job.name)
        return job

    def _tune_config(self, space: SweepSpace) -> tune.TuneConfig:
        settings = self.settings
        return tune.TuneConfig(
            metric=self.objective.metric,
            mode=cast("Any", self.objective.mode),
            search_alg=self._searcher(),
            scheduler=tune.create_scheduler(settings.scheduler or "fifo", **settings.scheduler_settings),
            num_samples=self._count(space),
            max_concurrent_trials=self._either("max_concurrent", "n_jobs") or self.jobs.n_jobs,
            seed=settings.seed,
            trial_dirname_creator=_folder_of,
            **settings.tune_config,
        )

    def _count(self, space: SweepSpace) -> int:
        if not self.is_grid:
            given: int | None = self._either("num_samples", "n_trials")
            return given if given is not None else 20 if space.params else 1
        if self.settings.n_trials is not None:
            log.info("a grid runs all combinations: hydra.sweeper.n_trials has no effect")
        return self.settings.num_samples or 1

    def _searcher(self) -> Any:
        name, storage = self.settings.search_alg, self.settings.storage
        sampler = None if self.is_grid else self.settings.sampler
        if sampler is not None or storage is not None:
            if self.is_grid or name not in (None, "optuna"):
                raise ConfigError(
                    "hydra.sweeper.sampler and storage belong to Optuna's search: remove them, or search_alg"
                )
            own = {"sampler": sampler, "storage": storage, "study_name": self.settings.study_name}
            return tune.create_searcher("optuna", **own, **self.settings.search_settings)
        if name is None and not self.settings.search_settings:
            return None
        return tune.create_searcher(
            "random" if self.is_grid else name or "auto", **self.settings.search_settings
        )

    def _either(self, name: str, other: str) -> Any:
        values = [
            each for each in (getattr(self.settings, name), getattr(self.settings, other)) if each is not None
        ]
        if len(values) > 1:
            raise ConfigError(f"hydra.sweeper has both {name} and {other}: give one of them")
        return values[0] if values else None

    def _run_config(self, folder: Path) -> tune.RunConfig:
        return tune.RunConfig(
            name=folder.name,
            storage_path=folder.parent,
            stop=self.settings.stop,
            verbose=self.settings.verbose,
            chdir_to_trial_dir=False,  # hydra.job.chdir decides
            default_loggers=(),
        )

    def _conclude(self, folder: Path, results: tune.ResultGrid) -> None:
        """Write `optimization_results.yaml`, and raise an error if too many jobs failed.

        Raises:
            SystemExit: the sweep was interrupted.
        """
        found = self.objective.summary(results)
        if found is not None:
            OmegaConf.save(OmegaConf.create(found), folder / "optimization_results.yaml")
            log.info(f"Results of the sweep: {found}")
        if results.num_unfinished:
            log.warning(
                f"the sweep was interrupted with {results.num_unfinished} unfinished jobs: give the same "
                f"command with hydra.sweep.dir={folder} to resume it"
            )
            sys.exit(130)
        if results.num_errors > self.settings.max_failure_rate * len(results):
            log.error(
                f"{results.num_errors} of {len(results)} jobs failed, the first with {results.errors[0]}"
            )
            raise results.errors[0]


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _command_of(config: Any) -> set[str]:
    """Return the overrides, the space and the search of a sweep's configuration."""
    settings = cast("dict[str, Any]", OmegaConf.to_container(config.hydra.sweeper, resolve=False))
    compared = {f"params.{name}": value for name, value in (settings.get("params") or {}).items()}
    compared |= {name: settings[name] for name in settings if name not in _CHANGEABLE}
    own = {f"hydra.sweeper.{name}={value}" for name, value in compared.items() if value not in (None, {})}
    return own.union(filter_overrides(list(config.hydra.overrides.task)))


def _number_of(trial_id: str) -> int:
    return int(trial_id.rpartition("_")[2])


def _folder_of(trial: Trial) -> str:
    return str(_number_of(trial.trial_id))


def _run_trial(
    runner: JobRunner, objective: Objective, space: SweepSpace, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    number = _number_of(tune.get_context().get_trial_id())
    returned = runner(number, space.overrides(config)).return_value
    return objective.report_of(returned, has_reported=current_session("report").meter.iteration > 0)
