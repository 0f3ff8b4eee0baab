"""Sides of a comparison that take turns in one run, so that what else the machine does meets all of them."""

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


class Plain:
    """Plain work that is timed now and again between measurements.

    Args:
        work: takes a hundredth of a second or so.

    Attributes:
        times: seconds that it took, one after another.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.times: list[float] = []

    def look(self) -> float:
        """Time it four times, each the best of five; return the least seconds."""
        self.times += [min(timed(self._work) for _ in range(5)) for _ in range(4)]
        return min(self.times[-4:])


def environment() -> dict[str, str]:
    """For a process that measures: one thread, and this package, compiled as an installed one is."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


def output_of(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return what a program prints; if it fails, what it wrote to its stderr is in the error.

    Args:
        command: that starts the program, in the folder of this repository.
        env: its environment, if it is not this process's.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent, env=env)
    if done.returncode != 0:
        raise RuntimeError(_ending(command, done.returncode, done.stderr))
    return done.stdout


def _ending(command: Sequence[str], code: int, errors: str) -> str:
    """Tell how a program ended, with what it wrote to its stderr."""
    return (
        f"{shlex.join(command)} ended with code {code}:\n{errors.strip() or 'it wrote nothing to its stderr'}"
    )


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
    """A program that runs beside this one and is read line by line.

    One that trains takes a number of steps on each line of its input, and answers "took <seconds>".

    Args:
        command: that starts it.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        # A file takes any amount of text, while a pipe that nobody reads stops the program once it is full.
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
            RuntimeError: the program has ended; the text it wrote to its stderr is in the message.
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
            RuntimeError: the program has ended; the text it wrote to its stderr is in the message.
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
                # The line ends the program: another process may hold the pipe open.
                with contextlib.suppress(BrokenPipeError):
                    self._process.communicate("0\n", timeout=60)
            except subprocess.TimeoutExpired as late:
                self._process.kill()
                raise RuntimeError(f"{shlex.join(self._command)} did not end") from late
