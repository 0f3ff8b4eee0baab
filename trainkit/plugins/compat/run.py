"""`tune.run`, `tune.run_experiments` and `tune.Experiment`: `Tuner` with the arguments of Ray's functions."""

from __future__ import annotations

import copy
import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from trainkit import settings
from trainkit.errors import ConfigError, TrialError, did_you_mean
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.config import Mode, RunConfig, TuneConfig
from trainkit.tune.core.configs import CheckpointConfig, FailureConfig
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import first_line
from trainkit.tune.core.resources import Bound, with_resources
from trainkit.tune.core.stoppers import StopRule
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.analysis import ExperimentAnalysis
from trainkit.tune.results.result import Result
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.search.base import Searcher
from trainkit.tune.tuner import Tuner

Front = TypeVar("Front", bound=Callable[..., Any])


class _RunTuner(Tuner):
    """Tuner that accepts a metric without a mode, as Ray's `run` does.

    Only `get_best_result` needs both metric and mode.
    """

    _needs_both = False


class Experiment:
    """Arguments for one call of `tune.run`, as in `tune.run(Experiment("name", trainable, config=...))`.

    Args:
        name: name of the experiment.
        run: trainable, or the name under which it is registered.
        spec: further arguments of `tune.run`.
    """

    def __init__(self, name: str, run: Any, **spec: Any) -> None:
        self.name = name
        self.run_identifier = run
        self.spec = spec

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Create an experiment: `spec["run"]` is the trainable, the other items are arguments of `tune.run`.

        Raises:
            ConfigError: `spec` has no item "run".
        """
        arguments = dict(spec)
        if "run" not in arguments:
            raise ConfigError(f"the experiment {name!r} has no 'run': set it to the trainable or its name")
        # Specifications of RLlib have an item `env`, which belongs to the configuration.
        if "env" in arguments:
            arguments["config"] = {**arguments.get("config", {}), "env": arguments.pop("env")}
        return cls(name, arguments.pop("run"), **arguments)


def _taking_experiments(function: Front) -> Front:
    """Make `run` accept an `Experiment`, whose arguments are merged with the other arguments of the call."""

    @functools.wraps(function)
    def run(run_or_experiment: Any, **given: Any) -> Any:
        if isinstance(run_or_experiment, (list, tuple)) and len(run_or_experiment) == 1:
            run_or_experiment = run_or_experiment[0]
        if isinstance(run_or_experiment, (list, tuple)):
            return _run_each(run, run_or_experiment, **given)
        if isinstance(run_or_experiment, Mapping):
            raise ConfigError(
                "tune.run() supports no dictionaries: pass Experiment objects, or call tune.run_experiments()"
            )
        if isinstance(run_or_experiment, Experiment):
            experiment = run_or_experiment
            given = {"name": experiment.name, **given, **experiment.spec}
            run_or_experiment = experiment.run_identifier
        return function(run_or_experiment, **given)

    return cast("Front", run)


def _run_each(
    run: Callable[..., ExperimentAnalysis],
    experiments: Sequence[Any],
    raise_on_failed_trial: bool = True,
    **given: Any,
) -> ExperimentAnalysis:
    given.pop("name", None)  # Each experiment has its own name, so a common name is ignored.
    if not experiments:
        raise ConfigError("tune.run([]) has no experiments: pass at least one")
    analyses = [run(each, raise_on_failed_trial=False, **given) for each in experiments]
    trials = [trial for analysis in analyses for trial in analysis.trials]
    folders = [analysis.experiment_path for analysis in analyses]
    if raise_on_failed_trial and any(trial.error for trial in trials):
        raise _failed(trials, ", ".join(folders))
    metric, mode = analyses[-1].default_metric, analyses[-1].default_mode
    return ExperimentAnalysis(folders[-1], trials=trials, default_metric=metric, default_mode=mode)


@_taking_experiments
def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | Sequence[str] | None = None,
    mode: Mode | Sequence[Mode] | None = None,
    stop: StopRule | None = None,
    time_budget_s: float | timedelta | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | os.PathLike[str] | None = None,
    storage_filesystem: Any = None,
    search_alg: Searcher | str | None = None,
    scheduler: TrialScheduler | str | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    verbose: int | None = None,
    progress_reporter: Any = None,
    log_to_file: bool | str | tuple[str, str] = False,
    trial_name_creator: Callable[[Trial], str] | None = None,
    trial_dirname_creator: Callable[[Trial], str] | None = None,
    sync_config: Any = None,
    max_failures: int = 0,
    fail_fast: bool | Literal["raise"] = False,
    restore: str | os.PathLike[str] | None = None,
    resume: bool | str | None = None,
    resume_config: Any = None,
    reuse_actors: bool = False,
    raise_on_failed_trial: bool = True,
    callbacks: Sequence[Callback] | None = None,
    max_concurrent_trials: int | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    chdir_to_trial_dir: bool | None = None,
    local_dir: str | os.PathLike[str] | None = None,
    **obsolete: Any,
) -> ExperimentAnalysis:
    """Run an experiment to its end, as `Tuner(...).fit()` does, with the arguments of `ray.tune.run`.

    Args:
        run_or_experiment: trainable, name of a registered trainable, or `Experiment`. If it is a list, the
            items run one after another, and one analysis of all their trials is returned.
        name: name of the experiment's folder.
        metric: name of the reported value to optimize, or a list of several names.
        mode: "min" or "max"; for several metrics, a list with one mode for each metric.
        stop: see `RunConfig`.
        time_budget_s: see `TuneConfig`.
        config: search space: hyperparameters with their domains, and constants.
        resources_per_trial: see `with_resources`.
        num_samples: number of configurations to sample from the search space; a grid search is repeated this
            often.
        storage_path: folder in which experiments are stored; `local_dir` is an older name of this argument.
        storage_filesystem: see `RunConfig`.
        search_alg: search algorithm that suggests configurations, or the name of a search algorithm.
        scheduler: scheduler that decides which trials stop early, or the name of a scheduler.
        checkpoint_config: rules for saving and keeping checkpoints.
        verbose: see `RunConfig`; None means 1.
        progress_reporter: see `RunConfig`.
        log_to_file: see `RunConfig`.
        trial_name_creator: see `TuneConfig`.
        trial_dirname_creator: see `TuneConfig`.
        sync_config: see `RunConfig`.
        max_failures: see `FailureConfig`.
        fail_fast: see `FailureConfig`.
        restore: folder of a checkpoint from which every trial begins.
        resume: True: resume the experiment `name`. "AUTO": resume it if it exists, otherwise begin it. With
            "+ERRORED" or "+RESTART_ERRORED" added, failed trials are included. "ERRORED_ONLY" resumes only
            failed trials.
        resume_config: rules for resuming trials, in more detail than `resume`.
        reuse_actors: see `TuneConfig`.
        raise_on_failed_trial: True: raise an error after all trials have ended if a trial has the status
            ERROR.
        callbacks: callbacks that are called at each step of the experiment.
        max_concurrent_trials: maximum number of concurrent trials.
        keep_checkpoints_num: `CheckpointConfig(num_to_keep=)`.
        checkpoint_score_attr: `CheckpointConfig(checkpoint_score_attribute=)`. The prefix "min-", as in
            "min-loss", means that the smallest value is best.
        checkpoint_freq: `checkpoint_frequency`.
        checkpoint_at_end: see `CheckpointConfig`. Here, None means False.
        chdir_to_trial_dir: see `RunConfig`.
        local_dir: see `storage_path`.
        obsolete: arguments of older versions of Ray, which only cause a warning.

    Raises:
        TrialError: a trial failed, and `raise_on_failed_trial` is True. Even then, the results are on disk.
        ConfigError: an argument is invalid or unknown; see also `Tuner` and `Tuner.fit`.
    """
    given = dict(locals())
    if words := obsolete_words(obsolete, inspect.signature(run).parameters):
        logger.warning("tune.run: %s", words)
    bound = Bound.of(run_or_experiment)
    if resources_per_trial is not None:
        bound = with_resources(bound, resources_per_trial)
    if restore is not None:
        bound = replace(bound, start_from=_checkpoint_folder(restore))
    given["checkpoint_config"] = checkpoint_settings(
        checkpoint_config,
        keep_checkpoints_num=keep_checkpoints_num,
        checkpoint_score_attr=checkpoint_score_attr,
        checkpoint_freq=checkpoint_freq,
        checkpoint_at_end=checkpoint_at_end,
    )
    given["failure_config"] = FailureConfig(max_failures=max_failures, fail_fast=fail_fast)
    given["verbose"] = 1 if verbose is None else int(verbose)
    given["callbacks"] = callbacks or ()
    tune_config = TuneConfig(**_fields_of(TuneConfig, given))
    if local_dir is not None and storage_path is not None:
        raise ConfigError(f"give {storage_path=} or {local_dir=}, not both")
    if storage_path is None:
        given["storage_path"] = local_dir
    run_config = RunConfig(**_fields_of(RunConfig, given))
    tuner = _resumed(bound, config, tune_config, run_config, resume, resume_config)
    if tuner is None:
        policy = run_config.checkpoint_config
        # Unlike Ray's Tuner, Ray's `run` saves no checkpoint at the end of a trial by default.
        policy.checkpoint_at_end = bool(policy.checkpoint_at_end)
        # In Ray's `run`, no trial is stopped early without a scheduler.
        tune_config = replace(tune_config, scheduler=tune_config.scheduler or "fifo")
        tuner = _RunTuner(bound, param_space=config, tune_config=tune_config, run_config=run_config)
    grid = tuner.fit()
    if raise_on_failed_trial and grid.num_errors:
        raise _failed(list(grid), grid.experiment_path) from grid.errors[0]
    # The metric and the mode need not be passed, because the grid contains them.
    return ExperimentAnalysis(grid.experiment_path, trials=grid)


def run_experiments(
    experiments: Experiment | Mapping[str, Any] | Sequence[Experiment | Mapping[str, Any]],
    scheduler: TrialScheduler | str | None = None,
    concurrent: bool = True,
    **settings: Any,
) -> list[Any]:
    """Run several experiments one after another; return a list of all their trials.

    Args:
        experiments: an `Experiment`, a list of experiments, or {"name": {"run": trainable, "config": ...},
            ...}.
        scheduler: scheduler that each experiment uses, or its name.
        concurrent: argument of Ray without effect. Each experiment can use all resources, so running the
            experiments one after another takes no longer.
        settings: further arguments of `tune.run`, used for every experiment.

    Raises:
        ConfigError: `experiments` has an unsupported form; see also `tune.run`.
    """
    del concurrent
    trials: list[Any] = []
    for experiment in _as_list(experiments):
        trials += run(experiment, scheduler=scheduler, **settings).trials
    return trials


def _as_list(experiments: Any) -> list[Experiment]:
    if isinstance(experiments, Experiment):
        return [experiments]
    if isinstance(experiments, Mapping):
        return [
            spec if isinstance(spec, Experiment) else Experiment.from_json(name, spec)
            for name, spec in experiments.items()
        ]
    if isinstance(experiments, Sequence) and not isinstance(experiments, str):
        return [one for each in experiments for one in _as_list(each)]
    raise ConfigError(f"experiments={experiments!r}: give tune.Experiment objects, or a dictionary by name")


def _fields_of(settings: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: given[each.name] for each in fields(settings) if each.name in given}


def _resumed(
    bound: Bound,
    config: Mapping[str, Any] | None,
    tune_config: TuneConfig,
    run_config: RunConfig,
    resume: bool | str | None,
    resume_config: Any,
) -> Tuner | None:
    wish = resuming(resume, resume_config)
    if not wish.wanted:
        return None
    if run_config.name is None:
        # If no name is given, a new name is generated, so no existing experiment can have this name.
        if not wish.required:
            return None
        raise ConfigError(f"resume={resume!r} needs the name of the experiment: pass name=...")
    root = settings.results_dir() if run_config.storage_path is None else run_config.storage_path
    path = f"{root}/{run_config.name}"
    filesystem = run_config.storage_filesystem
    where = {} if filesystem is None else {"storage_filesystem": filesystem}
    if not wish.required and not Tuner.can_restore(path, **where):
        return None
    return Tuner.restore(
        path,
        bound,
        param_space=config or None,
        tune_config=tune_config,
        run_config=run_config,
        **wish.how,
        **where,
    )


def _checkpoint_folder(restore: str | os.PathLike[str]) -> str:
    folder = Path(restore).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(f"restore={os.fspath(restore)!r} does not exist: pass the folder of a checkpoint")
    return str(folder)


def _failed(trials: Sequence[Result], folders: str) -> TrialError:
    failed = [result for result in trials if result.error is not None]
    return TrialError(
        f"{len(failed)} of {len(trials)} trials failed "
        f"({', '.join(result.trial_id for result in failed[:10])}{', ...' if len(failed) > 10 else ''}); "
        f"the first error: {first_line(failed[0].reason)}. Read all results in {folders} by "
        "tune.ExperimentAnalysis(path), or get them from tune.run() by raise_on_failed_trial=False"
    )


OBSOLETE = {
    "export_formats": "export_model() is not called: save a checkpoint, and export the model from it",
    "global_checkpoint_period": "report() always saves a report before it returns",
    "loggers": "pass callbacks=[...]; CSV and JSON files are written automatically",
    "queue_trials": "trials wait for free resources; a trial that can never fit is refused",
    "ray_auto_init": "the runtime starts automatically",
    "server_port": "run `trainkit dashboard --port N FOLDER` to serve experiments",
    "sync_on_checkpoint": "pass sync_config=tune.SyncConfig(...)",
    "sync_to_cloud": "pass storage_path='s3://...'",
    "sync_to_driver": "all trials write to the folder of the experiment",
    "trial_executor": "trainkit has only one executor",
    "upload_dir": "pass storage_path='s3://...'",
    "with_server": "run `trainkit dashboard FOLDER` to serve experiments",
    "_entrypoint": "it is an internal setting of Ray",
    "_remote": "it is an internal setting of Ray",
    "_remote_string_queue": "it is an internal setting of Ray",
}
"""Arguments of older versions of Ray, each with the reason why it has no effect or with its replacement."""


def obsolete_words(given: Iterable[str], known: Iterable[str]) -> str:
    """Return a message on the arguments without effect and their alternatives; '' if `given` is empty.

    Args:
        given: names of given arguments that trainkit's `tune.run` does not have.
        known: names of the arguments of trainkit's `tune.run`.

    Raises:
        ConfigError: no version of Ray has such an argument; the message suggests a similar name.
    """
    names = sorted(given)
    for name in names:
        if name not in OBSOLETE:
            hint = did_you_mean(name, [*known, *OBSOLETE])
            raise ConfigError(f"tune.run() has no argument {name!r}.{hint}")
    return "; ".join(f"{name} has no effect: {OBSOLETE[name]}" for name in names)


def checkpoint_settings(
    config: CheckpointConfig | Mapping[str, Any] | None,
    *,
    keep_checkpoints_num: int | None,
    checkpoint_score_attr: str | None,
    checkpoint_freq: int,
    checkpoint_at_end: bool,
) -> CheckpointConfig:
    """Convert the arguments of Ray 1.x to a CheckpointConfig; "min-loss" means that the smallest loss is
    best.

    Raises:
        ConfigError: both `config` and an argument of Ray 1.x are given.
    """
    old = {
        "keep_checkpoints_num": keep_checkpoints_num,
        "checkpoint_score_attr": checkpoint_score_attr,
        "checkpoint_freq": checkpoint_freq,
        "checkpoint_at_end": checkpoint_at_end,
    }
    used = [name for name, value in old.items() if value]
    if config is not None:
        if used:
            raise ConfigError(f"pass either checkpoint_config or {', '.join(used)}, not both")
        config = CheckpointConfig(**config) if isinstance(config, Mapping) else copy.copy(config)
        config.checkpoint_at_end = bool(config.checkpoint_at_end)
        return config
    score = checkpoint_score_attr or ""
    return CheckpointConfig(
        num_to_keep=keep_checkpoints_num,
        checkpoint_score_attribute=score.removeprefix("min-") or None,
        checkpoint_score_order="min" if score.startswith("min-") else "max",
        checkpoint_frequency=checkpoint_freq,
        checkpoint_at_end=checkpoint_at_end if used else None,
    )


@dataclass(frozen=True)
class Resuming:
    """Choice between resuming an experiment and beginning a new experiment, made by the arguments of
    `tune.run`.

    Attributes:
        wanted: True: resume the experiment if it exists.
        required: True: it is an error if the experiment does not exist.
        how: arguments for `Tuner.restore`.
    """

    wanted: bool = False
    required: bool = False
    how: dict[str, Any] = field(default_factory=dict)


_ERRORED = {
    "ERRORED": {"resume_errored": True},
    "RESTART_ERRORED": {"restart_errored": True},
    "ERRORED_ONLY": {"resume_unfinished": False, "resume_errored": True},
    "RESTART_ERRORED_ONLY": {"resume_unfinished": False, "restart_errored": True},
}


def resuming(resume: bool | str | None, resume_config: Any = None) -> Resuming:
    """Parse `resume`: True, "LOCAL", "REMOTE", "AUTO", "ERRORED_ONLY", "AUTO+ERRORED" or a similar value.

    Raises:
        ConfigError: `resume` has an unknown value.
    """
    if resume is None or resume is False:
        return Resuming()
    head, _, tail = ("LOCAL" if resume is True else str(resume)).partition("+")
    if head in _ERRORED and not tail:
        head, tail = "LOCAL", head
    if head == "PROMPT":
        raise ConfigError(
            "resume='PROMPT' is not supported: pass True, or 'AUTO' to resume the experiment if it exists"
        )
    if head not in ("LOCAL", "REMOTE", "AUTO") or (tail and tail not in _ERRORED):
        raise ConfigError(
            f"resume={resume!r}: give True or 'AUTO', which may be followed by one of "
            f"{', '.join(f'+{name}' for name in _ERRORED)}; or 'ERRORED_ONLY'"
        )
    if resume_config is not None and tail:
        raise ConfigError(f"resume={resume!r} and resume_config contradict each other: pass only one of them")
    how = {"resume_config": resume_config} if resume_config is not None else dict(_ERRORED.get(tail, {}))
    return Resuming(wanted=True, required=head != "AUTO", how=how)
