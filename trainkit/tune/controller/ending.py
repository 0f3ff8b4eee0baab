"""End of an experiment: its time limits, and the errors of searcher, scheduler and stoppers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from trainkit.tune.controller import events as ev
from trainkit.tune.controller.rules import BROKEN, TIME_BUDGET, Ending
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.trial import TrialStatus

T = TypeVar("T")


def begin_budget(state: ControllerState, time: float) -> None:
    """Begin to count the experiment's running time and time budget."""
    budget_s = state.plan.time_budget_s
    state.began = time
    state.budget_ends = math.inf if budget_s is None else time + budget_s


def end_deadline(state: ControllerState) -> float:
    """Return the time by which the experiment's time limits must be checked again."""
    if state.ending is not None:
        return math.inf
    if state.stop.ends_none:
        return state.budget_ends
    return min(state.budget_ends, state.began + state.stop.deadline_s - state.spent_s)


def end_if_due(state: ControllerState, time: float) -> None:
    """End the experiment if a time limit or a stopper requires it."""
    if state.ending is not None:
        return
    elapsed_s = state.spent_s + time - state.began
    if time >= state.budget_ends:
        end_experiment(state, TIME_BUDGET, time)
    elif not state.stop.ends_none and (why := guarded(state, time, state.stop.end, elapsed_s)):
        end_experiment(state, Ending(why), time)


def guarded(state: ControllerState, time: float, ask: Callable[..., T], *args: Any) -> T | None:
    """Call a searcher, scheduler or stopper; if the call raises, record the error and end the experiment."""
    try:
        return ask(*args)
    except Exception as error:
        state.error = state.error or error
        end_experiment(state, BROKEN, time)
        return None


def end_experiment(state: ControllerState, ending: Ending, time: float) -> None:
    """Stop every trial at its next report, and start no more trials."""
    if state.ending is not None:
        return
    state.ending = ending
    state.step.records.append(ev.Noted(time, "ending", ending.why))
    status = TrialStatus.PENDING if ending.resumable else TrialStatus.TERMINATED
    for active in state.active.values():
        active.must_end((status, ending.why), time, state.plan.grace_s)
