"""The loop: events to the controller, its records to the store, then its actions to the executor.

executor.wait -> collect -> controller.handle -> store.commit -> executor.carry_out -> callbacks
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from trainkit.errors import message_of
from trainkit.runtime import termination
from trainkit.tune.callbacks.hub import CallbackHub
from trainkit.tune.control import events as ev
from trainkit.tune.control.controller import Controller
from trainkit.tune.running import commands
from trainkit.tune.running.commands import Inbox
from trainkit.tune.running.executor import Executor
from trainkit.tune.running.interrupts import Interrupts
from trainkit.tune.running.task_executor import TaskExecutor
from trainkit.tune.storing.memory import MemoryStore
from trainkit.tune.storing.store import ExperimentStore

ESTIMATE_EVERY_S = 1.0


class ExperimentLoop:
    """Runs an experiment to its end.

    Args:
        controller, executor, store, hub, inbox: the parts that it joins.
        total_samples: for callbacks; None: endless.
        now: the time, in seconds, which never falls.
        refresh_s: how often callbacks want to hear of the time; None: only of events.
    """

    def __init__(
        self,
        controller: Controller,
        executor: Executor | TaskExecutor,
        store: ExperimentStore | MemoryStore,
        hub: CallbackHub,
        inbox: Inbox,
        *,
        total_samples: int | None,
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
        self._total_samples = total_samples
        self._now = now
        self._refresh_s = refresh_s

    def run(self, interrupts: Interrupts) -> None:
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
                    batch.append(ev.Interrupted(self._now(), termination.is_asked()))
                if not batch and self._executor.idle and math.isinf(self._controller.deadline):
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
        limits = [self._controller.deadline - self._now(), self._refresh_s() or math.inf, commands.EVERY_S]
        self._executor.wait(max(0.0, min(limits)))

    def _apply(self, step: ev.Step) -> None:
        # Committed first: what a trial is told, it can rely on.
        self._store.commit(step.records)
        self._executor.carry_out(step.actions)
        # Callbacks last: while they write, the trials run.
        self._hub.step(step.records, time=self._now(), **self.info())

    def info(self) -> dict[str, Any]:
        """What callbacks hear besides the events."""
        return {
            "total_samples": self._total_samples,
            "resources": self._controller.ledger.existing,
            "resources_used": self._controller.ledger.used(),
            "remaining_s": self._remaining_s(self._now()),
        }

    def _remaining_s(self, now: float) -> float | None:
        """About when the experiment ends, worked out anew once a second."""
        since, remaining_s = self._estimate
        if now - since >= ESTIMATE_EVERY_S:
            self._estimate = now, self._controller.remaining_s(now)
            return self._estimate[1]
        return None if remaining_s is None else max(0.0, remaining_s - (now - since))
