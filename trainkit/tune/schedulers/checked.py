"""A scheduler whose errors and wrong answers are reported as its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from trainkit.errors import ConfigError, TrainkitError
from trainkit.tune.core.checks import is_mapping
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.schedulers.base import CONTINUE, Decision, Donor, TrialScheduler, Verdict

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.core.capacity import ExperimentView
    from trainkit.tune.core.objectives import Objective
    from trainkit.tune.space.search_space import Space

_ON_REPORTS = (Verdict.CONTINUE, Verdict.PAUSE, Verdict.STOP)
_ON_WAITING = (Verdict.PAUSE, Verdict.STOP)
_EXAMPLE = "Decision(Verdict.STOP, {'rule': 'target'})"


class CheckedScheduler:
    """Has the scheduler's methods that an experiment calls; each may raise ConfigError.

    Args:
        scheduler: which may be the user's own.

    Attributes:
        name: of its class, for messages.
        gives_verdicts: it may decide on trials that wait.
    """

    def __init__(self, scheduler: TrialScheduler) -> None:
        self._scheduler = scheduler
        self.name = type(scheduler).__name__
        self.gives_verdicts = type(scheduler).verdicts is not TrialScheduler.verdicts
        # The rule is what most define: then it is what they find again.
        self._judges_by = (
            "decide()" if type(scheduler).on_result is TrialScheduler.on_result else "on_result()"
        )

    @property
    def label(self) -> str:
        """How messages call it."""
        return self._scheduler.label

    @property
    def hears_again(self) -> bool:
        """As the scheduler's."""
        return self._scheduler.hears_again

    @property
    def arguments(self) -> dict[str, Any]:
        """As the scheduler's, and a dictionary indeed."""
        try:
            given: Any = self._scheduler.arguments
        except Exception as error:
            self._blame("arguments", error)
        if not isinstance(given, dict):
            raise ConfigError(
                f"the scheduler's {self.name}.arguments is {given!r}: return a dictionary of what "
                f"{self.name}() takes to make this scheduler again, such as {{'target': 0.5}}"
            )
        return given

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        """As the scheduler's."""
        try:
            return self._scheduler.completed_space(space)
        except Exception as error:
            self._blame("completed_space()", error)

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
        """Give it what the experiment decides, and the space."""
        try:
            verb = "set_objectives()"
            self._scheduler.set_objectives(objectives)
            verb = "set_search_properties()"
            self._scheduler.set_search_properties(metric, mode, rng, total_samples)
            verb = "take_space()"
            self._scheduler.take_space(space)
        except Exception as error:
            self._blame(verb, error)

    # --- told -------------------------------------------------------------------------------------

    def see(self, view: ExperimentView) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.see(view)
        except Exception as error:
            self._blame("see()", error)

    def on_begin(self) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_begin()
        except Exception as error:
            self._blame("on_begin()", error)

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_trial_add(trial_id, config)
        except Exception as error:
            self._blame("on_trial_add()", error, f"trial {trial_id}")

    def on_trial_complete(self, trial_id: str) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_trial_complete(trial_id)
        except Exception as error:
            self._blame("on_trial_complete()", error, f"trial {trial_id}")

    def on_trial_error(self, trial_id: str) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_trial_error(trial_id)
        except Exception as error:
            self._blame("on_trial_error()", error, f"trial {trial_id}")

    def on_trial_again(self, trial_id: str) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_trial_again(trial_id)
        except Exception as error:
            self._blame("on_trial_again()", error, f"trial {trial_id}")

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_trial_change(trial_id, config, donor)
        except Exception as error:
            self._blame("on_trial_change()", error, f"trial {trial_id}")

    def on_trial_request(
        self, trial_id: str, request: PlacementGroupFactory, before: PlacementGroupFactory
    ) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_trial_request(trial_id, request, before)
        except Exception as error:
            self._blame("on_trial_request()", error, f"trial {trial_id}")

    def on_no_more_trials(self) -> None:
        """As the scheduler's."""
        try:
            self._scheduler.on_no_more_trials()
        except Exception as error:
            self._blame("on_no_more_trials()", error)

    # --- asked ------------------------------------------------------------------------------------

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        """As the scheduler's, and a decision indeed."""
        try:
            decision = self._scheduler.on_result(trial_id, result)
        except Exception as error:
            self._blame(self._judges_by, error, f"a report of trial {trial_id}")
        if decision is CONTINUE:
            return decision
        if (problem := _problem(decision, _ON_REPORTS)) is not None:
            raise ConfigError(
                f"the scheduler's {self.name}.{self._judges_by} returned {decision!r} for trial "
                f"{trial_id}: {problem}"
            )
        return decision

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        """As the scheduler's, and decisions indeed."""
        try:
            verdicts: Any = self._scheduler.verdicts()
        except Exception as error:
            self._blame("verdicts()", error)
        if verdicts == ():
            return ()
        if not isinstance(verdicts, Sequence):
            raise ConfigError(
                f"the scheduler's {self.name}.verdicts() returned {verdicts!r}: return a list of pairs of a "
                f"trial's id and a decision on it, such as {_EXAMPLE}"
            )
        for each in verdicts:
            if not isinstance(each, tuple) or len(each) != 2:
                raise ConfigError(
                    f"the scheduler's {self.name}.verdicts() has {each!r}: give pairs of a trial's id and "
                    f"a decision on it, such as {_EXAMPLE}"
                )
            if (problem := _problem(each[1], _ON_WAITING)) is not None:
                raise ConfigError(
                    f"the scheduler's {self.name}.verdicts() has {each[1]!r} on {each[0]!r}: {problem}"
                )
        return verdicts

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        """As the scheduler's, and one of those that wait."""
        try:
            chosen: Any = self._scheduler.choose_trial_to_run(pending, paused, new=new)
        except Exception as error:
            self._blame("choose_trial_to_run()", error)
        if chosen is None or (isinstance(chosen, str) and (chosen in pending or chosen in paused)):
            return chosen
        raise ConfigError(
            f"the scheduler's {self.name}.choose_trial_to_run() returned {chosen!r}: return one of the ids "
            "in `pending` or `paused`, or None for none of them now"
        )

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        """As the scheduler's, and facts indeed."""
        try:
            facts: Any = self._scheduler.on_trial_resume(trial_id)
        except Exception as error:
            self._blame("on_trial_resume()", error, f"trial {trial_id}")
        if not is_mapping(facts):
            raise ConfigError(
                f"the scheduler's {self.name}.on_trial_resume() returned {facts!r} for trial {trial_id}: "
                "return a dictionary of facts, such as {'rung': 2}, or an empty one"
            )
        return facts

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        """As the scheduler's, and facts indeed."""
        try:
            facts: Any = self._scheduler.why_not_chosen(trial_id)
        except Exception as error:
            self._blame("why_not_chosen()", error)
        if not is_mapping(facts):
            raise ConfigError(
                f"the scheduler's {self.name}.why_not_chosen() returned {facts!r} for trial {trial_id}: "
                "return a dictionary of facts, such as {'rank': 3}, or an empty one"
            )
        return facts

    def _blame(self, what: str, error: Exception, told_of: str = "") -> NoReturn:
        """Raise `error` as the scheduler's, unless it says by itself what is wrong."""
        if isinstance(error, TrainkitError):
            raise error
        about = f", told of {told_of}" if told_of else ""
        raise ConfigError(
            f"the scheduler's {self.name}.{what} raised {type(error).__name__}{about}: {error}"
        ) from error


