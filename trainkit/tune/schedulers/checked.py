"""A wrapper that reports a scheduler's exceptions and wrong answers under the scheduler's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from trainkit.errors import ConfigError, TrainkitError
from trainkit.tune.core.checks import is_mapping
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.metrics import storing_problem
from trainkit.tune.core.objectives import Objective, replaced
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.schedulers.base import CONTINUE, FAR, Decision, Donor, TrialScheduler, Verdict

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.core.capacity import ExperimentView
    from trainkit.tune.space.search_space import Space

_ON_REPORTS = (Verdict.CONTINUE, Verdict.PAUSE, Verdict.STOP)
_ON_WAITING = (Verdict.PAUSE, Verdict.STOP)
_EXAMPLE = "Decision(Verdict.STOP, {'rule': 'target'})"


class CheckedScheduler:
    """Wrapper with the scheduler methods that an experiment calls; a wrong answer raises ConfigError.

    Args:
        scheduler: the scheduler to wrap, which may be the user's own.

    Attributes:
        name: the scheduler's class name, for messages.
        gives_verdicts: True if the scheduler overrides `verdicts`, so that it may decide on paused trials.
    """

    # These methods are only declared here, because `__getattr__` wraps each method on its first use.
    completed_space: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    see: Callable[[ExperimentView], None]
    on_begin: Callable[[], None]
    on_trial_add: Callable[[str, Mapping[str, Any]], None]
    on_trial_complete: Callable[[str], None]
    on_trial_error: Callable[[str], None]
    on_trial_again: Callable[[str], None]
    on_trial_change: Callable[[str, Mapping[str, Any], str | None], None]
    on_trial_request: Callable[[str, PlacementGroupFactory, PlacementGroupFactory], None]
    on_no_more_trials: Callable[[], None]
    on_result: Callable[[str, Mapping[str, Any]], Decision]
    verdicts: Callable[[], Sequence[tuple[str, Decision]]]
    choose_trial_to_run: Callable[..., str | None]
    on_trial_resume: Callable[[str], Mapping[str, Any]]
    why_not_chosen: Callable[[str], Mapping[str, Any]]

    def __init__(self, scheduler: TrialScheduler) -> None:
        self._scheduler = scheduler
        self.name = type(scheduler).__name__
        self.label, self.hears_again = scheduler.label, scheduler.hears_again
        self.gives_verdicts = type(scheduler).verdicts is not TrialScheduler.verdicts
        # Most subclasses define `decide`, so errors name `decide` unless `on_result` is overridden.
        self._judges_by = (
            "decide()" if type(scheduler).on_result is TrialScheduler.on_result else "on_result()"
        )

    def __getattr__(self, name: str) -> Any:
        if name not in CheckedScheduler.__annotations__:
            raise AttributeError(name)
        method, check = getattr(self._scheduler, name), _CHECKS.get(name)
        if name == "on_result":
            method = self._judged
        called = self._judges_by if name == "on_result" else f"{name}()"

        def call(*args: Any, **options: Any) -> Any:
            try:
                answer = method(*args, **options)
            except Exception as error:
                about = f"trial {args[0]}" if args and isinstance(args[0], str) else ""
                self._blame(called, error, f"a report of {about}" if name == "on_result" else about)
            if check is not None and (problem := check(answer, *args, **options)) is not None:
                raise ConfigError(f"the scheduler's {self.name}.{called} {problem}")
            return answer

        setattr(self, name, call)
        return call

    def _judged(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        if VIOLATION in result:
            deciding = self._scheduler.deciding
            metric, mode = deciding.metric, deciding.mode
            goal = (Objective(metric, mode),) if metric and mode else deciding.objectives
            result = ranked_last(result, goal)
        return self._scheduler.on_result(trial_id, result)

    @property
    def arguments(self) -> dict[str, Any]:
        """The scheduler's arguments, checked to be a dictionary."""
        try:
            given: Any = self._scheduler.arguments
        except Exception as error:
            self._blame("arguments", error)
        if not isinstance(given, dict):
            raise ConfigError(
                f"the scheduler's {self.name}.arguments is {given!r}: return a dictionary of the arguments "
                f"that recreate this scheduler by {self.name}(), such as {{'target': 0.5}}"
            )
        return given

    def begin(
        self,
        space: Space,
        *,
        objectives: tuple[Objective, ...],
        metric: str | None,
        mode: str | None,
        rng: Generator,
        total_samples: int | None,
    ) -> None:
        """Pass the experiment's settings and the search space to the scheduler."""
        try:
            verb = "set_objectives()"
            self._scheduler.set_objectives(objectives)
            verb = "set_search_properties()"
            self._scheduler.set_search_properties(metric, mode, rng, total_samples)
            # A user's `set_search_properties` need not call the base class's method, so this method sets the
            # number of trials.
            self._scheduler.total_samples = total_samples
            verb = "take_space()"
            self._scheduler.take_space(space)
        except Exception as error:
            self._blame(verb, error)

    def resize(self, total_samples: int | None) -> bool:
        """Pass a changed number of trials to the scheduler; return False if the number did not change."""
        if total_samples == self._scheduler.total_samples:
            return False
        try:
            self._scheduler.resize(total_samples)
        except Exception as error:
            self._blame("resize()", error)
        self._scheduler.total_samples = total_samples
        return True

    def _blame(self, what: str, error: Exception, told_of: str = "") -> NoReturn:
        """Raise a ConfigError that names the scheduler; raise trainkit's own errors unchanged."""
        if isinstance(error, TrainkitError):
            raise error
        about = f" for {told_of}" if told_of else ""
        raise ConfigError(f"{self.name}.{what} raised {type(error).__name__}{about}: {error}") from error


