"""Optuna's samplers: seeds, restrictions, and messages while they are asked.

A suggestion of TPE, random search and the Gaussian process follows from the study's trials and a seed, once
the sampler is fresh. They keep things between suggestions (the groups of a conditional space in the order in
which trials ended, the kernel of the last fit), which a restore could not rebuild. CMA-ES, the genetic
samplers, quasi-random sequences and grids write what they need into the study, as they are asked.
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
    """Hide log lines of Optuna's samplers, in this thread, that are in `said` but for the trial's number."""
    here = threading.get_ident()

    def is_new(record: logging.LogRecord) -> bool:
        if record.thread != here:
            return True
        words = re.sub(r"Trial#\d+", "", record.getMessage())
        new = words not in said
        said.add(words)
        return new

    # A filter sees what is logged to the very logger that has it, and each module of theirs has its own.
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
    """No line of Optuna's on the console, and no warning that an option is new."""
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
    """TPE, as `OptunaSearch` has it where the user gives none."""
    from optuna.samplers import TPESampler

    with quiet():
        return TPESampler(multivariate=True, group=conditional, constant_liar=True)


def _inner(sampler: BaseSampler) -> BaseSampler:
    """The one that samples what a PartialFixedSampler leaves open."""
    from optuna.samplers import PartialFixedSampler

    return _inner(sampler._base_sampler) if isinstance(sampler, PartialFixedSampler) else sampler


def follows_from_trials(sampler: BaseSampler) -> bool:
    """True if a fresh copy's suggestion follows from the study's trials and its seed alone.

    Others write counts, populations or models into the study as they are asked, which asking again rebuilds.
    """
    from optuna.samplers import GPSampler, RandomSampler, TPESampler

    return type(_inner(sampler)) in (GPSampler, RandomSampler, TPESampler)


def learns_from_paused(sampler: BaseSampler) -> int:
    """With how many complete trials the sampler has no more use for paused ones as pruned; 0: it never has.

    TPE ranks pruned trials by their reports, after the complete ones: so it can model before enough of these
    are there. A Gaussian process leaves them out, but keeps away from those that run. Samplers that go from
    the first suggestion to the last rely on it that what has ended stays so.
    """
    from optuna.samplers import TPESampler

    inner = _inner(sampler)
    return inner._n_startup_trials if type(inner) is TPESampler else 0


def prepared(sampler: BaseSampler, words: Callable[[int], list[int]]) -> BaseSampler:
    """The sampler for one suggestion: fresh where it can be, and seeded for it.

    Args:
        sampler: as it was given.
        words: so many seeds of 32 bits.
    """
    one = copy.deepcopy(sampler) if follows_from_trials(sampler) else sampler
    generators = list(_generators(one))
    for generator, seed in zip(generators, words(len(generators)), strict=True):
        generator.rng.seed(seed)
    return one


def seed_in(sampler: BaseSampler) -> int | None:
    """A number that follows from the seed the user gave the sampler; None: none was given."""
    for generator in _generators(sampler):
        if generator._rng is not None:
            return int(generator.rng.randint(2**31))
    return None


def settle(sampler: BaseSampler, seed: int) -> None:
    """Seed what is one for the whole sequence, the scrambling of quasi-random points."""
    from optuna.samplers import QMCSampler

    if isinstance(inner := _inner(sampler), QMCSampler):
        inner._seed = seed


def _generators(sampler: Any) -> Iterator[Any]:
    """Optuna's generators in the sampler: they have an `rng`, made when first used if there is no seed."""
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


# --- values and results of the user's -------------------------------------------------------------


def in_params(sampler: BaseSampler, param_of: Callable[[str, Any], Any]) -> BaseSampler:
    """The sampler with the values that the user fixed in it by what Optuna knows them by.

    Raises:
        SpaceError: a value is not one of its parameter's.
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
    """Refuse what the sampler would fail at later, or leave out.

    Args:
        sampler: of the user's.
        objectives: how many there are.
        points: there are points to try first.
        evaluated: there are points that were evaluated elsewhere.

    Raises:
        ConfigError: the sampler can't do that.
    """
    from optuna.samplers import CmaEsSampler, GridSampler

    sampler = _inner(sampler)
    name = type(sampler).__name__
    if isinstance(sampler, CmaEsSampler) and objectives > 1:
        raise ConfigError(
            f"{name} optimises one metric, and there are {objectives}: take NSGAIISampler, TPESampler or "
            "GPSampler"
        )
    if isinstance(sampler, CmaEsSampler) and evaluated:
        raise ConfigError(
            f"{name} learns nothing from points evaluated elsewhere: hand them to it as source_trials, or "
            "take another sampler"
        )
    if isinstance(sampler, GridSampler) and points:
        raise ConfigError(f"{name} tries its own grid, and no points_to_evaluate: put them into the grid")


def marks_of_evaluated(sampler: BaseSampler) -> dict[str, Any]:
    """Return the attributes by which a sampler takes trials from elsewhere: the first generation."""
    from optuna.samplers import NSGAIIISampler, NSGAIISampler

    inner = _inner(sampler)
    return {inner._get_generation_key(): 0} if isinstance(inner, (NSGAIIISampler, NSGAIISampler)) else {}


def constraints_of(sampler: BaseSampler) -> Callable[[FrozenTrial], Sequence[float]] | None:
    """Return the sampler's `constraints_func`; None: it has none."""
    return getattr(_inner(sampler), "_constraints_func", None)


def constraint_marks(sampler: BaseSampler, trial: FrozenTrial) -> dict[str, Any]:
    """Return the attributes by which a sampler knows how far a trial that has ended keeps its constraints."""
    function = constraints_of(sampler)
    ended = trial.state.name in ("COMPLETE", "PRUNED")
    return {"constraints": tuple(function(trial))} if function and ended else {}
