"""Sweep file: a YAML file that describes a command line, its parameters and the search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit import tune
from trainkit.errors import ConfigError, MissingDependencyError, TrainkitError
from trainkit.plugins.sweep import words
from trainkit.plugins.sweep.parameters import check_keys, number_of, space_of
from trainkit.plugins.sweep.program import Program
from trainkit.registry import Registry
from trainkit.tune.schedulers import SCHEDULERS
from trainkit.tune.search import SEARCHERS

_OLD_WORDS = {"run_cap": "num_samples"}
"""Maps keys of W&B's sweep files to the names of trainkit."""

_METHODS = {"grid": "random", "random": "random", "bayes": "auto"}
"""Maps the methods of W&B's sweep files to searchers."""

_RESOURCES = {"cpus": "cpu", "gpus": "gpu", "memory": "memory"}

LIMITS = ("num_samples", "max_concurrent_trials", "time_budget_s", "trial_timeout_s")
"""Settings of TuneConfig whose values may change between two runs of an experiment."""

_SEARCH = (*LIMITS[1:], "seed", "constraints", "learn_from", "priors")
"""Settings of TuneConfig that are passed on unchanged."""

_CHANGEABLE = ("description", "run_cap", *LIMITS)

_KEYS = (
    "name", "command", "program", "shell", "env", "parameters", "metric", "metrics_from", "counter", "method",
    "search_alg", "scheduler", "early_terminate", "stop", "max_failures", *_CHANGEABLE, *_SEARCH, *_RESOURCES,
)  # fmt: skip

_WITHOUT_EFFECT = ("project", "entity")
"""Keys of W&B's sweep files that name places on W&B's server."""


@dataclass(frozen=True)
class Sweep:
    """Command line, search space and settings that a sweep file describes.

    Attributes:
        name: name of the experiment.
        program: the command line, and where its metrics are.
        space: search space.
        tune_config: settings of the search.
        stop: stop rule, as for RunConfig.
        max_failures: number of times that a failed trial runs again.
        resources: resources of each trial.
        content: the file's content, without values that may change between runs.
    """

    name: str
    program: Program
    space: Mapping[str, Any]
    tune_config: tune.TuneConfig
    stop: Any = None
    max_failures: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)


def read_sweep(path: Path) -> Sweep:
    """Read a sweep file.

    Raises:
        ConfigError: the file is missing, is not YAML, or has a wrong value; the message names file and key.
    """
    content = _yaml(path)
    try:
        return sweep_of(content, path.absolute())
    except TrainkitError as error:
        raise ConfigError(f"{path}: {error}") from None


def sweep_of(content: Mapping[str, Any], path: Path) -> Sweep:
    """Return the sweep that a file's content describes.

    Args:
        content: the sections by their names.
        path: absolute path of the file; its folder is the working folder of the command.

    Raises:
        TrainkitError: a value is wrong; the message names its key.
    """
    check_keys({key: None for key in content if key not in _WITHOUT_EFFECT}, _KEYS)
    settings = {_OLD_WORDS.get(key, key): value for key, value in content.items()}
    method = settings.get("method", "bayes")
    if method not in _METHODS:
        raise ConfigError(f"method: {method!r} is not supported: use {', '.join(_METHODS)}, or search_alg")
    space = space_of(settings.get("parameters"), grid=method == "grid")
    shell = settings.get("shell", False)
    if not isinstance(shell, bool):
        raise ConfigError(f"shell: {shell!r} is not supported: use true or false")
    metric, mode = _metric(settings.get("metric"))
    command = words.words_of(settings.get("command"), settings.get("program"), shell=shell)
    words.check_words(command, list(space), shell=shell)
    name = str(settings.get("name", path.stem))
    return Sweep(
        name=name,
        program=Program(
            words=tuple(command),
            folder=str(path.parent),
            metric=metric,
            shell=shell,
            variables={str(key): words.text_of(value) for key, value in _mapping(settings, "env").items()},
            source=_source(settings.get("metrics_from", "output")),
            counter=str(settings.get("counter", "")),
        ),
        space=space,
        tune_config=_tune_config(settings, method, metric, mode, path.parent),
        stop=settings.get("stop"),
        max_failures=settings.get("max_failures", 0),
        resources={to: number_of(settings, key) for key, to in _RESOURCES.items() if key in settings},
        content={key: value for key, value in content.items() if key not in _CHANGEABLE},
    )


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise ConfigError("reading a sweep file needs PyYAML: pip install 'trainkit-ml[sweep]'") from None
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} contains no sections such as `command`, `parameters` and `metric`")
    return content


