"""Ctrl-C at every single step of an operation: whatever it interrupts, the session goes on."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually, every, run_python
from tests.runtime.local.victims import Victim
from trainkit.runtime import signals
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.session import engine

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
@pytest.mark.parametrize(
    ("what", "stride"),
    [
        ("tasks", 1),
        ("small calls", 1),
        ("large calls", 11),
        ("listings", 1),
    ],
)
def test_every_step_may_be_interrupted(what: str, stride: int) -> None:
    task = trainkit.remote(num_cpus=SESSION_CPUS)(len)
    actor = trainkit.remote(Victim).remote()
    load = b"x" * 60_000
    operations: dict[str, Callable[[], Any]] = {
        "tasks": lambda: trainkit.get([task.remote("ab") for _ in range(2)]),
        "small calls": lambda: trainkit.get([actor.same.remote(1) for _ in range(3)]),
        "large calls": lambda: [actor.same.remote(load) for _ in range(8)],
        "listings": lambda: (task.remote("ab"), trainkit.available_resources()),
    }
    step = 0
    while interrupted_at(step, operations[what]):
        assert trainkit.get(task.remote("abc"), timeout=60) == 3, f"after step {step}"
        assert trainkit.get(actor.same.remote(4), timeout=60) == 4, f"after step {step}"
        step += stride * every(7)
    assert step > 50


@pytest.mark.parametrize("tasks", [1, 100])
def test_ctrl_c_that_another_thread_is_given_ends_a_wait(tasks: int) -> None:
    refs = [trainkit.remote(time.sleep).remote(600) for _ in range(tasks)]
    # Not to the process, where the main thread would have it: Python acts on it there all the same.
    timer = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        trainkit.wait(refs, num_returns=tasks)
    timer.join()
    for ref in refs:
        trainkit.cancel(ref, force=True)


def test_a_handler_that_returns_ends_no_wait_for_a_node() -> None:
    trainkit.nodes()  # so that the node listens
    came: list[float] = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(time.monotonic()))
    try:
        with sessions.connect(Path(engine().mark)) as node:
            timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            began = time.monotonic()
            assert not node.await_end(0.4), "the session goes on"
            assert time.monotonic() - began > 0.39
        timer.join()
        assert eventually(lambda: len(came) == 1)
    finally:
        signal.signal(signal.SIGINT, before)


PUTS = """
import trainkit
from tests.runtime.local.test_interrupts import interrupted_at

trainkit.init(num_cpus=1)
large = trainkit.remote(lambda: bytes(400_000))
step = 0
while interrupted_at(step, lambda: [trainkit.put(bytes(size)) for size in (300_000, 800_000)]):
    assert len(trainkit.get(large.remote(), timeout=60)) == 400_000, f"after step {step}"
    step += 1
print(step > 50)
"""


@pytest.mark.external
def test_other_processes_go_on_though_a_put_is_interrupted() -> None:
    """In a program of its own: what is interrupted in a `__del__` keeps its memory until the program ends."""
    done = run_python("-c", PUTS)
    assert done.stdout.strip() == "True", done.stderr


def test_an_interrupt_while_a_guard_is_taken_down_keeps_no_later_wait_awake() -> None:
    wake_fd = signals.wake_fd()
    os.eventfd_write(wake_fd, 1)  # as the second of two in a row leaves it
    with signals.InterruptGuard() as guard:
        assert guard.poll([], 0) == []
        assert select.select([wake_fd], [], [], 0)[0] == []
