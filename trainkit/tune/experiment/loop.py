"""Main loop of the driver: events go to the controller, records to the store, actions to the executor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import message_of
from trainkit.runtime import signals
from trainkit.tune.callbacks.dispatcher import CallbackDispatcher
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.controller import Controller
from trainkit.tune.executor.base import Executor
from trainkit.tune.store import commands
from trainkit.tune.store.commands import Inbox
from trainkit.tune.store.memory import MemoryStore
from trainkit.tune.store.writer import ExperimentStore

ESTIMATE_EVERY_S = 1.0


@dataclass(slots=True)
class ExperimentLoop:
    """Main loop of the driver, which runs an experiment to its end.

    Attributes:
        controller, executor, store, hub, inbox: objects that the loop connects.
        now: function that returns the time in seconds, which never decreases.
        refresh_s: function that returns the maximum seconds between calls of the callbacks; None means that
            the callbacks are called only at events.
    """

    controller: Controller
    executor: Executor
    store: ExperimentStore | MemoryStore
    hub: CallbackDispatcher
    inbox: Inbox
    now: Callable[[], float]
    refresh_s: Callable[[], float | None]
    _estimate: tuple[float, float | None] = (-math.inf, None)
    _told_of_callback: bool = False

    def run(self, interrupts: signals.InterruptHandler) -> None:
        """Run the loop until no trial runs or will run; all trial processes have then ended or are ending.

        Raises:
            StoreError: the store can't be written any more.
            KeyboardInterrupt: the user pressed Ctrl-C twice.
        """
        try:
            self._apply(self.controller.begin(self.now()))
            while not self.controller.done:
                callback_news = self._callback_news()
                if not callback_news:
                    interrupts.end_wait(self._wait)
                batch = self.executor.collect() + callback_news
                batch += self.inbox.look(self.now())
                if interrupts.news():
                    batch.insert(0, ev.Interrupted(self.now(), signals.is_asked()))
                stuck = self.executor.idle and math.isinf(self.controller.deadline)
                if not batch and stuck and not self.controller.is_held:
                    raise RuntimeError("no trial runs or can start, but the experiment has not ended")
                self._apply(self.controller.handle(batch or [ev.Tick(self.now())]))
            self._apply(self.controller.close(self.now()))
            self.executor.dismiss()
            while not self.executor.gone and not interrupts.news():
                interrupts.end_wait(self.executor.wait_gone)
        finally:
            with interrupts.held():  # an interrupt during the close would leave trials running
                self.executor.close()

    def _callback_news(self) -> list[ev.Event]:
        """Return the event for a callback's exception that must end the experiment; the event is returned
        only once.
        """
        if self.hub.raised is None or self._told_of_callback:
            return []
        self._told_of_callback = True
        error, where = self.hub.raised
        return [ev.CallbackRaised(self.now(), f"{where} raised {type(error).__name__}: {message_of(error)}")]

    def _wait(self) -> None:
        limits = [self.controller.deadline - self.now(), self.refresh_s() or math.inf, commands.EVERY_S]
        wait = SYSTEM.sleep if self.controller.is_held and self.executor.idle else self.executor.wait
        wait(max(0.0, min(limits)))

    def _apply(self, step: ev.Step) -> None:
        # Records are committed before trials receive actions, so that no trial depends on unsaved data.
        self.store.commit(step.records)
        self.executor.carry_out(step.actions)
        # The callbacks are called last, so that the trials run while the callbacks write.
        self.hub.step(step.records, time=self.now(), **self.info())

    def info(self) -> dict[str, Any]:
        """Return facts about the experiment that callbacks receive in addition to the events."""
        ledger = self.controller.ledger
        return {
            "total_samples": self.controller.total_samples,
            "resources": ledger.existing,
            "resources_used": ledger.used(),
            "remaining_s": self._remaining_s(self.now()),
        }

    def _remaining_s(self, now: float) -> float | None:
        """Return the estimated seconds until the experiment ends, recomputed once a second."""
        since, remaining_s = self._estimate
        if now - since >= ESTIMATE_EVERY_S:
            self._estimate = now, self.controller.remaining_s(now)
            return self._estimate[1]
        return None if remaining_s is None else max(0.0, remaining_s - (now - since))
