"""The loop of a simulated experiment: from moment to moment, as fast as it goes.

agenda.take -> controller.handle -> store.commit -> executor.carry_out
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Iterator

from trainkit.tune.control import events as ev
from trainkit.tune.control.controller import Controller
from trainkit.tune.simulation.agenda import Agenda
from trainkit.tune.simulation.executor import SimulatedExecutor
from trainkit.tune.storing.memory import MemoryStore


class SimulatedLoop:
    """Runs a simulated experiment to its end.

    Args:
        controller, executor, store, agenda: the parts that it joins.
    """

    def __init__(
        self,
        controller: Controller,
        executor: SimulatedExecutor,
        store: MemoryStore,
        agenda: Agenda[ev.Event],
    ) -> None:
        self._controller = controller
        self._executor = executor
        self._store = store
        self._agenda = agenda

    def run(self) -> None:
        """Return when nothing runs and nothing will."""
        with _seldom_collected():
            self._run()

    def _run(self) -> None:
        controller, agenda = self._controller, self._agenda
        self._apply(controller.begin(agenda.now))
        ended = False
        while not controller.done:
            if not ended and controller.ended_by is not None:
                ended = True
                self._executor.cut()
            self._apply(controller.handle(self._next()))
        self._apply(controller.close(agenda.now))

    def _next(self) -> list[ev.Event]:
        """What happens next, or that the time has come which the controller waits for."""
        agenda, deadline = self._agenda, self._controller.deadline
        time = agenda.next_time
        if time is not None and time <= deadline:
            return agenda.take()
        if math.isinf(deadline):
            raise RuntimeError("no trial runs and none may start, yet the experiment has not ended")
        agenda.wait_until(deadline)
        return [ev.Tick(agenda.now)]

    def _apply(self, step: ev.Step) -> None:
        self._store.commit(step.records)
        self._executor.carry_out(step.actions)


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for garbage a hundred times less often: nearly all that is made here is a record, and stays."""
    before = gc.get_threshold()
    gc.set_threshold(before[0] * 100, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
