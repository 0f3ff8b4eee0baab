"""Sides of a comparison that take turns in one run, so that what else the machine does meets all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def in_turn(sides: Sequence[Callable[[], object]], rounds: int, warm_up: int = 2) -> list[list[float]]:
    """Seconds that each of `sides` takes, by round; what it returns, if that is a number, instead of ours.

    The order turns, so that none always follows another.
    """
    times: list[list[float]] = [[] for _ in sides]
    order = list(range(len(sides)))
    for number in range(rounds + warm_up):
        for side in order if number % 2 else order[::-1]:
            start = time.perf_counter()
            answer = sides[side]()
            took = answer if isinstance(answer, float) else time.perf_counter() - start
            if number >= warm_up:
                times[side].append(took)
    return times


def environment() -> dict[str, str]:
    """For a process that measures: one thread, and this package."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def timed(call: Callable[[], object]) -> float:
    """Seconds that `call` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def leave() -> None:
    """End this process, one of a torch.distributed group, at once.

    In order, DDP's reducer may be what frees the group, with the interpreter locked, and wait for ever for
    a thread of the group that wants the interpreter.
    """
    sys.stdout.flush()
    os._exit(0)


class Served:
    """A program that trains a number of steps for each line it reads, and answers "took <seconds>".

    Args:
        command: that starts it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=HERE.parent,
        )

    def steps(self, count: int) -> float:
        """Seconds that `count` steps take."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        line = next((line for line in self._process.stdout if line.startswith("took")), None)
        if line is None:
            raise RuntimeError(f"{self._command} ended:\n{self._process.communicate(timeout=60)[1]}")
        return float(line.split()[1])

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process.poll() is not None:
            return
        try:
            # Said, as another process may hold the pipe open.
            self._process.communicate("0\n", timeout=60)
        except subprocess.TimeoutExpired as late:
            self._process.kill()
            raise RuntimeError(f"{self._command} did not end") from late
