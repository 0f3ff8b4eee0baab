"""Settings of an experiment as text for its store, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, TuneConfig
from trainkit.tune.controller.rules import describe_stop, stop_of
from trainkit.tune.core import seeds
from trainkit.tune.core.trial import experiment_prefix
from trainkit.tune.schedulers import SCHEDULERS, described_scheduler
from trainkit.tune.schedulers.base import TrialScheduler
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search import describe_searcher, described_searcher
from trainkit.tune.search.base import Searcher
from trainkit.tune.space.encoding import holds_opaque
from trainkit.tune.space.search_space import Space
from trainkit.tune.sync.storage import Address, describe_address

_POLICIES: dict[str, Callable[..., Any]] = {
    "failure_config": FailureConfig,
    "checkpoint_config": CheckpointConfig,
    "sync_config": SyncConfig,
}

# What a file may name; anything else is given again by the user, never looked up and called.
_MADE_AGAIN: dict[str, Callable[[Mapping[str, Any]], TrialScheduler | Searcher | None]] = {
    "scheduler": described_scheduler,
    "search_alg": described_searcher,
}


def new_facts(
    trainable: str, space: Space, tune: TuneConfig, run: RunConfig, address: Address | None, created: float
) -> dict[str, Any]:
    """Return what holds for the whole of a new experiment; one without a seed is given one.

    Args:
        trainable: its name.
        space: the search space.
        tune: what is searched for, and how.
        run: where it is kept, when trials end.
        address: where its folder is copied to.
        created: the date, in seconds since 1970.
    """
    seed = tune.seed if tune.seed is not None else seeds.fresh_seed()
    return {
        "created": created,
        "trainable": trainable,
        "seed": seed,
        "seed_given": tune.seed is not None,
        "prefix": experiment_prefix(seed, trainable),
        "space": space.tree,
        **describe_settings(tune, run),
        **describe_address(address),
    }


def describe_settings(tune: TuneConfig, run: RunConfig) -> dict[str, Any]:
    """Return what the experiment's file keeps of the two."""
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
            "callbacks": [type(callback).__qualname__ for callback in run.callbacks],
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
    """Return what is optimised: a metric, or those of several objectives."""
    return tune.one_metric or [each.metric for each in tune.objectives] or None


def restored_tune_config(stored: Mapping[str, Any], given: TuneConfig | None) -> TuneConfig:
    """Return what the file says, with what `given` says besides: all that is not left at its default.

    Raises:
        ConfigError: the file can't say, since a scheduler or searcher of the user's own was used.
    """
    settings = _given(given or TuneConfig(), TuneConfig())
    lacking = {}
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
    _require_all(lacking, "tune_config=tune.TuneConfig")
    return TuneConfig(**settings)


def restored_run_config(stored: Mapping[str, Any], given: RunConfig | None) -> RunConfig:
    """The same for the rest; name and folder follow from where the file lies.

    Callbacks, which no file can hold, are those of `given`, be it none.

    Raises:
        ConfigError: the file can't say, since a stop function was used, or callbacks and nothing is given.
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
    if stored["callbacks"] and "callbacks" not in settings and (given is None or lacking):
        lacking["callbacks"] = ", ".join(stored["callbacks"])
    _require_all(lacking, "run_config=tune.RunConfig")
    return RunConfig(**settings)


def _given(config: Any, default: Any) -> dict[str, Any]:
    """The fields of `config` that are not as in `default`."""
    return {name: value for name, value in vars(config).items() if value != getattr(default, name)}


def _describe(made: TrialScheduler | Searcher | str | None) -> dict[str, Any] | None:
    if made is None or isinstance(made, str):  # the configuration has made objects of names
        return None
    if isinstance(made, Searcher):
        return describe_searcher(made)
    arguments = {
        name: _describe(value) if isinstance(value, TrialScheduler) else value
        for name, value in CheckedScheduler(made).arguments.items()
    }
    return {"class": SCHEDULERS.name_of(type(made)), "arguments": arguments}


def _require_all(lacking: Mapping[str, str], call: str) -> None:
    """Say all that is to be given again at once, so that it is given in one call."""
    if lacking:
        what = " and ".join(f"{name}={value}" for name, value in lacking.items())
        again = ", ".join(f"{name}={'[...]' if name == 'callbacks' else '...'}" for name in lacking)
        raise ConfigError(
            f"this experiment was started with {what}, which its file cannot hold: "
            f"give it again, as Tuner.restore(path, trainable, {call}({again})); the rest stays as it was"
        )
