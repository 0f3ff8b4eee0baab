"""Searcher, scheduler and rules of an experiment, made from its settings, and the settings in stored form."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from trainkit import settings
from trainkit.errors import TuneArgumentError
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, TuneConfig
from trainkit.tune.controller.rules import Plan, StopRules, describe_stop, stop_of
from trainkit.tune.core import seeds
from trainkit.tune.core.objectives import Objective
from trainkit.tune.core.resources import Bound, PlacementGroupFactory
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.core.trainables import older_arguments
from trainkit.tune.core.trial import Namer, experiment_prefix
from trainkit.tune.schedulers import (
    SCHEDULERS,
    FIFOScheduler,
    TrialScheduler,
    described_scheduler,
)
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search import (
    SEARCHERS,
    BasicVariantGenerator,
    Searcher,
    describe_searcher,
    described_searcher,
)
from trainkit.tune.search.base import called
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import holds_opaque, why_not_made_again
from trainkit.tune.sync.storage import Address, describe_address
from trainkit.tune.trial.trainable import Trainable


def checked_trainable(trainable: Any, run: RunConfig) -> Bound:
    """Return the trainable as a Bound.

    Raises:
        ConfigError: the trainable is neither a function of the configuration, a `Trainable` class nor a
            registered name; or the trainable can't save the checkpoints that `run` requests.
    """
    if not isinstance(trainable, type) and hasattr(trainable, "__trainable__"):
        trainable = trainable.__trainable__()  # a trainer object provides its own trainable
    bound = Bound.of(trainable)
    inner = bound.trainable
    asked = run.checkpoint_config.checkpoint_frequency or run.checkpoint_config.checkpoint_at_end
    if isinstance(inner, type):
        if not issubclass(inner, Trainable):
            raise TuneArgumentError(f"trainable={inner!r} is a class, but does not extend tune.Trainable")
        _require_fit(bound, inspect.signature(inner.setup), None, called=f"{bound.name}.setup")
        if asked and not inner._can_save():
            raise TuneArgumentError(
                f"CheckpointConfig asks {bound.name} for checkpoints, but it has no save_checkpoint(); "
                "define it, or leave checkpoint_frequency and checkpoint_at_end out"
            )
        return bound
    if not callable(inner):
        raise TuneArgumentError(
            f"trainable={inner!r}: give a function of the configuration, or a tune.Trainable class"
        )
    if isinstance(inner, functools.partial) and isinstance(inner.func, type):
        raise TuneArgumentError(
            f"trainable={inner!r} binds arguments of a class's constructor; give them to its setup() "
            f"instead, by tune.with_parameters({bound.name}, name=value)"
        )
    _require_callable_with(bound, inner)
    if asked:
        raise TuneArgumentError(
            "checkpoint_frequency and checkpoint_at_end are for Trainable classes; "
            f"the function {bound.name} saves by tune.report(metrics, "
            "checkpoint=tune.Checkpoint.from_directory(path))"
        )
    return bound


def _require_callable_with(bound: Bound, function: Callable[..., Any]) -> None:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        raise TuneArgumentError(
            f"the trainable {bound.name} is async: give a plain function, which may call asyncio.run()"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # the function is a builtin without a readable signature
        return
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in bound.parameters
    ]
    if len(needed) == 2 and needed[1] in ("reporter", "status_reporter"):
        raise TuneArgumentError(
            f"the trainable {bound.name} takes a {needed[1]}, which went with Ray 1.0: leave the argument "
            f"out, and report by tune.report(name=value) where it says {needed[1]}(name=value)"
        )
    _require_fit(bound, signature, called=bound.name, **older_arguments(function, bound.parameters, None))


def _require_fit(
    bound: Bound, signature: inspect.Signature, *first: None, called: str, **older: str | None
) -> None:
    try:
        signature.bind(*first, {}, **bound.parameters, **older)
    except TypeError as error:
        given = ", ".join(["config", *(f"{name}=" for name in bound.parameters)])
        raise TuneArgumentError(
            f"the trainable {bound.name} cannot be called as {called}({given}): {error}"
        ) from None


Part = TypeVar("Part")


def make_space(param_space: Mapping[str, Any] | None, tune: TuneConfig) -> Space:
    """Return the search space, including the scheduler's additions.

    Raises:
        SpaceError: the space is invalid.
    """
    if isinstance(tune.scheduler, TrialScheduler):
        param_space = CheckedScheduler(tune.scheduler).completed_space(param_space or {})
    return Space.of(param_space)


def make_searcher(tune: TuneConfig, space: Space, seed: int, *, rehearsal: bool = False) -> Searcher:
    """Return a copy of the searcher, ready for its first suggestion.

    The user's object stays unchanged, so that another Tuner can use it.

    With `rehearsal`, the copy must have no external effects, for example on a searcher's database.
    """
    given = cast("Searcher | None", tune.search_alg) or BasicVariantGenerator()
    searcher = _copied(
        "search_alg", given, called(given).rehearsal if rehearsal else lambda: copy.deepcopy(given)
    )
    if tune.objectives:
        called(searcher).set_objectives(tune.objectives)
    called(searcher).begin(
        space, metric=tune.one_metric, mode=tune.one_mode, num_samples=tune.num_samples, seed=seed
    )
    return searcher


def make_source(
    tune: TuneConfig,
    space: Space,
    searcher: Searcher,
    seed: int,
    *,
    prefix: str,
    trainable_name: str,
    request_of: Callable[[dict[str, Any]], PlacementGroupFactory] | None = None,
) -> TrialSource:
    """Return the source of trials, which gets their configurations from the searcher."""
    return TrialSource(
        searcher,
        space,
        seed=seed,
        allow_duplicates=tune.allow_duplicates,
        prefix=prefix,
        trainable_name=trainable_name,
        request_of=request_of,
        namer=Namer(tune.trial_name_creator, tune.trial_dirname_creator),
    )


def make_scheduler(
    tune: TuneConfig, space: Space, seed: int, searcher: Searcher, total_samples: int | None
) -> TrialScheduler:
    """Return a copy of the scheduler; if the searcher has several objectives, the copy gets them.

    Args:
        tune: the settings.
        space: space of the experiment.
        seed: seed of the experiment.
        searcher: searcher of the experiment.
        total_samples: planned number of trials when the experiment began; None: no limit.
    """
    given = cast("TrialScheduler | None", tune.scheduler) or FIFOScheduler()
    scheduler = _copied("scheduler", given, lambda: copy.deepcopy(given))
    # FIFOScheduler needs no random numbers. Leaving them out saves the import of NumPy, which takes almost as
    # long as the tuner's.
    rng: Any = None if type(scheduler) is FIFOScheduler else scheduler_generator(seed)
    CheckedScheduler(scheduler).begin(
        space,
        objectives=called(searcher).objectives or tune.objectives,
        metric=tune.one_metric,
        mode=tune.one_mode,
        rng=rng,
        total_samples=total_samples,
    )
    return scheduler


def _copied(name: str, given: object, copy_it: Callable[[], Part]) -> Part:
    try:
        return copy_it()
    except Exception as error:
        raise TuneArgumentError(
            f"{name}={type(given).__name__} can't be copied, and every experiment has a copy of its own: "
            f"{type(error).__name__}: {error}. Make what holds a lock, a file or a connection when it is "
            "first used, or define __deepcopy__"
        ) from error


def goal_of(
    tune: TuneConfig, searcher: Searcher, scheduler: TrialScheduler
) -> tuple[str | None, str | None, tuple[Objective, ...]]:
    """Return the criterion for the best trial: a metric and its mode, or several objectives."""
    return (
        tune.one_metric or scheduler.metric or searcher.metric,
        tune.one_mode or scheduler.mode or searcher.mode,
        tune.objectives or called(searcher).objectives or scheduler.objectives,
    )


def metrics_of(tune: TuneConfig, metric: str | None, objectives: Sequence[Objective]) -> tuple[str, ...]:
    """Return the metrics that every trial must report: the single metric, or the objectives' metrics."""
    if not (tune.strict_metric_checking and settings.metric_is_required()):
        return ()
    return tuple(each.metric for each in objectives) or (() if metric is None else (metric,))


