"""Reaping of ended child processes, and a descriptor that shows when children may have ended."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator


def ended_children() -> Iterator[tuple[int, int]]:
    """Reap the ended children, and yield the pid and the wait status of each child."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


class ChildWatch:
    """Descriptor that is readable when children of this process may have ended."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # Python writes to the fd only if a handler is set
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read_fd

    def ended(self) -> Iterator[tuple[int, int]]:
        """Reap the ended children when the descriptor is readable, and yield each child's pid and status."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        yield from ended_children()

    def leave(self) -> None:
        """Stop the watch in a newly forked child process, which has inherited the watch."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read_fd)
        os.close(self._write_fd)
