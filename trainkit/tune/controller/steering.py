"""Users' commands to a running experiment: their effects on the controller's state, and their records."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from trainkit.errors import ConfigError, message_of
from trainkit.tune.controller import events as ev
from trainkit.tune.controller import lifecycle, paused
from trainkit.tune.controller.ending import end_experiment
from trainkit.tune.controller.judging import end_trial, heed_scheduler
from trainkit.tune.controller.rules import Ending
from trainkit.tune.controller.state import ControllerState
from trainkit.tune.core.checks import is_finite
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import encode
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.space.serialization import encode_config


def obey(state: ControllerState, event: ev.CommandGiven) -> None:
    """Carry out a command, or reject the command without a change.

    The outcome is recorded before the effects.
    """
    place = len(state.step.records)
    try:
        if event.verb not in VERBS:
            raise ConfigError(f"{event.verb!r} is not a command: the commands are {', '.join(VERBS)}")
        if state.ending is not None:
            raise ConfigError(f"the experiment is already ending: {state.ending.why}")
        outcome, done = VERBS[event.verb](state, event), True
    except ConfigError as error:
        outcome, done = str(error), False
    except Exception as error:  # a failed command must not end the experiment
        logger.exception("%s %s of %s failed", event.verb, event.arguments, event.by)
        outcome, done = f"it failed: {type(error).__name__}: {message_of(error)}", False
    detail = {
        "id": event.id,
        "verb": event.verb,
        "arguments": dict(event.arguments),
        "by": event.by,
        "outcome": outcome,
        "done": done,
    }
    trial_id = event.arguments.get("trial")
    known = trial_id if isinstance(trial_id, str) and trial_id in state.by_id else None
    state.step.records.insert(place, ev.Noted(event.time, ev.COMMAND, encode(detail), known))


def _trial_of(state: ControllerState, event: ev.CommandGiven) -> Trial | None:
    """Return the trial that the command names; None: the command is for the whole experiment.

    Raises:
        ConfigError: the trial does not exist or has ended.
    """
    trial_id = event.arguments.get("trial")
    if trial_id is None:
        return None
    trial = state.by_id.get(trial_id) if isinstance(trial_id, str) else None
    if trial is None:
        raise ConfigError(f"no trial of the experiment has the id {trial_id!r}")
    if trial.status.is_finished:
        raise ConfigError(f"trial {trial.trial_id} has ended already: {trial.status}, {trial.reason}")
    return trial


def _stop(state: ControllerState, event: ev.CommandGiven) -> str:
    """End a trial for good; a command without a trial ends the experiment like Ctrl-C."""
    words, time, trial = f"stopped by {event.by}", event.time, _trial_of(state, event)
    if trial is None:
        end_experiment(state, Ending(words, resumable=True), time)
        return "the experiment ends, and trials that run end at their next report"
    active = state.active.get(trial.trial_id)
    if active is not None and active.is_ending:
        raise ConfigError(f"trial {trial.trial_id} is about to end")
    _take(state, event)
    if active is not None:
        active.must_end((TrialStatus.TERMINATED, words), time, state.plan.grace_s)
        lifecycle.watch(state, active)
        return f"trial {trial.trial_id} ends at its next report"
    waits = trial.status is TrialStatus.PENDING
    if paused.leave_lines(state, trial):
        end_trial(state, trial, time, f"{words}: not run" if waits else words)
    return f"trial {trial.trial_id} has ended"


def _pause(state: ControllerState, event: ev.CommandGiven) -> str:
    """Pause a trial; a command without a trial pauses all trials that can pause, and no trial starts."""
    steering, trial = state.steering, _trial_of(state, event)
    if trial is None:
        if steering.paused_by:
            raise ConfigError(f"the experiment was paused already by {steering.paused_by}")
        _take(state, event)
        return (
            f"nothing starts until the experiment is resumed; of {len(state.active)} running trials, those "
            "that can save a checkpoint pause at their next report, and the others continue"
        )
    name, active = f"trial {trial.trial_id}", state.active.get(trial.trial_id)
    if trial.trial_id in steering.holds:
        raise ConfigError(f"{name} was paused already by {steering.holds[trial.trial_id]}")
    if active is not None and active.is_ending:
        raise ConfigError(f"{name} is about to end")
    if active is not None and trial.checkpoint is None and not state.plan.saves:
        raise ConfigError(
            f"{name} is not paused, as it has {paused.NO_CHECKPOINT}; pause it after its first checkpoint"
        )
    _take(state, event)
    if active is not None:
        return f"{name} pauses at its next report"
    if state.waiting.remove(trial) or state.paused.remove(trial):
        state.held[trial.trial_id] = trial
    return f"{name} does not start until it is resumed"


def _resume(state: ControllerState, event: ev.CommandGiven) -> str:
    """Resume a trial that a command paused; a command without a trial resumes the experiment."""
    steering, trial = state.steering, _trial_of(state, event)
    if trial is None:
        if not steering.paused_by:
            held = ", ".join(steering.holds) or "none"
            raise ConfigError(f"the experiment is not paused; trials to resume by id: {held}")
        _take(state, event)
        for each in [each for each in state.held.values() if not steering.keeps_aside(each.trial_id)]:
            _let_go_on(state, each, event.time)
        return "the experiment resumes"
    name = f"trial {trial.trial_id}"
    if trial.trial_id not in steering.holds:
        if steering.paused_by:
            raise ConfigError(f"{name} waits for the experiment, which was paused by {steering.paused_by}")
        if trial.status is TrialStatus.PAUSED:
            raise ConfigError(f"{name} was {trial.reason}, and only its scheduler can resume it")
        raise ConfigError(f"{name} is not paused: {trial.status}")
    _take(state, event)
    if trial.trial_id in state.held and not steering.keeps_aside(trial.trial_id):
        _let_go_on(state, trial, event.time)
    return f"{name} goes on"


def _let_go_on(state: ControllerState, trial: Trial, time: float) -> None:
    del state.held[trial.trial_id]
    paused.line_up(state, trial, time)


def _prioritise(state: ControllerState, event: ev.CommandGiven) -> str:
    """Let a waiting trial run before the other trials."""
    trial = _trial_of(state, event)
    if trial is None:
        raise ConfigError("prioritise needs the id of a trial")
    if trial.trial_id in state.active:
        raise ConfigError(f"trial {trial.trial_id} is already running")
    _take(state, event)
    if state.steering.keeps_aside(trial.trial_id):
        return f"trial {trial.trial_id} runs before the others once it is resumed"
    if trial.status is TrialStatus.PAUSED:
        return f"trial {trial.trial_id} resumes before the others, as soon as its scheduler allows"
    return f"trial {trial.trial_id} runs before the others"


def _add(state: ControllerState, event: ev.CommandGiven) -> str:
    """Add a configuration to try next."""
    given = event.arguments.get("config")
    if not isinstance(given, dict):
        raise ConfigError(f"config={given!r}: give a dictionary of hyperparameters")
    config = state.source.add(given)
    try:
        tell_total(state, event.time)
    except ConfigError as error:
        state.source.added.take_back()
        raise ConfigError(f"{encode_config(config)} can't be added: {error}") from error
    heed_scheduler(state, event.time)
    state.step.records.append(ev.SettingsChanged({}, state.source.total))
    return f"{encode_config(config)} is tried next"


def _set(state: ControllerState, event: ev.CommandGiven) -> str:
    """Change the number of trials, the concurrency limit or the time budget; an error changes nothing."""
    given = dict(event.arguments)
    if not given or not given.keys() <= _SETTINGS.keys():
        raise ConfigError(f"cannot set {', '.join(given) or 'nothing'}: use {', '.join(_SETTINGS)}")
    for name, value in given.items():
        least, words = _SETTINGS[name]
        whole = name != "time_budget_s"
        is_fit = is_finite(value) and (not whole or isinstance(value, int))
        if not is_fit or (value != -1 and value < least) or (value == -1 and name == "max_concurrent_trials"):
            raise ConfigError(f"{name}={value!r}: give {words}")
    budget_s, spent_s = given.get("time_budget_s"), event.time - state.began
    if budget_s is not None and budget_s != -1 and budget_s <= spent_s:
        raise ConfigError(
            f"time_budget_s={budget_s:g}: the run already took {spent_s:.3g} s: give a larger budget"
        )
    if "num_samples" in given:
        _resize(state, given["num_samples"], event.time)
    if budget_s is not None:
        given["time_budget_s"] = None if budget_s == -1 else budget_s
        state.budget_ends = math.inf if budget_s == -1 else state.began + budget_s
    if "max_concurrent_trials" in given:
        given["max_concurrent_trials"] = given["max_concurrent_trials"] or None
        state.ledger.limit(given["max_concurrent_trials"])
    state.step.records.append(ev.SettingsChanged(given, state.source.total))
    return "from now on " + ", ".join(f"{name}={value}" for name, value in event.arguments.items())


def _resize(state: ControllerState, num_samples: int, time: float) -> None:
    before = state.source.num_samples
    if num_samples == before:
        return
    state.source.resize(num_samples)
    try:
        tell_total(state, time)
    except ConfigError as error:
        state.source.resize(before)
        raise ConfigError(f"num_samples={num_samples} can't be set: {error}") from error
    state.none_come = False
    heed_scheduler(state, time)


def tell_total(state: ControllerState, time: float) -> None:
    """Notify the scheduler of the number of trials, unless the scheduler already has this number.

    Raises:
        ConfigError: the scheduler can't work with a changed number of trials.
    """
    if state.scheduler.resize(state.source.total):
        state.step.records.append(ev.Noted(time, ev.TOTAL, encode(state.source.total)))


_SETTINGS: Mapping[str, tuple[float, str]] = {
    "num_samples": (1, "a whole number, 1 or more, or -1 for unlimited samples"),
    "time_budget_s": (0, "seconds from the beginning of this run, or -1 for no budget"),
    "max_concurrent_trials": (0, "a whole number, 1 or more, or 0 for as many as the resources allow"),
}


def _take(state: ControllerState, event: ev.CommandGiven) -> None:
    state.steering.take(event.verb, event.arguments, event.by, event.time)


VERBS: Mapping[str, Callable[[ControllerState, ev.CommandGiven], str]] = {
    "stop": _stop,
    "pause": _pause,
    "resume": _resume,
    "prioritise": _prioritise,
    "add": _add,
    "set": _set,
}
"""Function for each command's verb, which carries out the command and returns text about the effect.

A function that rejects its command raises ConfigError and changes nothing.
"""