def can_save(bound: Bound) -> bool:
    """Return True for a class that can save a checkpoint at any report; always False for functions."""
    cls = bound.trainable
    return isinstance(cls, type) and issubclass(cls, Trainable) and cls._can_save()


def make_plan(
    tune: TuneConfig,
    run: RunConfig,
    metric: str | None,
    objectives: Sequence[Objective] = (),
    *,
    saves: bool = False,
) -> Plan:
    """Return the rules for the controller."""
    first, *others = metrics_of(tune, metric, objectives) or (None,)
    return Plan(
        metric=first,
        other_metrics=tuple(each for each in others if each is not None),
        stop=run.stop,
        time_budget_s=cast("float | None", tune.time_budget_s),
        trial_timeout_s=cast("float | None", tune.trial_timeout_s),
        max_iteration=longest_way(tune, run),
        failure=run.failure_config,
        checkpoints=run.checkpoint_config,
        grace_s=settings.stop_grace_s(),
        saves=saves,
    )


def longest_way(tune: TuneConfig, run: RunConfig) -> float | None:
    """Return the maximum number of reports of a trial by stop rules and scheduler; None: unknown."""
    scheduler = tune.scheduler
    limits = [StopRules.of(run.stop).max_iteration]
    if isinstance(scheduler, TrialScheduler) and scheduler.time_attr == "training_iteration":
        limits.append(getattr(scheduler.deciding, "max_t", None))
    return min(filter(None, limits), default=None)


