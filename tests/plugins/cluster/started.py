"""One command on several machines, for tests of commands on other machines."""

from __future__ import annotations

import os
import queue
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Self

from trainkit.plugins.cluster.commands import GRACE_S, Event, RemoteCommand, RemoteError, show
from trainkit.plugins.cluster.machines import Machine


class RemoteCommands:
    """Command on several machines, with its output on this program's output.

    Args:
        commands: function that starts the command on each machine, with `tell` as the receiver of events.
        prefix: True: write "[host] " before each line of output.
    """

    def __init__(
        self, commands: Callable[[Callable[[Event], None]], Iterable[RemoteCommand]], prefix: bool
    ) -> None:
        self._prefix = prefix
        self._failures: list[RemoteError] = []
        self._ended: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._running = list(commands(self._on_event))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _on_event(self, event: Event) -> None:
        if event.kind in ("out", "err"):
            show(event, f"[{event.machine}] " if self._prefix else "")
        elif event.kind == "ended":
            if event.error is not None:
                self._failures.append(event.error)
            self._ended.put(event)

    def failures(self) -> list[RemoteError]:
        """Return the failures so far, in the order in which they happened."""
        return list(self._failures)

    def send_signal(self, number: int) -> None:
        """Send a signal to the command on each machine."""
        for command in self._running:
            command.send_signal(number)

    def wait(self) -> None:
        """Wait until the command has ended on all machines; after the first failure, end all commands.

        Raises:
            RemoteError: the first failure.
        """
        for _ in self._running:
            if self._ended.get().error is not None:
                break
        self.stop()
        if self._failures:
            raise self._failures[0]

    def stop(self) -> None:
        """End all commands and the processes that they started: by SIGTERM, and later by SIGKILL."""
        for command in self._running:
            command.leave()
        for command in self._running:
            if not command.join(2 * GRACE_S):
                command.kill()


def start(
    machines: Iterable[Machine],
    command: Sequence[str],
    *,
    environment: Mapping[str, str | None] | None = None,
    folder: str | os.PathLike[str] | None = None,
    python: str = sys.executable,
    prefix: bool = True,
) -> RemoteCommands:
    """Start one command on each machine; return at once.

    Args:
        machines: machines, such as `Machines.allocated()`, or some of them: `machines[1:]`.
        command: program and its arguments, without secrets.
        environment: environment variables to set, such as secrets, or to remove (None).
        folder: working folder on each machine; None: the folder of this program.
        python: Python on each machine, which keeps the command.
        prefix: True: write "[host] " before each line of output.
    """

    def begin(tell: Callable[[Event], None]) -> list[RemoteCommand]:
        return [
            RemoteCommand(machine, command, environment=environment, folder=folder, python=python, tell=tell)
            for machine in machines
        ]

    return RemoteCommands(begin, prefix)
