"""Dispatcher that passes an experiment's committed records to callbacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.callbacks.base import HOOKS, Callback, hook_of
from trainkit.tune.controller import events as ev
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import keep_added, storing_problem
from trainkit.tune.core.trial import Trial, TrialStatus

KEEP_S = 5.0
"""Seconds between two calls of the callbacks' methods `get_state`."""


class Complaints:
    """Collector of the callbacks' exceptions; exceptions of a method are logged only once.

    Args:
        strict: callbacks whose first exception must end the experiment, and is therefore stored.

    Attributes:
        raised: first exception of a callback in `strict`, with the name of its method; or None.
    """

    def __init__(self, strict: Sequence[Callback] = ()) -> None:
        self.raised: tuple[Exception, str] | None = None
        self._strict = strict
        self._told: set[tuple[int, str]] = set()

    def add(self, callback: Callback, method: str, error: Exception) -> None:
        """Log `error` of a callback's method, once; for a callback in `strict`, store `error` instead."""
        where = f"{type(callback).__name__}.{method}()"
        key = (id(callback), method)
        if any(callback is each for each in self._strict):
            self.raised = self.raised or (error, where)
        elif key not in self._told:
            self._told.add(key)
            logger.warning("%s failed; the experiment continues (this is logged once)", where, exc_info=error)


