"""Order in which waiting trials run."""

from __future__ import annotations

from collections.abc import Sequence

from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.trial import Trial


def is_over(state: ControllerState) -> bool:
    """Return True if no trial waits and no further trial will be suggested."""
    return not (state.waiting or state.paused or state.held) and state.source.exhausted


def trials_to_come(state: ControllerState) -> int | None:
    """Return the number of trials that are still to be started; None: no limit."""
    suggested = state.source.to_come
    return None if suggested is None else suggested + len(state.waiting) + len(state.held)


def next_trial(state: ControllerState, *, has_room: bool) -> Trial | None:
    """Remove the trial to run next from its queue and return it; None: no trial can run now.

    Args:
        state: state of the controller.
        has_room: True if resources for another trial may be free, so that a trial may be suggested or
            resumed.
    """
    # The only running trial must run alone, so no other trial may start.
    if len(state.active) == 1 and next(iter(state.active.values())).trial.alone:
        return None
    for trial_id in reversed(state.steering.first):
        if (trial := _out_of_turn(state, trial_id, has_room=has_room)) is not None:
            return trial
    if not state.waiting and not state.paused:
        return state.source.next_trial() if has_room else None
    alone = state.waiting.first_alone
    # An experiment with an unlimited number of trials never runs out of other trials, so a trial that must
    # run alone is started as soon as possible.
    if alone is None or state.source.to_come is not None:
        trial = _sharing(state, has_room=has_room)
        if trial is not None:
            return trial
    if alone is not None and not state.active:
        state.waiting.remove(alone)
        return alone
    return None


def _out_of_turn(state: ControllerState, trial_id: str, *, has_room: bool) -> Trial | None:
    """Return a prioritised trial if it may run; the scheduler may choose only this trial or no trial."""
    choose = state.scheduler.choose_trial_to_run
    if trial_id in state.waiting:
        may = not (state.active and state.by_id[trial_id].alone)
        return state.waiting.take(trial_id) if may and choose([trial_id], [], new=False) else None
    if has_room and trial_id in state.paused and choose([], [trial_id], new=False):
        return state.paused.take(trial_id)
    return None


def would_go_on_at_once(state: ControllerState, trial: Trial) -> bool:
    """Return True if a trial that should pause would be the next trial to resume."""
    paused = state.paused.sharing
    paused.add(trial)
    chosen = _chosen(state, paused, new=not state.source.exhausted)
    paused.remove(trial)
    return chosen == trial.trial_id


def _sharing(state: ControllerState, *, has_room: bool) -> Trial | None:
    paused = state.paused.sharing if has_room else ()
    new = has_room and not state.source.exhausted
    chosen = _chosen(state, paused, new=new)
    if chosen is None and new:
        if (trial := state.source.next_trial()) is not None:
            return trial
        # The searcher has no new trial now, so a paused trial may run.
        chosen = _chosen(state, paused, new=False)
    if chosen is None:
        return None
    return state.paused.take(chosen) if chosen in state.paused.sharing else state.waiting.take(chosen)


def _chosen(state: ControllerState, paused: Sequence[str], *, new: bool) -> str | None:
    if not paused and not state.waiting.sharing:
        return None
    return state.scheduler.choose_trial_to_run(state.waiting.sharing, paused, new=new)
