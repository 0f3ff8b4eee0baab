"""A Ray of the tests' own, and the proof that nothing of it is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

import trainkit
from tests.conftest import RUN, eventually, is_running
from trainkit.runtime.local.system import process


def ray_processes() -> set[int]:
    """Every process that this test run's Ray started: they all inherit the mark of the run."""
    own = os.getpid()
    marked = {pid for pid in psutil.pids() if process.environment(pid).get(RUN) == os.environ[RUN]}
    return {pid for pid in marked - {own} if is_running(pid)}


@contextmanager
def clean_ray(start: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Run `start`, then what it returned, with Ray told to phone nobody; no process may be left."""
    before = ray_processes()
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        stop = start()
        try:
            yield
        finally:
            trainkit.shutdown()
            stop()
            signal.signal(signal.SIGTERM, handler)  # Ray's nodes install a handler and keep it
    # Ray gives its workers a low priority: on a busy machine they take long to leave.
    assert eventually(lambda: not ray_processes() - before, 90), f"left: {ray_processes() - before}"