class CallbackStates:
    """States of callbacks, identified by class and by position among the callbacks of that class.

    Args:
        callbacks: all callbacks; only callbacks that override `get_state` have a state.
        keep: function that stores the states by name; called after a change.
        complaints: collector of the callbacks' exceptions.
    """

    def __init__(
        self, callbacks: Sequence[Callback], keep: Callable[[dict[str, str]], None], complaints: Complaints
    ) -> None:
        self._named: dict[str, Callback] = {}
        for callback in callbacks:
            kind = type(callback).__qualname__
            place = sum(type(each).__qualname__ == kind for each in self._named.values())
            self._named[f"{kind}/{place}"] = callback
        self._asked = {
            name: each for name, each in self._named.items() if type(each).get_state is not Callback.get_state
        }
        self._keep = keep
        self._complaints = complaints
        self._kept: dict[str, str] = {}
        self._last: float | None = None

    def give_back(self, kept: Mapping[str, str]) -> None:
        """Pass each callback its stored state."""
        self._kept = dict(kept)
        for name, text in kept.items():
            if (callback := self._named.get(name)) is not None:
                with self._told_of(callback, "set_state"):
                    callback.set_state(json.loads(text))

    def keep_when_due(self, now: float) -> None:
        """Store the states if the last call of `get_state` was at least KEEP_S seconds before `now`."""
        if self._asked and (self._last is None or now - self._last >= KEEP_S):
            self._last = now
            self.keep_now()

    def keep_now(self) -> None:
        """Get the states from the callbacks, and store them if any state has changed."""
        found = dict(self._kept)
        for name, callback in self._asked.items():
            with self._told_of(callback, "get_state"):
                state = callback.get_state()
                if state is not None:
                    found[name] = _state_text(callback, state)
        if found != self._kept:
            self._keep(found)
            self._kept = found

    @contextmanager
    def _told_of(self, callback: Callback, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._complaints.add(callback, method, error)


def _state_text(callback: Callback, state: Any) -> str:
    try:
        return json.dumps(state)
    except (TypeError, ValueError) as error:
        problem = storing_problem(state if isinstance(state, Mapping) else {"state": state}) or str(error)
        raise ConfigError(f"{type(callback).__name__}.get_state() returned a state whose {problem}") from None


_END = "on_experiment_end"
_Listener = tuple[Callback, Callable[..., None]]


class CallbackDispatcher:
    """Dispatcher that passes an experiment's committed records to callbacks.

    Args:
        callbacks: callbacks in the order of their calls.
        trials: the controller's list of trials, which grows.
        history: function that returns a trial's committed reports, oldest first.
        keep: function that stores the states of callbacks.
        amend: function that stores a report to which a callback has added values.
        strict: callbacks whose first exception must end the experiment, and is therefore stored.
        display: callback of the display, called after `callbacks`; `display_end` notifies it of the end.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        trials: Sequence[Trial],
        history: Callable[[str], list[dict[str, Any]]],
        keep: Callable[[dict[str, str]], None] = lambda states: None,
        amend: Callable[[ev.ResultAdded], None] = lambda record: None,
        strict: Sequence[Callback] = (),
        display: Callback | None = None,
    ) -> None:
        self._complaints = Complaints(strict)
        shown = [] if display is None else [display]
        self._listeners = {hook: _listening([*callbacks, *shown], hook) for hook in HOOKS}
        self._listeners[_END] = _listening(callbacks, _END)
        self._display_end = _listening(shown, _END)
        self._trials = trials
        self._history = history
        self._amend = amend
        self._step = 0
        self._left_out: set[Any] = set()
        self._states = CallbackStates(callbacks, keep, self._complaints)

    @property
    def raised(self) -> tuple[Exception, str] | None:
        """The first exception of a callback in `strict`, with the name of its method; or None."""
        return self._complaints.raised

    def setup(self, states: Mapping[str, str] | None = None, **info: Any) -> None:
        """Notify callbacks of the start of the experiment, and restore their states."""
        self._call("setup", self._listeners["setup"], trials=self._trials, **info)
        self._states.give_back(states or {})

    def step(self, records: Sequence[ev.Record], **info: Any) -> None:
        """Notify callbacks of committed records."""
        self._step += 1
        info = {"iteration": self._step, "trials": self._trials, **info}
        self._call("on_step_begin", self._listeners["on_step_begin"], **info)
        for record in records:
            self._on_record(record)
        self._call("on_step_end", self._listeners["on_step_end"], **info)
        self._states.keep_when_due(info["time"])

    def experiment_end(self, now: Callable[[], float], **info: Any) -> None:
        """Notify callbacks of the experiment's end; each callback gets the current time."""
        for listener in self._listeners[_END]:
            self._call(_END, [listener], trials=self._trials, time=now(), **info)
        self._states.keep_now()

    def display_end(self, **info: Any) -> None:
        """Let the display show how the experiment has ended, after all waiting is over."""
        self._call(_END, self._display_end, trials=self._trials, **info)

    def _on_record(self, record: ev.Record) -> None:
        match record:
            case ev.ResultAdded(trial=trial, result=result):
                known = frozenset(result)
                self._of_trial("on_trial_result", trial, result=result)
                if keep_added(record.metrics, result, known, self._left_out):
                    self._amend(record)
            case ev.AttemptStarted(trial=trial, attempt=attempt, iteration=iteration):
                if attempt > 0:
                    kept = self._history(trial.trial_id)[:iteration]
                    self._of_trial("on_trial_restore", trial, results=kept)
                self._of_trial("on_trial_start", trial)
            case ev.CheckpointAdded(trial=trial, checkpoint=checkpoint):
                self._of_trial("on_trial_save", trial)
                self._of_trial("on_checkpoint", trial, checkpoint=checkpoint)
            case ev.Rearranged(trial=trial, config=dict(), donor=donor, donor_iteration=since):
                self._of_trial("on_trial_change", trial, donor=donor, donor_iteration=since)
            case ev.StatusChanged(trial=trial, status=TrialStatus.TERMINATED):
                self._of_trial("on_trial_complete", trial, **self._whole(trial))
            case ev.StatusChanged(trial=trial, status=TrialStatus.ERROR):
                self._of_trial("on_trial_error", trial, **self._whole(trial))
            case ev.StatusChanged(trial=trial, retried=True, failure=failure):
                self._of_trial("on_trial_recover", trial, failure=failure)

    def _whole(self, trial: Trial) -> dict[str, Any]:
        """Return all reports of a trial that ran more than once, so that loggers can rewrite the trial's
        log.
        """
        return {"results": self._history(trial.trial_id)} if trial.attempt > 0 else {}

    def _of_trial(self, hook: str, trial: Trial, **info: Any) -> None:
        listeners = self._listeners[hook]
        self._call(hook, listeners, iteration=self._step, trials=self._trials, trial=trial, **info)

    def _call(self, hook: str, listeners: Sequence[_Listener], **info: Any) -> None:
        for callback, method in listeners:
            try:
                method(**info)
            except Exception as error:
                self._complaints.add(callback, hook, error)


def _listening(callbacks: Sequence[Callback], hook: str) -> list[_Listener]:
    """Return the callbacks that override the method `hook`, each with its method."""
    methods = [(callback, hook_of(callback, hook)) for callback in callbacks]
    return [(callback, method) for callback, method in methods if method is not None]
