"""Sides of a comparison that take turns in one run, so that other load on the machine affects all of them."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def in_turn(sides: Sequence[Callable[[], object]], rounds: int, warm_up: int = 2) -> list[list[float]]:
    """Return the seconds that each side takes, by round; a number that a side returns replaces its seconds.

    The order rotates, so that no side always follows the same other side.
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


class Plain:
    """Plain work that is timed repeatedly between measurements.

    Args:
        work: function that takes about a hundredth of a second.

    Attributes:
        times: seconds of the work, in order.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.times: list[float] = []

    def look(self) -> float:
        """Time the work four times, each the best of five runs; return the smallest of the four."""
        self.times += [min(timed(self._work) for _ in range(5)) for _ in range(4)]
        return min(self.times[-4:])


def environment() -> dict[str, str]:
    """Return the environment of a measuring process: one thread, and this package, with bytecode files."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def output_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return the output of a program; if it fails, the error contains the program's stderr.

    Args:
        command: command of the program, run in the folder of this repository.
        env: environment of the program; None: this process's.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent, env=env)
    if done.returncode != 0:
        raise RuntimeError(_ending(command, done.returncode, done.stderr))
    return done.stdout


def _ending(command: Sequence[str], code: int, errors: str) -> str:
    """Return a text on how a program ended, with its stderr."""
    return (
        f"{shlex.join(command)} ended with code {code}:\n{errors.strip() or 'it wrote nothing to its stderr'}"
    )


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that `call` takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def leave() -> None:
    """End this process, a member of a torch.distributed group, immediately.

    In a normal exit, DDP's reducer may free the group while it holds the interpreter lock, and then wait
    forever for a thread of the group that needs this lock.
    """
    sys.stdout.flush()
    os._exit(0)


class Served:
    """A program that runs beside this one and is read line by line.

    A training program reads a number of steps from each line of its input, and answers "took <seconds>".

    Args:
        command: command of the program.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        # A file can hold any amount of text, but an unread pipe would stop the program once it is full.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        self._process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE.parent,
        )

    def steps(self, count: int) -> float:
        """Return the seconds that `count` steps take.

        Raises:
            RuntimeError: the program has ended; the message contains its stderr.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{count}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return float(self.line("took").split()[1])

    def line(self, start: str) -> str:
        """Return the next line that begins with `start`.

        Raises:
            RuntimeError: the program has ended; the message contains its stderr.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        raise self._ended()

    def _ended(self) -> RuntimeError:
        code = self._process.wait(timeout=60)
        self._errors.seek(0)
        return RuntimeError(_ending(self._command, code, self._errors.read()))

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._errors:
            try:
                # The line "0" ends the program, because another process may hold the pipe open.
                with contextlib.suppress(BrokenPipeError):
                    self._process.communicate("0\n", timeout=60)
            except subprocess.TimeoutExpired as late:
                self._process.kill()
                raise RuntimeError(f"{shlex.join(self._command)} did not end") from late
