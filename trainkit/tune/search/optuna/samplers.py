"""Optuna's samplers: their seeds, restrictions and log messages.

A suggestion of a fresh TPE, random or Gaussian process sampler depends only on the study's trials and a seed.
When reused, these samplers keep state between suggestions that a restore could not rebuild: the groups of a
conditional space in the order in which trials ended, and the kernel of the last fit. CMA-ES, the genetic
samplers, quasi-random sequences and grids write their state into the study with each suggestion.
"""

from __future__ import annotations

import copy
import itertools
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainkit.errors import ConfigError

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial


@contextmanager
def without_repeated_messages(said: set[str]) -> Iterator[None]:
    """Hide Optuna's sampler log lines in this thread that are already in `said`, ignoring trial numbers."""
    here = threading.get_ident()

    def is_new(record: logging.LogRecord) -> bool:
        if record.thread != here:
            return True
        words = re.sub(r"Trial#\d+", "", record.getMessage())
        new = words not in said
        said.add(words)
        return new

    # A filter only sees records of its own logger, and each of Optuna's modules has its own logger, so all of
    # them get the filter.
    names = [name for name in list(logging.Logger.manager.loggerDict) if name.startswith("optuna.samplers")]
    loggers = [logging.getLogger(name) for name in names]
    for each in loggers:
        each.addFilter(is_new)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_new)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Optuna's log lines below WARNING, and its warnings that an option is experimental."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def default_sampler(conditional: bool) -> BaseSampler:
    """Return the default sampler of `OptunaSearch`, a TPE."""
    from optuna.samplers import TPESampler

    with quiet():
        return TPESampler(multivariate=True, group=conditional, constant_liar=True)


def _inner(sampler: BaseSampler) -> BaseSampler:
    """Return the sampler of the values that a PartialFixedSampler does not fix."""
    from optuna.samplers import PartialFixedSampler

    return _inner(sampler._base_sampler) if isinstance(sampler, PartialFixedSampler) else sampler


def follows_from_trials(sampler: BaseSampler) -> bool:
    """Return True if a fresh copy's suggestion depends only on the study's trials and the seed.

    Other samplers write counts, populations or models into the study; repeating suggestions rebuilds these.
    """
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    return type(_inner(sampler)) in (GPSampler, RandomSampler, TPESampler)


def learns_from_paused(sampler: BaseSampler) -> int:
    """Return the number of complete trials from which paused trials no longer count as pruned; 0: never do.

    TPE ranks pruned trials by their reports, after the complete ones. So TPE can build a model before enough
    trials are complete. A Gaussian process ignores pruned trials, but avoids running ones. Samplers with
    state across suggestions rely on an ended trial staying ended.
    """
    from optuna.samplers import TPESampler

    inner = _inner(sampler)
    return inner._n_startup_trials if type(inner) is TPESampler else 0


def prepared(sampler: BaseSampler, words: Callable[[int], list[int]]) -> BaseSampler:
    """Return the sampler for one suggestion, seeded for this suggestion: if possible, a fresh copy.

    Args:
        sampler: the user's sampler.
        words: function that returns a given number of 32 bit seeds.
    """
    one = copy.deepcopy(sampler) if follows_from_trials(sampler) else sampler
    generators = list(_generators(one))
    for generator, seed in zip(generators, words(len(generators)), strict=True):
        generator.rng.seed(seed)
    return one


def seed_in(sampler: BaseSampler) -> int | None:
    """Return a number drawn from the sampler's own seed; None: the user gave no seed."""
    for generator in _generators(sampler):
        if generator._rng is not None:
            return int(generator.rng.randint(2**31))
    return None


def settle(sampler: BaseSampler, seed: int) -> None:
    """Seed the scrambling of quasi-random points; a single seed determines the whole sequence."""
    from optuna.samplers import QMCSampler

    if isinstance(inner := _inner(sampler), QMCSampler):
        inner._seed = seed


