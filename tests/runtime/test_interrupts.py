"""Ctrl-C at every single step of an operation: whatever it interrupts, the session goes on."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest

import trainkit
from tests.conftest import SESSION_CPUS
from tests.runtime.victims import Victim
from trainkit.runtime.local import interrupt

pytestmark = pytest.mark.usefixtures("runtime")


def interrupted_at(step: int, operation: Callable[[], Any]) -> bool:
    """Do `operation` with Ctrl-C at the `step`th moment of handling signals; False if there are fewer."""
    steps = iter(range(step))
    came = []

    def count(_: Any, event: str, __: Any) -> None:
        # Not as a built-in function is called: that may be the end of a `with`, where none is handled.
        if event in ("call", "c_return") and next(steps, None) is None:
            sys.setprofile(None)
            came.append(step)
            signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(count)
        operation()
        sys.setprofile(None)
    except KeyboardInterrupt:
        return True
    return bool(came)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a generator's end
@pytest.mark.parametrize(("what", "stride"), [("tasks", 1), ("small calls", 1), ("large calls", 11)])
def test_every_step_may_be_interrupted(what: str, stride: int) -> None:
    task = trainkit.remote(num_cpus=SESSION_CPUS)(len)
    actor = trainkit.remote(Victim).remote()
    load = b"x" * 60_000
    operations: dict[str, Callable[[], Any]] = {
        "tasks": lambda: trainkit.get([task.remote("ab") for _ in range(2)]),
        "small calls": lambda: trainkit.get([actor.same.remote(1) for _ in range(3)]),
        "large calls": lambda: [actor.same.remote(load) for _ in range(8)],
    }
    step = 0
    while interrupted_at(step, operations[what]):
        assert trainkit.get(task.remote("abc"), timeout=30) == 3, f"after step {step}"
        assert trainkit.get(actor.same.remote(4), timeout=30) == 4, f"after step {step}"
        step += stride
    assert step > 50


def test_an_interrupt_while_a_guard_is_taken_down_keeps_no_later_wait_awake() -> None:
    wake_fd = interrupt.wake_fd()
    os.eventfd_write(wake_fd, 1)  # as the second of two in a row leaves it
    with interrupt.InterruptGuard() as guard:
        assert guard.poll([], 0) == []
        assert select.select([wake_fd], [], [], 0)[0] == []
