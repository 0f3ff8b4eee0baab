"""Actors that die and are made anew; in a module of their own, so that their workers import little."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import trainkit
from trainkit.runtime.local.worker.main import _Worker


def note(path: Path, line: str) -> None:
    """Append a line, whole even when several processes write."""
    with path.open("a") as file:
        file.write(f"{line}\n")


class Restartable:
    def __init__(self, log: Path | None = None, *given: Any) -> None:
        self.given = given
        self.count = 0
        self.log = log
        if log is not None:
            note(log, f"born {os.getpid()}")

    def pid(self) -> int:
        return os.getpid()

    def add(self, amount: int) -> int:
        self.count += amount
        return self.count

    def what_was_given(self) -> tuple[Any, ...]:
        return self.given

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def echo(self, value: Any) -> Any:
        return value

    def fetch(self, refs: list[Any]) -> Any:
        return trainkit.get(refs[0])

    def run(self, name: str, deaths: int = 0) -> str:
        """Note that it ran; die if it has run no more than `deaths` times."""
        assert self.log is not None
        note(self.log, name)
        if self.log.read_text().split("\n").count(name) <= deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        return name


class Leaver:
    """Ends while it owes a result, and while the node takes no notice for a second."""

    def leave(self, owing: Any, waiting: Any, node: int) -> None:
        self.kept = waiting.fetch.remote([owing.sleep.remote(3)])
        time.sleep(0.3)  # until it is asked for that result
        depart = _Worker.depart

        def depart_unseen(worker: _Worker, reason: str) -> None:
            subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {node}"])
            os.kill(node, signal.SIGSTOP)
            depart(worker, reason)

        _Worker.depart = depart_unseen  # type: ignore[method-assign]
        trainkit.exit_actor()


class Doomed:
    """Dies in its constructor, from its second life on if it is told so."""

    def __init__(self, log: Path, lives: int) -> None:
        note(log, "born")
        if len(log.read_text().split()) > lives:
            os._exit(9)

    def pid(self) -> int:
        return os.getpid()


class Raising:
    """Its constructor works once."""

    def __init__(self, log: Path) -> None:
        note(log, "born")
        if len(log.read_text().split()) > 1:
            raise KeyError("only once")

    def pid(self) -> int:
        return os.getpid()


class Borrower:
    def __init__(self, actor: Any = None) -> None:
        self.actor = actor

    def pid(self) -> int:
        return os.getpid()

    def take(self, actor: Any) -> None:
        self.actor = actor

    def ask(self, value: Any) -> Any:
        import trainkit

        return trainkit.get(self.actor.echo.remote(value), timeout=60)

    def wait_for_it(self, seconds: float) -> None:
        """Wait until the actor has slept so long."""
        import trainkit

        trainkit.get(self.actor.sleep.remote(seconds))

    def ask_pid(self) -> int:
        import trainkit

        return int(trainkit.get(self.actor.pid.remote(), timeout=60))

    def start(self, log: Path) -> int:
        """Own an actor that is made anew without end."""
        import trainkit

        self.actor = trainkit.remote(max_restarts=-1)(Restartable).remote(log)
        return self.ask_pid()

    def drop(self) -> None:
        self.actor = None


def born(log: Path) -> list[int]:
    """Pids of those who wrote that they were."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("born ")]