_POLICIES: dict[str, Callable[..., Any]] = {
    "failure_config": FailureConfig,
    "checkpoint_config": CheckpointConfig,
    "sync_config": SyncConfig,
}

# A restore creates only these objects from the file. The user must pass all other objects again.
_MADE_AGAIN: dict[str, Callable[[Mapping[str, Any]], TrialScheduler | Searcher | None]] = {
    "scheduler": described_scheduler,
    "search_alg": described_searcher,
}

_REGISTRIES = {"scheduler": (SCHEDULERS, "base_scheduler"), "search_alg": (SEARCHERS, "searcher")}


def new_facts(
    trainable: str, space: Space, tune: TuneConfig, run: RunConfig, address: Address | None, created: float
) -> dict[str, Any]:
    """Return the facts of a new experiment. If no seed is given, the facts include a random seed.

    Args:
        trainable: name of the trainable.
        space: the search space.
        tune: settings of the search.
        run: settings of the run.
        address: address that the folder is copied to.
        created: date in seconds since 1970.
    """
    seed = tune.seed if tune.seed is not None else seeds.fresh_seed()
    return {
        "created": created,
        "trainable": trainable,
        "seed": seed,
        "seed_given": tune.seed is not None,
        "prefix": experiment_prefix(seed, trainable),
        "space": space.tree,
        "containers": space.containers,
        **describe_settings(tune, run),
        **describe_address(address),
    }


def describe_settings(tune: TuneConfig, run: RunConfig) -> dict[str, Any]:
    """Return the settings in the form that the experiment's file stores."""
    return {
        "tune_config": {
            "metric": describe_metric(tune),
            "mode": tune.one_mode or [each.mode for each in tune.objectives] or None,
            "num_samples": tune.num_samples,
            "max_concurrent_trials": tune.max_concurrent_trials,
            "time_budget_s": tune.time_budget_s,
            "reuse_actors": tune.reuse_actors,
            "search_alg": _describe(tune.search_alg),
            "scheduler": _describe(tune.scheduler),
            "trial_name_creator": tune.trial_name_creator,
            "trial_dirname_creator": tune.trial_dirname_creator,
            "trial_timeout_s": tune.trial_timeout_s,
            "allow_duplicates": tune.allow_duplicates,
            "strict_metric_checking": tune.strict_metric_checking,
        },
        "run_config": {
            "stop": describe_stop(run.stop),
            "callbacks": [
                _describe_callback(callback) for callback in cast("Sequence[Callback]", run.callbacks)
            ],
            "failure_config": vars(run.failure_config),
            "checkpoint_config": vars(run.checkpoint_config),
            "sync_config": None if run.sync_config is None else vars(run.sync_config),
            "verbose": run.verbose,
            "log_to_file": run.log_to_file,
            "chdir_to_trial_dir": run.chdir_to_trial_dir,
            "default_loggers": list(run.default_loggers),
        },
    }


