"""The driver's loop: events to the controller, records to the store, actions to the executor."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from trainkit.clock import SYSTEM
from trainkit.errors import message_of
from trainkit.runtime import signals
from trainkit.tune.callbacks.dispatcher import CallbackDispatcher
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.controller import Controller
from trainkit.tune.executor.base import Executor
from trainkit.tune.store import ownership
from trainkit.tune.store.memory import MemoryStore
from trainkit.tune.store.ownership import Inbox
from trainkit.tune.store.writer import ExperimentStore


class InterruptHandler:
    """Takes SIGINT over for the time of a `with`, and gives it back.

    The first Ctrl-C is only noted, so that no step of the loop is cut in half; it ends a wait, since
    nothing is lost there. The second raises KeyboardInterrupt wherever the program is; those after it
    wait until what it ended is cleaned up: see `held`. SIGTERM counts as one, in a program with a session.
    """

    holds_signals = True

    def __init__(self) -> None:
        self.count = 0
        self._told = 0
        self._waiting = False
        self._held = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # others can't take signals
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.give_back()

    def give_back(self) -> None:
        """Give SIGINT back to whom it was taken from; nothing is left to end in order."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def news(self) -> bool:
        """True once after a first Ctrl-C."""
        is_new, self._told = self.count > self._told, self.count
        return is_new

    def end_wait(self, wait: Callable[[], None]) -> None:
        """Call `wait`, which must do nothing but wait; a first Ctrl-C ends it."""
        try:
            self._waiting = True
            if self.count == self._told:  # else it came just before, and waiting would hide it
                wait()
            self._waiting = False
        except KeyboardInterrupt:
            self._waiting = False
            if self.count != 1:
                raise

    @contextmanager
    def held(self) -> Iterator[None]:
        """Note every Ctrl-C, and raise for none, while the `with` lasts."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1
        if not self._held and (self.count > 1 or self._waiting):
            # A third must not come between the second and the clean-up that it leads to.
            self._held = self.count > 1
            if self._held:
                signals.end_if_asked()
            raise KeyboardInterrupt


ESTIMATE_EVERY_S = 1.0


class ExperimentLoop:
    """Runs an experiment to its end.

    Args:
        controller, executor, store, hub, inbox: the parts that it joins.
        now: the time, in seconds, which never falls.
        refresh_s: how often callbacks want to hear of the time; None: only of events.
    """

    def __init__(
        self,
        controller: Controller,
        executor: Executor,
        store: ExperimentStore | MemoryStore,
        hub: CallbackDispatcher,
        inbox: Inbox,
        *,
        now: Callable[[], float],
        refresh_s: Callable[[], float | None],
    ) -> None:
        self._controller = controller
        self._executor = executor
        self._store = store
        self._hub = hub
        self._inbox = inbox
        self._estimate: tuple[float, float | None] = (-math.inf, None)
        self._told_of_callback = False
        self._now = now
        self._refresh_s = refresh_s

    def run(self, interrupts: InterruptHandler) -> None:
        """Return when nothing runs and nothing will; every process of a trial is gone then, or going.

        Raises:
            StoreError: the experiment can't be written any more.
            KeyboardInterrupt: the user pressed Ctrl-C twice.
        """
        try:
            self._apply(self._controller.begin(self._now()))
            while not self._controller.done:
                callback_news = self._callback_news()
                if not callback_news:
                    interrupts.end_wait(self._wait)
                batch = self._executor.collect() + callback_news
                batch += self._inbox.look(self._now())
                if interrupts.news():
                    batch.append(ev.Interrupted(self._now(), signals.is_asked()))
                stuck = self._executor.idle and math.isinf(self._controller.deadline)
                if not batch and stuck and not self._controller.is_held:
                    raise RuntimeError("no trial runs and none may start, yet the experiment has not ended")
                self._apply(self._controller.handle(batch or [ev.Tick(self._now())]))
            self._apply(self._controller.close(self._now()))
            self._executor.dismiss()
            while not self._executor.gone and not interrupts.news():
                interrupts.end_wait(self._executor.wait_gone)
        finally:
            with interrupts.held():  # cut short, it would leave trials running
                self._executor.close()

    def _callback_news(self) -> list[ev.Event]:
        """Return once that a callback has raised by which the experiment is to end."""
        if self._hub.raised is None or self._told_of_callback:
            return []
        self._told_of_callback = True
        error, where = self._hub.raised
        return [ev.CallbackRaised(self._now(), f"{where} raised {type(error).__name__}: {message_of(error)}")]

    def _wait(self) -> None:
        limits = [self._controller.deadline - self._now(), self._refresh_s() or math.inf, ownership.EVERY_S]
        wait = SYSTEM.sleep if self._controller.is_held and self._executor.idle else self._executor.wait
        wait(max(0.0, min(limits)))

    def _apply(self, step: ev.Step) -> None:
        # Committed first: what a trial is told, it can rely on.
        self._store.commit(step.records)
        self._executor.carry_out(step.actions)
        # Callbacks last: while they write, the trials run.
        self._hub.step(step.records, time=self._now(), **self.info())

    def info(self) -> dict[str, Any]:
        """Return the facts that callbacks are given besides the events."""
        ledger = self._controller.ledger
        return {
            "total_samples": self._controller.total_samples,
            "resources": ledger.existing,
            "resources_used": ledger.used(),
            "remaining_s": self._remaining_s(self._now()),
        }

    def _remaining_s(self, now: float) -> float | None:
        """About when the experiment ends, worked out anew once a second."""
        since, remaining_s = self._estimate
        if now - since >= ESTIMATE_EVERY_S:
            self._estimate = now, self._controller.remaining_s(now)
            return self._estimate[1]
        return None if remaining_s is None else max(0.0, remaining_s - (now - since))