def _mapping(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = settings.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key}: {value!r} is not a list of `name: value`")
    return value


def _metric(entry: object) -> tuple[str, Any]:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
        raise ConfigError("`metric` is missing: write it as metric: {name: loss, goal: minimize}")
    check_keys(entry, ("name", "goal"), "metric: ")
    modes = {"minimize": "min", "min": "min", "maximize": "max", "max": "max"}
    goal = entry.get("goal", "minimize")
    if goal not in modes:
        raise ConfigError(f"metric: the goal {goal!r} is not supported: use minimize or maximize")
    return entry["name"], modes[goal]


def _source(entry: object) -> tuple[str, str]:
    """Return the kind of source and its argument: a pattern, a file or a folder."""
    if entry == "output":
        return "output", ""
    kinds = ("pattern", "file", "tensorboard")
    if not isinstance(entry, Mapping) or len(entry) != 1 or next(iter(entry)) not in kinds:
        raise ConfigError(
            f"metrics_from: {entry!r} is not supported: use output, or one of {{pattern: EXPRESSION}}, "
            "{file: metrics.jsonl}, {tensorboard: FOLDER}"
        )
    kind, argument = next(iter(entry.items()))
    if kind == "pattern":
        try:
            named = re.compile(str(argument)).groupindex
        except re.error as error:
            raise ConfigError(f"metrics_from: the pattern {argument!r} is wrong: {error}") from None
        if not named:
            raise ConfigError(
                f"metrics_from: the pattern has no named group, such as loss=(?P<loss>\\S+): {argument}"
            )
    return str(kind), str(argument)


def _tune_config(
    settings: Mapping[str, Any], method: str, metric: str, mode: Any, folder: Path
) -> tune.TuneConfig:
    searcher = settings.get("search_alg", _METHODS[method] if "method" in settings else None)
    if isinstance(searcher, Mapping) and "storage" in searcher:
        searcher = {**searcher, "storage": _storage(searcher["storage"], folder)}
    scheduler = settings.get("scheduler", "fifo")
    if "early_terminate" in settings:
        scheduler = _asha(settings["early_terminate"])
    number = settings.get("num_samples", 1 if method == "grid" else None)
    if number is None:
        if "time_budget_s" not in settings:
            raise ConfigError("`num_samples` is missing: give the number of trials, or time_budget_s")
        number = -1
    return tune.TuneConfig(
        metric=metric,
        mode=mode,
        num_samples=number,
        search_alg=None if searcher == "auto" else _made("search_alg", searcher, SEARCHERS),
        scheduler=_scheduler(scheduler),
        **{key: settings[key] for key in _SEARCH if key in settings},
    )


def _made(key: str, entry: object, registry: Registry) -> Any:
    """Return the object that a dictionary with a name and settings describes; return a name unchanged."""
    if entry is None or isinstance(entry, str):
        return entry
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ConfigError(
            f"{key}: {entry!r} is not a name, or a dictionary such as {{name: asha, max_t: 20}}"
        )
    cls = registry.get(entry["name"], key)
    try:
        return cls(**{str(name): value for name, value in entry.items() if name != "name"})
    except TypeError as error:
        raise ConfigError(f"{key}: {error}") from None


def _storage(entry: object, folder: Path) -> Any:
    """Return an address of a database unchanged; return a storage of Optuna for the name of a file."""
    if not isinstance(entry, str) or "://" in entry:
        return entry
    try:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError:
        raise MissingDependencyError.of("search_alg with a storage needs Optuna", "tune") from None
    return JournalStorage(JournalFileBackend(str(folder / entry)))


def _scheduler(entry: object) -> Any:
    made = _made("scheduler", entry, SCHEDULERS)
    if isinstance(made, str):
        made = tune.create_scheduler(made)
    if getattr(made, "pauses", False):
        raise ConfigError(
            f"scheduler: {entry!r} is not supported, because it pauses trials: use asha or median"
        )
    return made


def _asha(entry: object) -> Mapping[str, Any]:
    """Return the scheduler for W&B's `early_terminate`, which stops trials as asynchronous HyperBand."""
    if not isinstance(entry, Mapping) or entry.get("type") != "hyperband":
        raise ConfigError(f"early_terminate: {entry!r} is not supported: use type: hyperband, or scheduler")
    names = {"min_iter": "grace_period", "max_iter": "max_t", "eta": "reduction_factor"}
    # W&B's `s` and `strict` concern brackets, which ASHA lacks.
    check_keys(entry, ("type", "s", "strict", *names), "early_terminate: ")
    given = {names[key]: value for key, value in entry.items() if key in names}
    return {"name": "asha", "reduction_factor": 3, **given}
