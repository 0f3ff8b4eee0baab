"""Settings of the tuner, made from the arguments of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from trainkit.errors import ConfigError, did_you_mean
from trainkit.sklearn.candidates import CandidateSource
from trainkit.sklearn.internals import BaseScorer
from trainkit.sklearn.outcomes import SINGLE, metric_name
from trainkit.tune.callbacks.base import CALLBACKS, Callback, create_callback
from trainkit.tune.config import DEFAULT_LOGGERS, CheckpointConfig, RunConfig, TuneConfig
from trainkit.tune.controller.rules import StopRules
from trainkit.tune.core.configs import FailureConfig
from trainkit.tune.core.setting_names import SettingNames
from trainkit.tune.core.stoppers import Stopper, StopRule
from trainkit.tune.schedulers.base import TrialScheduler

STOPPED_BY = "stopped by "
"""Beginning of the tuner's message about a rule that ended a trial or the search."""


class AfterAllFolds(Stopper):
    """The user's `stopper`, applied only to reports in which all folds are done.

    Args:
        rule: a stopper, a dictionary, a function, or a list of such rules.
        folds: number of folds of a candidate.
    """

    def __init__(self, rule: StopRule, folds: int) -> None:
        self._rule, self._folds = rule, folds
        self._rules = StopRules.of(rule)
        self._last_fold = f"split{folds - 1}_fit_time"
        self._elapsed_s = 0.0
        self._facts: dict[str, Any] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> AfterAllFolds:
        return AfterAllFolds(self._rule, self._folds)  # the constructor also copies the rules

    def begin(self, *experiment: Any) -> None:
        self._rules.begin(*experiment)

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if self._last_fold not in result:
            return False
        found = self._rules.on_report(trial_id, result)
        if found is not None:
            self._facts = _own_facts(found)
        return found is not None

    def stop_all(self) -> bool:
        why = self._rules.end(self._elapsed_s)
        if why:
            self._facts = {"stopper": why.removeprefix(STOPPED_BY)}
        return bool(why)

    def on_time(self, elapsed_s: float) -> None:
        self._elapsed_s = elapsed_s

    @property
    def deadline_s(self) -> float:
        return self._rules.deadline_s

    def reason(self) -> Mapping[str, Any]:
        return self._facts


def _own_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reason for a stop as a dictionary in which `stopper` is the rule's name."""
    facts = dict(found)
    words = facts.pop("stop")
    if "stopper" in facts:
        return facts
    return {
        "stopper": words.removeprefix(STOPPED_BY) if words.startswith(STOPPED_BY) else f"stopper: {words}"
    }


_ARGUMENTS = {
    "name": "name",
    "num_samples": "n_trials",
    "scheduler": "early_stopping",
    "search_alg": "search_optimization",
    "stop": "stopper",
    "storage_path": "local_dir",
}
"""Arguments of a search, by the tuner's setting that each argument determines."""


def names_of_settings(space: str, refit: object, tune_params: Mapping[str, Any] | None) -> SettingNames:
    """Return the names under which the tuner's messages mention its settings.

    Args:
        space: name of the argument with the parameter space.
        refit: `refit` of the search, which selects the optimized score.
        tune_params: `tune_params` of `fit`; the settings in this dictionary keep the tuner's names.
    """
    known = {**_ARGUMENTS, "param_space": space, "metric": f"the score that refit={refit!r:.100} selects"}
    names = {name: argument for name, argument in known.items() if name not in (tune_params or ())}
    return SettingNames(names, other="tune_params={{{!r}: ...}}", resume="fit again")


FILES_BESIDE = ("json", "csv")
"""Loggers of every experiment that has a folder, as in tune-sklearn."""

_DECIDED = {
    "config": "the parameter space",
    "constraints": "a function as refit, which returns the index of the best candidate within the limits",
    "fail_fast": "error_score",
    "failure_config": "error_score, and max_failures",
    "metric": "scoring and refit",
    "mode": "mode",
    "num_samples": "n_trials",
    "param_space": "the parameter space",
    "raise_on_failed_trial": "error_score",
    "restore": "name and local_dir",
    "resume": "name and local_dir",
    "resume_config": "name and local_dir",
    "scheduler": "early_stopping",
    "search_alg": "search_optimization",
}
"""Settings that `tune_params` can't contain, with the arguments of the search that determine them."""

_OF_TUNE = {each.name for each in fields(TuneConfig)} - {*_DECIDED, "strict_metric_checking"}
_OF_RUN = {each.name for each in fields(RunConfig)} - {*_DECIDED}
TUNE_PARAMS = tuple(sorted({*_OF_TUNE, *_OF_RUN, "local_dir", "max_failures", "resources_per_trial"}))
"""Names allowed in `fit(tune_params=...)`: the names of the arguments of `tune.run`."""