def ranked_last(report: Mapping[str, Any], objectives: Sequence[Objective]) -> Mapping[str, Any]:
    """Return a report for schedulers: an infeasible report gets values that are worse than all others."""
    violation = report.get(VIOLATION, 0.0)
    if not violation > 0:  # an unknown violation, which is NaN, is not judged
        return report
    return replaced(report, dict.fromkeys(objectives, FAR * (1 + violation)))


# --- checks of an answer: each returns the error and its fix, or None ------------------------------


def _decision_problem(answer: Any, trial_id: str, result: Mapping[str, Any]) -> str | None:
    if answer is CONTINUE or (problem := _problem(answer, _ON_REPORTS)) is None:
        return None
    return f"returned {answer!r} for trial {trial_id}: {problem}"


def _verdicts_problem(answer: Any) -> str | None:
    if answer == ():
        return None
    if not isinstance(answer, Sequence):
        return f"returned {answer!r}: return a list of pairs of a trial id and a decision, such as {_EXAMPLE}"
    for each in answer:
        if not isinstance(each, tuple) or len(each) != 2:
            return f"returned {each!r} in its list: return pairs of trial id and decision, such as {_EXAMPLE}"
        if (problem := _problem(each[1], _ON_WAITING)) is not None:
            return f"returned {each[1]!r} for trial {each[0]!r}: {problem}"
    return None


def _choice_problem(
    answer: Any, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
) -> str | None:
    if answer is None or (isinstance(answer, str) and (answer in pending or answer in paused)):
        return None
    return f"returned {answer!r}: return one of the ids in `pending` or `paused`, or None to start no trial"


def _facts_problem(answer: Any, trial_id: str) -> str | None:
    if is_mapping(answer):
        unstorable = storing_problem(answer)
        return unstorable and f"returned facts for trial {trial_id} that cannot be stored: {unstorable}"
    return (
        f"returned {answer!r} for trial {trial_id}: give a dictionary of facts, such as {{'rung': 2}} or {{}}"
    )


_CHECKS: Mapping[str, Callable[..., str | None]] = {
    "on_result": _decision_problem,
    "verdicts": _verdicts_problem,
    "choose_trial_to_run": _choice_problem,
    "on_trial_resume": _facts_problem,
    "why_not_chosen": _facts_problem,
}


def _problem(decision: Any, verdicts: Sequence[Verdict]) -> str | None:
    if not isinstance(decision, Decision):
        return f"return a Decision of trainkit.tune.schedulers, such as {_EXAMPLE}"
    verdict: Any = decision.verdict
    # A string such as "STOP" equals the verdict, but is not accepted, so the type is checked too.
    if not isinstance(verdict, Verdict) or verdict not in verdicts:
        return f"the verdict must be {' or '.join(f'Verdict.{each}' for each in verdicts)}"
    reason: Any = decision.reason
    if not is_mapping(reason):
        return f"the reason must be a dictionary of facts, as in {_EXAMPLE}"
    if (unstorable := storing_problem(reason)) is not None:
        return f"a fact cannot be stored: {unstorable}"
    if decision.donors or decision.request is not None:
        return _change_problem(decision)
    return None


def _change_problem(decision: Decision) -> str | None:
    if decision.verdict is not Verdict.PAUSE:
        return "donors and a request need Verdict.PAUSE, because a running trial cannot change"
    donors: Any = decision.donors
    well_made = isinstance(donors, (tuple, list)) and all(
        isinstance(each, Donor) and isinstance(each.trial_id, str) and isinstance(each.config, Mapping)
        for each in donors
    )
    if not well_made:
        return "donors must be Donor objects, such as (Donor(trial_id, {'lr': 0.1}),)"
    request: Any = decision.request
    if request is not None and not isinstance(request, PlacementGroupFactory):
        return "the request must be a tune.PlacementGroupFactory"
    return None
