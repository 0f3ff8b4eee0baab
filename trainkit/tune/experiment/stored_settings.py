"""Settings of an experiment in the form that its file stores, and the settings that a restore reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from trainkit.errors import TuneArgumentError
from trainkit.registry import Registry
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, TuneConfig
from trainkit.tune.core import seeds
from trainkit.tune.core.constraints import constraints_of
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import shortened_repr
from trainkit.tune.core.stoppers import describe_stop, stop_of
from trainkit.tune.core.trial import experiment_prefix
from trainkit.tune.schedulers import SCHEDULERS, TrialScheduler, create_scheduler, described_scheduler
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search import (
    SEARCHERS,
    Searcher,
    create_searcher,
    describe_searcher,
    described_searcher,
)
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import holds_opaque, why_not_made_again
from trainkit.tune.sync.storage import Address, describe_address

_POLICIES: dict[str, Callable[..., Any]] = {
    "failure_config": FailureConfig,
    "checkpoint_config": CheckpointConfig,
    "sync_config": SyncConfig,
}

_NOT_KEPT = ("seed", "chdir_to_trial_dir")
"""TuneConfig settings stored elsewhere: `seed` among the experiment's facts, the other in the RunConfig."""

_FIXED = ("constraints", "learn_from", "priors")
"""TuneConfig settings that a restore cannot change, because the earlier suggestions depend on them."""

# A restore creates only the objects of these settings from the file. The user must pass all other objects
# again.
_MADE_AGAIN: dict[str, tuple[Callable[..., TrialScheduler | Searcher | None], Registry, str]] = {
    "scheduler": (described_scheduler, SCHEDULERS, "base_scheduler"),
    "search_alg": (described_searcher, SEARCHERS, "searcher"),
}
"""Function that makes an object from its description, registry of classes, and argument that is wrapped."""


def new_facts(
    trainable: str, space: Space, tune: TuneConfig, run: RunConfig, address: Address | None, created: float
) -> dict[str, Any]:
    """Return the properties to store about a new experiment.

    If no seed is given, the facts include a random seed.

    Args:
        trainable: name of the trainable.
        space: the search space.
        tune: settings of the search.
        run: settings of the run.
        address: storage address that the folder is copied to; None: no copy.
        created: date of creation, in seconds since 1970.
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
    policies = {name: getattr(run, name) for name in _POLICIES}
    kept = {each.name: getattr(tune, each.name) for each in fields(TuneConfig) if each.name not in _NOT_KEPT}
    return {
        "tune_config": {
            **kept,
            "metric": describe_metric(tune),
            "mode": tune.one_mode or [each.mode for each in tune.objectives] or None,
            "search_alg": _describe(tune.search_alg),
            "scheduler": _describe(tune.scheduler),
        },
        "run_config": {
            "stop": describe_stop(run.stop),
            "callbacks": [
                _describe_callback(callback) for callback in cast("Sequence[Callback]", run.callbacks)
            ],
            **{name: None if policy is None else vars(policy) for name, policy in policies.items()},
            "verbose": run.verbose,
            "log_to_file": run.log_to_file,
            "chdir_to_trial_dir": run.chdir_to_trial_dir,
            "default_loggers": list(run.default_loggers),
        },
    }


def describe_metric(tune: TuneConfig) -> str | list[str] | None:
    """Return the metric to optimise, or the metrics of several objectives."""
    return tune.one_metric or [each.metric for each in tune.objectives] or None


def _comparable(name: str, value: Any) -> Any:
    if name == "learn_from":  # the name of an earlier experiment is its folder as the user spells it
        return [{**source, "name": ""} for source in value or ()]
    return constraints_of(list(value or ())) if name == "constraints" else dict(value or {})


def _have_grown(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if `new` has the earlier experiments of `old`, perhaps with later trials and reports.

    Running trials may have new values, so it is enough if one trial of each experiment has its old value.
    """
    return len(old) == len(new) and all(
        before.get("mode") == now.get("mode")
        and _values(before).keys() <= _values(now).keys()
        and _values(before).items() & _values(now).items()
        for before, now in zip(old, new, strict=True)
    )


def _values(source: Mapping[str, Any]) -> dict[frozenset[tuple[str, Any]], float | None]:
    return dict(zip(map(frozenset, map(dict.items, source["configs"])), source["values"], strict=True))


def restored_tune_config(stored: Mapping[str, Any], given: TuneConfig | None) -> TuneConfig:
    """Return the stored TuneConfig, overridden by the fields of `given` that differ from their defaults.

    Raises:
        ConfigError: the file could not store a custom scheduler or searcher, or a function; or `given`
            changes a setting that a restore cannot change.
    """
    settings = _given(given or TuneConfig(), TuneConfig())
    for name in settings.keys() & set(_FIXED):
        new, old = settings[name], stored.get(name)
        # The user passes objects again that the file cannot store.
        if holds_opaque(old) or _comparable(name, new) == _comparable(name, old):
            continue
        if name != "learn_from" or not _have_grown(old or (), new or ()):
            raise TuneArgumentError(
                f"TuneConfig({name}={shortened_repr(new)}) differs from the experiment's "
                f"{shortened_repr(old)}: leave it out, or start a new experiment"
            )
        # The earlier suggestions depend on the trials that were read at the start.
        logger.warning("learn_from has changed: the experiment uses the trials that it read at its start")
        del settings[name]
    lacking, why = {}, []
    for name, value in stored.items():
        if name in settings:
            continue
        if name not in _MADE_AGAIN and holds_opaque(value):
            lacking[name] = "an object" if name == "priors" else "a function"
            continue
        settings[name] = value
        if name in _MADE_AGAIN and value is not None:
            make, registry, inner = _MADE_AGAIN[name]
            settings[name] = make(value)
            if settings[name] is None:
                lacking[name] = value["class"]
                why.append(why_not_made_again(registry, value, inner=inner))
    # Earlier versions drew at random by default, and did not store a searcher.
    settings["search_alg"] = settings.get("search_alg") or create_searcher("random")
    # An experiment whose file has no scheduler stops no trial early.
    settings["scheduler"] = settings.get("scheduler") or create_scheduler("fifo")
    _require_all(lacking, "tune_config=tune.TuneConfig", why)
    return TuneConfig(**settings)


def restored_run_config(stored: Mapping[str, Any], given: RunConfig | None) -> RunConfig:
    """Return the stored RunConfig, overridden by `given`, except for the name and the folder.

    Callbacks that were given by name are created again. Callback objects can't be stored, so they are taken
    from `given`, which may omit callbacks.

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
    # if a name was given, the TuneConfig has already replaced it by an object
    if made is None or isinstance(made, str):
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
            f"this experiment was started with {what}, which its file cannot store: "
            f"pass it again, as Tuner.restore(path, trainable, {call}({again})); all other settings are kept"
            + "".join(f". The reason: {each}" for each in why)
        )