def describe_metric(tune: TuneConfig) -> str | list[str] | None:
    """Return the metric to optimise, or the metrics of several objectives."""
    return tune.one_metric or [each.metric for each in tune.objectives] or None


def restored_tune_config(stored: Mapping[str, Any], given: TuneConfig | None) -> TuneConfig:
    """Return the stored TuneConfig, overridden by the fields of `given` that differ from their defaults.

    Raises:
        ConfigError: the file could not store a custom scheduler or searcher, or a function.
    """
    settings = _given(given or TuneConfig(), TuneConfig())
    lacking, why = {}, []
    for name, value in stored.items():
        if name in settings:
            continue
        make = _MADE_AGAIN.get(name)
        if holds_opaque(value) and make is None:
            lacking[name] = "a function"
        elif make is None or value is None:
            settings[name] = value
        elif (made := make(value)) is not None:
            settings[name] = made
        else:
            lacking[name] = value["class"]
            registry, inner = _REGISTRIES[name]
            why.append(why_not_made_again(registry, value, inner=inner))
    _require_all(lacking, "tune_config=tune.TuneConfig", why)
    return TuneConfig(**settings)


def restored_run_config(stored: Mapping[str, Any], given: RunConfig | None) -> RunConfig:
    """Return the stored RunConfig, overridden by `given`, except for the name and the folder.

    Callbacks that were given by name are created again. Callback objects can't be stored, so they are taken
    from `given`, which may omit them.

    Raises:
        ConfigError: the file could not store a stop function; or the file could not store callbacks, and no
            RunConfig is given.
    """
    settings = _given(given or RunConfig(), RunConfig())
    settings |= {"name": None, "storage_path": None, "storage_filesystem": None}
    lacking = {}
    for name, value in stored.items():
        if name in settings or name == "callbacks":
            continue
        if holds_opaque(value):
            lacking[name] = "a function, or a stopper of your own" if name == "stop" else "a function"
        elif name == "stop":
            settings[name] = stop_of(value)
        else:
            cls = _POLICIES.get(name)
            settings[name] = value if cls is None or value is None else cls(**value)
    if "callbacks" not in settings:
        names = [each["name"] for each in stored["callbacks"] if isinstance(each, dict)]
        if len(names) < len(stored["callbacks"]) and (given is None or lacking):
            shown = (repr(each["name"]) if isinstance(each, dict) else each for each in stored["callbacks"])
            lacking["callbacks"] = ", ".join(shown)
        settings["callbacks"] = names
    _require_all(lacking, "run_config=tune.RunConfig")
    return RunConfig(**settings)


def _given(config: Any, default: Any) -> dict[str, Any]:
    """Return the fields of `config` that differ from `default`."""
    return {name: value for name, value in vars(config).items() if value != getattr(default, name)}


def _describe_callback(callback: Callback) -> str | dict[str, str]:
    """Return the callback's name as {"name": ...} if it was created by name, else its class name."""
    name = callback._given_as
    return type(callback).__qualname__ if name is None else {"name": name}


def _describe(made: TrialScheduler | Searcher | str | None) -> dict[str, Any] | None:
    if made is None or isinstance(made, str):  # a TuneConfig has already turned names into objects
        return None
    if isinstance(made, Searcher):
        return describe_searcher(made)
    arguments = {
        name: _describe(value) if isinstance(value, TrialScheduler) else value
        for name, value in CheckedScheduler(made).arguments.items()
    }
    return {"class": SCHEDULERS.name_of(type(made)), "arguments": arguments}


def _require_all(lacking: Mapping[str, str], call: str, why: Sequence[str] = ()) -> None:
    """Raise one error that names all settings that must be given again."""
    if lacking:
        what = " and ".join(f"{name}={value}" for name, value in lacking.items())
        again = ", ".join(f"{name}={'[...]' if name == 'callbacks' else '...'}" for name in lacking)
        raise TuneArgumentError(
            f"this experiment was started with {what}, which its file cannot hold: "
            f"give it again, as Tuner.restore(path, trainable, {call}({again})); the rest stays as it was"
            + "".join(f". The reason: {each}" for each in why)
        )