@dataclass(frozen=True)
class Settings:
    """Settings of the tuner for one `fit`.

    Attributes:
        tune, run: settings of the experiment.
        resources: resources of a trial.
        cpus: CPUs of a session that `fit` starts.
    """

    tune: TuneConfig
    run: RunConfig
    resources: Mapping[str, float]
    cpus: int


def settings_of(
    search: Any,
    suggesting: CandidateSource,
    *,
    metric: str | None,
    scheduler: TrialScheduler | None,
    folds: int,
    machine_cpus: int,
    results_dir: str,
    tune_params: Mapping[str, Any] | None,
) -> Settings:
    """Return the settings for one `fit`.

    Args:
        search: the search object, with its constructor's arguments.
        suggesting: source of the candidates.
        metric: metric for searcher and scheduler; None: no metric.
        scheduler: scheduler that stops candidates early; None: no early stopping.
        folds: number of folds.
        machine_cpus: CPUs of this machine.
        results_dir: default folder for stored experiments.
        tune_params: `tune_params` of `fit`, which override the constructor's arguments.

    Raises:
        ConfigError: an argument is out of range.
    """
    given = checked_tune_params(tune_params)
    if given.get("max_failures") and search.error_score == "raise":
        raise ConfigError(
            f"tune_params has max_failures={given['max_failures']!r}, but error_score='raise' ends "
            "the search at the first failure: set error_score=numpy.nan, or leave max_failures out"
        )
    if not isinstance(given.get("resources_per_trial") or {}, Mapping):
        raise ConfigError(
            "resources_per_trial in tune_params must be a dictionary of amounts by name, such as "
            f"{{'cpu': 2}}, not {given['resources_per_trial']!r:.100}"
        )
    if "local_dir" in given and "storage_path" in given:
        raise ConfigError("tune_params has local_dir and storage_path, which name the same folder: give one")
    at_once = trials_at_once(search.n_jobs, machine_cpus)
    tune = TuneConfig(
        metric=metric,
        mode=(search.mode or "max") if metric is not None else None,
        search_alg=suggesting.searcher,
        scheduler=scheduler or "fifo",
        num_samples=suggesting.num_samples,
        max_concurrent_trials=at_once,
        time_budget_s=search.time_budget_s,
        reuse_actors=True,
        seed=suggesting.seed,
        allow_duplicates=suggesting.known_beforehand,
    )
    callbacks, files = loggers_of(search.loggers)
    storage = search.local_dir
    # The user must be able to read the files of callbacks and loggers after the search.
    if callbacks or files:
        storage = storage or results_dir
    kept = search.name is not None or storage is not None
    run = RunConfig(
        name=search.name,
        storage_path=storage,
        # If folds are fitted completely, the lines that scikit-learn prints replace the tuner's console.
        verbose=min(int(search.verbose), 3) if scheduler is not None or search.verbose < 2 else 0,
        default_loggers=tuple(dict.fromkeys((*FILES_BESIDE, *files))) if kept else (),
        callbacks=callbacks,
        stop=search.stopper,
        # trials save no checkpoint at their end, because nothing reads it
        checkpoint_config=CheckpointConfig(checkpoint_at_end=False),
        chdir_to_trial_dir=False,  # trials run in the program's directory
        failure_config=FailureConfig(
            max_failures=given.get("max_failures", 0),
            fail_fast=search.error_score == "raise",
        ),
    )
    tune = replace(tune, **{name: given[name] for name in _OF_TUNE if name in given})
    run = replace(run, **_run_changes(run, given))
    if run.stop is not None and scheduler is None:
        run = replace(run, stop=AfterAllFolds(run.stop, folds))
    per_trial = cpus_per_trial(search.sk_n_jobs, machine_cpus)
    resources = {"cpu": per_trial, "gpu": 1 if search.use_gpu else 0} | dict(
        given.get("resources_per_trial") or {}
    )
    return Settings(tune, run, resources, cpus_of(search, machine_cpus))


LEAST_BUDGET_S = 1e-3
"""Time budget in seconds of a round that starts after the search's time budget is spent.

A round with this budget ends at once.
"""


def with_budget_left(tune: TuneConfig, spent_s: float) -> TuneConfig:
    """Return the settings with the rest of the time budget after `spent_s` seconds."""
    if tune.time_budget_s is None:
        return tune
    return replace(tune, time_budget_s=max(cast("float", tune.time_budget_s) - spent_s, LEAST_BUDGET_S))