def _generators(sampler: Any) -> Iterator[Any]:
    """Yield the sampler's generators, objects with an `rng` that is created on first use without a seed."""
    seen: set[int] = set()

    def look(node: Any) -> Iterator[Any]:
        for value in vars(node).values():
            if id(value) in seen or not type(value).__module__.startswith("optuna."):
                continue
            seen.add(id(value))
            if hasattr(type(value), "rng"):
                yield value
            elif hasattr(value, "__dict__"):
                yield from look(value)

    yield from look(sampler)


# --- values and results of the user ---------------------------------------------------------------


def in_params(sampler: BaseSampler, param_of: Callable[[str, Any], Any]) -> BaseSampler:
    """Return the sampler with the user's fixed values encoded for Optuna.

    Raises:
        SpaceError: a value is outside of its parameter's domain.
    """
    from optuna.samplers import CmaEsSampler, GridSampler, PartialFixedSampler

    one = copy.deepcopy(sampler)
    if isinstance(one, PartialFixedSampler):
        one._base_sampler = in_params(one._base_sampler, param_of)
        one._fixed_params = _known_by(one._fixed_params, param_of)
    elif isinstance(one, GridSampler):
        grid = one._search_space
        one._search_space = {name: [param_of(name, each) for each in grid[name]] for name in grid}
        names = one._param_names
        one._all_grids = [
            tuple(itertools.starmap(param_of, zip(names, values, strict=True))) for values in one._all_grids
        ]
    elif isinstance(one, CmaEsSampler) and one._x0 is not None:
        one._x0 = _known_by(one._x0, param_of)
    return one


def _known_by(values: Mapping[str, Any], param_of: Callable[[str, Any], Any]) -> dict[str, Any]:
    return {name: param_of(name, value) for name, value in values.items()}


def require_takes(sampler: BaseSampler, *, objectives: int, points: bool, evaluated: bool) -> None:
    """Raise an error for uses that the sampler would ignore, or at which it would fail later.

    Args:
        sampler: the user's sampler.
        objectives: number of objectives.
        points: True if points to try first exist.
        evaluated: True if points evaluated elsewhere exist.

    Raises:
        ConfigError: the sampler does not support this use.
    """
    from optuna.samplers import CmaEsSampler, GridSampler

    sampler = _inner(sampler)
    name = type(sampler).__name__
    if isinstance(sampler, CmaEsSampler) and objectives > 1:
        raise ConfigError(f"{name} optimises one metric: use NSGAIISampler, TPESampler or GPSampler")
    if isinstance(sampler, CmaEsSampler) and evaluated:
        raise ConfigError(
            f"{name} can't learn from evaluated points: pass them as source_trials, or use another sampler"
        )
    if isinstance(sampler, GridSampler) and points:
        raise ConfigError(f"{name} does not support points_to_evaluate: add the points to the grid of {name}")


def marks_of_evaluated(sampler: BaseSampler) -> dict[str, Any]:
    """Return the attributes by which a sampler accepts trials from elsewhere, as its first generation."""
    from optuna.samplers import NSGAIIISampler, NSGAIISampler

    inner = _inner(sampler)
    return {inner._get_generation_key(): 0} if isinstance(inner, (NSGAIIISampler, NSGAIISampler)) else {}


def constraints_of(sampler: BaseSampler) -> Callable[[FrozenTrial], Sequence[float]] | None:
    """Return the sampler's `constraints_func`; None if it has no such function."""
    return getattr(_inner(sampler), "_constraints_func", None)


def constraint_marks(sampler: BaseSampler, trial: FrozenTrial) -> dict[str, Any]:
    """Return the attributes that tell a sampler how far an ended trial satisfies its constraints."""
    function = constraints_of(sampler)
    ended = trial.state.name in ("COMPLETE", "PRUNED")
    return {"constraints": tuple(function(trial))} if function and ended else {}
