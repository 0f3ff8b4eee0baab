"""An actor to do bad things to; in a module of its own, so that its workers import little."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator


def fork(how: str) -> int:
    """Return the exit code of a child that comes out of this function too, as `how` says."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if how == "raise":
        raise LookupError("in the child")
    return sys.exit(5) if how == "exit" else 0


def yield_forks(how: str) -> Iterator[int]:
    yield -1
    yield fork(how)


class ForkedVictim:
    def __init__(self, how: str) -> None:
        self.code = fork(how)

    def made(self) -> int:
        return self.code


class AwaitingVictim:
    async def fork(self, how: str) -> int:
        return fork(how)


class Victim:
    def fork(self, how: str) -> int:
        return fork(how)

    def pid(self) -> int:
        return os.getpid()

    def same(self, value: int) -> int:
        return value

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self, code: int) -> None:
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(code)

    def leave(self) -> None:
        raise SystemExit(4)

    def kill_itself(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def spawn_family(self) -> list[int]:
        """A child and a grandchild in a session of their own, and a daemon that left its parent."""
        script = (
            "import subprocess as s, time; print(s.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
        )
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True
        )
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        forked = os.fork()
        if forked == 0:
            time.sleep(600)
            os._exit(0)
        return [child.pid, grandchild, forked]