def _run_changes(run: RunConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    changes = {name: given[name] for name in _OF_RUN if name in given}
    if "local_dir" in given:
        changes["storage_path"] = given["local_dir"]
    if "callbacks" in changes:
        changes["callbacks"] = (*run.callbacks, *changes["callbacks"])
    return changes


def checked_tune_params(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return `given`, or an empty dictionary for None.

    Raises:
        ConfigError: a name is unknown, or the search itself determines the setting.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"tune_params must be a dictionary of settings by name, not {given!r:.200}")
    for name in given:
        if name in _DECIDED:
            raise ConfigError(f"tune_params can't have {name!r}: use {_DECIDED[name]}")
        if name not in TUNE_PARAMS:
            hint = did_you_mean(str(name), TUNE_PARAMS, cutoff=0.6)
            raise ConfigError(f"unknown setting {name!r} in tune_params: use {', '.join(TUNE_PARAMS)}.{hint}")
    return given


# --- metric ---------------------------------------------------------------------------------------


def metric_of(scoring: Any, refit: Any, *, needed_by: str | None) -> str | None:
    """Return the metric for searcher and scheduler: the mean of the refit scorer's scores.

    Args:
        scoring: `scoring` of the constructor.
        refit: `refit` of the constructor.
        needed_by: argument that needs a metric, for the message; None if no metric is needed.

    Returns:
        The metric's name; None if several scorers exist or may exist, and `refit` does not name one of them.

    Raises:
        ConfigError: a metric is needed, and the scorer is unknown.
    """
    if isinstance(refit, str):
        several = isinstance(scoring, (list, tuple, set, Mapping)) or callable(scoring)
        return metric_name(refit if several else SINGLE)
    # A scoring function must be called to know if it returns a single number or numbers by name.
    single = isinstance(scoring, BaseScorer) or not callable(scoring) or needed_by
    if not isinstance(scoring, (list, tuple, set, Mapping)) and single:
        return metric_name(SINGLE)
    if needed_by is None:
        return None
    names = ", ".join(map(repr, scoring))
    raise ConfigError(
        f"refit={refit!r:.100} names none of the scorers {names}, but {needed_by} needs one to compare: set "
        f"refit={next(iter(scoring), 'accuracy')!r}, or search_optimization='random' without early_stopping"
    )


# --- concurrency ----------------------------------------------------------------------------------


def trials_at_once(n_jobs: int | None, cpus: int) -> int | None:
    """Return the number of concurrent trials for `n_jobs` in joblib's notation; None: no limit.

    Raises:
        ConfigError: `n_jobs` is 0.
    """
    return None if n_jobs is None or n_jobs == -1 else _count("n_jobs", n_jobs, cpus)


def cpus_per_trial(sk_n_jobs: int | None, cpus: int) -> int:
    """Return the CPUs of a trial for `sk_n_jobs`; negative numbers mean the same as in `n_jobs`.

    Raises:
        ConfigError: `sk_n_jobs` is 0.
    """
    return 1 if sk_n_jobs is None else _count("sk_n_jobs", sk_n_jobs, cpus)


def _count(name: str, given: int, cpus: int) -> int:
    if given == 0:
        raise ConfigError(f"{name} must be at least 1, or -1 for all CPUs, not 0")
    return int(given) if given > 0 else max(cpus + 1 + int(given), 1)


def cpus_of(search: Any, machine_cpus: int) -> int:
    """Return the number of CPUs of a session that a search starts."""
    at_once = trials_at_once(search.n_jobs, machine_cpus)
    per_trial = cpus_per_trial(search.sk_n_jobs, machine_cpus)
    return max(machine_cpus if at_once is None else at_once * per_trial, per_trial)


# --- callbacks ------------------------------------------------------------------------------------


def loggers_of(loggers: Any) -> tuple[tuple[Callback, ...], tuple[str, ...]]:
    """Return the callbacks for `loggers`, and the names of the default loggers among `loggers`.

    Args:
        loggers: names, classes or objects; None: no loggers.

    Raises:
        ConfigError: `loggers` is not a list, or has an entry that is not a logger.
        MissingDependencyError: the package of a logger is not installed.
    """
    if loggers is None:
        return (), ()
    known = f"{', '.join(CALLBACKS.names())}, callbacks or callback classes"
    if not isinstance(loggers, Sequence) or isinstance(loggers, str):
        raise ConfigError(f"loggers must be a list of {known}, not {loggers!r}")
    callbacks: list[Callback] = []
    files: list[str] = []
    for each in loggers:
        if isinstance(each, type) and issubclass(each, Callback):
            each = each()
        if each in DEFAULT_LOGGERS:
            files.append(each)
        elif isinstance(each, Callback):
            callbacks.append(each)
        elif isinstance(each, str):
            callbacks.append(create_callback(each, "loggers"))
        else:
            raise ConfigError(f"loggers has {each!r}, but takes {known}")
    return tuple(callbacks), tuple(files)