def _problem(decision: Any, verdicts: Sequence[Verdict]) -> str | None:
    """What is wrong with a decision that a scheduler has returned, and what would be right."""
    if not isinstance(decision, Decision):
        return f"return a Decision of trainkit.tune.schedulers, such as {_EXAMPLE}"
    verdict: Any = decision.verdict
    if not isinstance(verdict, Verdict) or verdict not in verdicts:  # a text would equal one
        return f"its verdict must be {' or '.join(f'Verdict.{each}' for each in verdicts)}"
    reason: Any = decision.reason
    if not is_mapping(reason):
        return f"its reason must be a dictionary of facts, as in {_EXAMPLE}"
    if decision.donors or decision.request is not None:
        return _change_problem(decision)
    return None


def _change_problem(decision: Decision) -> str | None:
    """The same for what it would have of the trial's state, configuration and resources."""
    if decision.verdict is not Verdict.PAUSE:
        return "donors and a request go with Verdict.PAUSE: a trial that runs on takes nothing over"
    donors: Any = decision.donors
    well_made = isinstance(donors, (tuple, list)) and all(
        isinstance(each, Donor) and isinstance(each.trial_id, str) and isinstance(each.config, Mapping)
        for each in donors
    )
    if not well_made:
        return "its donors must be Donors, such as (Donor(trial_id, {'lr': 0.1}),)"
    request: Any = decision.request
    if request is not None and not isinstance(request, PlacementGroupFactory):
        return "its request must be a tune.PlacementGroupFactory"
    return None
