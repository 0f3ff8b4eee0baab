"""Optuna's samplers: their seeds, restrictions and log messages.

A suggestion of a fresh TPE, random or Gaussian process sampler depends only on the study's trials and a seed.
If such a sampler is used for several suggestions, it keeps state that a restore can't rebuild: the groups of
a conditional space in the order in which trials ended, and the kernel of the last fit. CMA-ES, the genetic
samplers, quasi-random sequences and grids write their state into the study with each suggestion.
"""

from __future__ import annotations

import copy
import functools
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
    """Hide log lines of Optuna's samplers in this thread that repeat a line in `said` for another trial."""
    here = threading.get_ident()

    def is_new(record: logging.LogRecord) -> bool:
        if record.thread != here:
            return True
        words = re.sub(r"Trial#\d+", "", record.getMessage())
        new = words not in said
        said.add(words)
        return new

    # A filter sees only the records of its own logger, and each module of Optuna has its own logger, so the
    # filter is added to every logger.
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
    """Return the default sampler of `OptunaSearch`, a TPESampler."""
    from optuna.samplers import TPESampler

    with quiet():
        return TPESampler(multivariate=True, group=conditional, constant_liar=True)


def _inner(sampler: BaseSampler) -> BaseSampler:
    """Return the sampler inside a PartialFixedSampler; any other sampler is returned unchanged."""
    from optuna.samplers import PartialFixedSampler

    return _inner(sampler._base_sampler) if isinstance(sampler, PartialFixedSampler) else sampler


def follows_from_trials(sampler: BaseSampler) -> bool:
    """Return True if a suggestion of a fresh copy depends only on the study's trials and the seed.

    Other samplers write counts, populations or models into the study. A restore repeats the suggestions, so
    the samplers write their counts, populations or models again.
    """
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    return type(_inner(sampler)) in (GPSampler, RandomSampler, TPESampler)


def learns_from_paused(sampler: BaseSampler) -> int:
    """Return the number of complete trials below which paused trials count as pruned.

    For samplers other than TPE, the number is 0, so paused trials never count as pruned. TPE ranks pruned
    trials by their reports, after complete trials. TPE can therefore build a model from pruned trials while
    few trials are complete. A Gaussian process ignores pruned trials, but avoids configurations of running
    trials. Samplers that keep state between suggestions assume that an ended trial never runs again.
    """
    from optuna.samplers import TPESampler

    inner = _inner(sampler)
    return inner._n_startup_trials if type(inner) is TPESampler else 0


def prepared(sampler: BaseSampler, words: Callable[[int], list[int]]) -> BaseSampler:
    """Return the sampler, or a fresh copy if `follows_from_trials` holds, with the seeds for one suggestion.

    Args:
        sampler: the user's sampler.
        words: function of a number n that returns n seeds of 32 bits.
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
    """Seed the scrambling of a QMCSampler, whose whole quasi-random sequence depends on a single seed."""
    from optuna.samplers import QMCSampler

    if isinstance(inner := _inner(sampler), QMCSampler):
        inner._seed = seed


def _generators(sampler: Any) -> Iterator[Any]:
    """Yield the sampler's random generators: objects with an `rng` that is created unseeded on first use."""
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
    """Return a copy of the sampler in which values that the user gave are encoded for Optuna.

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
    if (function := constraints_of(one)) is not None and not isinstance(one, PartialFixedSampler):
        # The strategies of genetic samplers also hold the function.
        for holder in (one, getattr(one, "_after_trial_strategy", one)):
            vars(holder)["_constraints_func"] = functools.partial(_limited_by, function)
    return one


def _limited_by(function: Callable[[FrozenTrial], Sequence[float]], trial: FrozenTrial) -> Sequence[float]:
    """Return the values of a user's `constraints_func`; its error names the function and the numbers."""
    try:
        return function(trial)
    except Exception as error:
        problem = (
            f"the sampler's constraints_func raised {type(error).__name__}: {error}: use the numbers in "
        )
        raise ConfigError(f"{problem}trial.user_attrs: {', '.join(sorted(trial.user_attrs))}") from error


def _known_by(values: Mapping[str, Any], param_of: Callable[[str, Any], Any]) -> dict[str, Any]:
    return {name: param_of(name, value) for name, value in values.items()}


def require_takes(sampler: BaseSampler, *, objectives: int, points: bool, evaluated: bool) -> None:
    """Raise an error for inputs that the sampler would ignore, or that would make it fail later.

    Args:
        sampler: the user's sampler.
        objectives: number of objectives.
        points: True if the user gave points to try first.
        evaluated: True if the user gave points that were evaluated elsewhere.

    Raises:
        ConfigError: the sampler does not support these inputs.
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
    """Return the trial attributes by which a genetic sampler counts a trial in its first generation."""
    from optuna.samplers import NSGAIIISampler, NSGAIISampler

    inner = _inner(sampler)
    return {inner._get_generation_key(): 0} if isinstance(inner, (NSGAIIISampler, NSGAIISampler)) else {}


def heeds_constraints(sampler: BaseSampler) -> bool:
    """Return True if the sampler reads constraints, as do TPE, NSGA-II, NSGA-III and the Gaussian process.

    Samplers of Optuna 4 read only the constraints of their `constraints_func`.
    """
    from optuna.trial import Trial

    return hasattr(Trial, "set_constraint") and hasattr(_inner(sampler), "_constraints_func")


def constraints_of(sampler: BaseSampler) -> Callable[[FrozenTrial], Sequence[float]] | None:
    """Return the sampler's `constraints_func`; None if it has no such function."""
    return getattr(_inner(sampler), "_constraints_func", None)


def constraint_marks(sampler: BaseSampler, trial: FrozenTrial) -> dict[str, Any]:
    """Return the trial attributes with the values of the sampler's constraints for an ended trial."""
    function = constraints_of(sampler)
    ended = trial.state.name in ("COMPLETE", "PRUNED")
    return {"constraints": tuple(function(trial))} if function and ended else {}
