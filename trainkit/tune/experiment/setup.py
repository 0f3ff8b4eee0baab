"""Search space, searcher, source of trials and scheduler of an experiment, made from its settings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from trainkit.errors import TuneArgumentError
from trainkit.tune.config import TuneConfig
from trainkit.tune.core.objectives import Objective
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.core.trial import Namer
from trainkit.tune.schedulers import SCHEDULERS, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search import SEARCHERS, Searcher, create_searcher
from trainkit.tune.search.base import called
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space

DEFAULT = "auto" if "auto" in SEARCHERS.own_names() else "random"
"""Name of the default searcher and the default scheduler, which plugins add."""
FEWEST = 10
"""The smallest number of samples at which the default scheduler stops trials."""

Part = TypeVar("Part")


def make_space(param_space: Mapping[str, Any] | None, tune: TuneConfig) -> Space:
    """Return the search space, including the scheduler's additions.

    Raises:
        SpaceError: the space is invalid.
    """
    if isinstance(tune.scheduler, TrialScheduler):
        param_space = CheckedScheduler(tune.scheduler).completed_space(param_space or {})
    return Space.of(param_space)


def make_parts(
    tune: TuneConfig,
    space: Space,
    facts: Mapping[str, Any],
    *,
    trainable_name: str,
    request_of: Callable[[dict[str, Any]], PlacementGroupFactory] | None = None,
    rehearsal: bool = False,
) -> tuple[Searcher, TrialSource, TrialScheduler]:
    """Return copies of searcher and scheduler for one run, and the source of trials of this searcher.

    The user's objects stay unchanged, so that another Tuner can use them.

    Args:
        tune: the settings.
        space: space of the experiment.
        facts: stored facts of the experiment.
        trainable_name: name of the trainable, for names of trials.
        request_of: function that returns the resource request for a configuration.
        rehearsal: True: the searcher only replays earlier suggestions, and must have no external effects, for
            example on its database.
    """
    seed = facts["seed"]
    searcher = _make_searcher(tune, space, seed, rehearsal=rehearsal)
    source = TrialSource(
        searcher,
        space,
        seed=seed,
        allow_duplicates=tune.allow_duplicates,
        prefix=facts["prefix"],
        trainable_name=trainable_name,
        request_of=request_of,
        namer=Namer(tune.trial_name_creator, tune.trial_dirname_creator),
    )
    # The scheduler starts with the original number of trials; a replay notifies the scheduler of later
    # changes.
    total = facts.get("first_total_samples", source.total)
    return searcher, source, _make_scheduler(tune, space, seed, searcher, total)


def default_searcher(tune: TuneConfig) -> Searcher:
    """Return a new searcher for settings without one."""
    # Population based training compares trials that start with independent configurations.
    name = DEFAULT if tune.learn_from or tune.priors or population_of(tune) is None else "random"
    return create_searcher(name, num_samples=tune.num_samples)


def default_scheduler(tune: TuneConfig, searcher: Searcher | str, space: Space) -> TrialScheduler:
    """Return a new scheduler for settings without a scheduler.

    It is the scheduler "auto" where the searcher is "auto" and learns from the results of `FEWEST` or more
    samples. Other searchers count the last report of a stopped trial as its result, and few samples gain
    little.
    """
    is_known = DEFAULT in SCHEDULERS.own_names() and isinstance(searcher, SEARCHERS.get(DEFAULT))
    is_long = is_known and not 0 <= tune.num_samples < FEWEST
    learns = is_long and cast("Any", searcher).can_learn(space, tune.one_metric, tune.one_mode)
    return cast("TrialScheduler", SCHEDULERS.get(DEFAULT if learns else "fifo")())


def population_of(tune: TuneConfig) -> PopulationBasedTraining | None:
    """Return the population based training that decides about trials, or None."""
    deciding = getattr(tune.scheduler, "deciding", None)
    return deciding if isinstance(deciding, PopulationBasedTraining) else None


def _make_searcher(tune: TuneConfig, space: Space, seed: int, *, rehearsal: bool) -> Searcher:
    given = default_searcher(tune) if tune.search_alg is None else cast("Searcher", tune.search_alg)
    searcher = _copied(
        "search_alg", given, called(given).rehearsal if rehearsal else lambda: copy.deepcopy(given)
    )
    if tune.constraints:
        called(searcher).set_constraints(tune.limits)
    if tune.learn_from is not None or tune.priors:
        called(searcher).learn_from(tune.learn_from, tune.priors, tune.one_metric, tune.one_mode)
    if tune.objectives:
        called(searcher).set_objectives(tune.objectives)
    called(searcher).begin(
        space, metric=tune.one_metric, mode=tune.one_mode, num_samples=tune.num_samples, seed=seed
    )
    return searcher


def _make_scheduler(
    tune: TuneConfig, space: Space, seed: int, searcher: Searcher, total_samples: int | None
) -> TrialScheduler:
    given = cast("TrialScheduler | None", tune.scheduler)
    if given is None:  # an empty collection may be a scheduler too
        given = default_scheduler(tune, searcher, space)
    scheduler = _copied("scheduler", given, lambda: copy.deepcopy(given))
    # FIFOScheduler needs no random generator. If no generator is made, NumPy is not imported; its import
    # would take almost as long as the import of the tuner.
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
            f"{name}={type(given).__name__} can't be copied: {type(error).__name__}: {error}. An experiment "
            "needs its own copy: create locks, files and connections at first use, or define __deepcopy__"
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
