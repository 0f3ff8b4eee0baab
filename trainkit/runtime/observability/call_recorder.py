"""Recorder of a process's calls, for the timeline of a session.

Each process appends one line for each call to its own file in the session's folder. So the timeline includes
calls of killed processes, and can be read without requests to processes.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from trainkit.clock import SYSTEM
from trainkit.settings import records_calls

FOLDER = "timeline"
"""Subfolder of the session's folder that contains the files with recorded calls."""
MAX_CALLS = 100_000
"""Maximum number of recorded calls of one process. Later calls are not recorded."""


class RecordedCall(NamedTuple):
    """Call that has ended.

    Attributes:
        name: name that the user gave the call, else the name of its function or "Class.method".
        start_s: start of the call, in seconds since 1970.
        busy_s: duration in seconds.
        task_id: id of the call in hexadecimal; None for a constructor.
        actor_id: id of the actor; None for a task.
        worker_id: id of the process that ran the call.
        pid: process id.
    """

    name: str
    start_s: float
    busy_s: float
    task_id: str | None
    actor_id: str | None
    worker_id: str
    pid: int


class CallRecorder:
    """Recorder of the calls of this process.

    Args:
        folder: folder of the session.
        worker_id: id of this process.
    """

    def __init__(self, folder: Path, worker_id: str) -> None:
        path = folder / FOLDER / f"{worker_id}.jsonl"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The file is closed when the recorder is released, because a program may start several sessions. The
        # file is not closed at exit, because calls may still run then.
        weakref.finalize(self, os.close, self._fd).atexit = False
        self._worker_id = worker_id
        self._left = MAX_CALLS

    @classmethod
    def if_wanted(cls, folder: Path, worker_id: str) -> CallRecorder | None:
        """Return a recorder if TRAINKIT_TIMELINE requests it and its file can be made, else None."""
        if not records_calls():
            return None
        try:
            return cls(folder, worker_id)
        except OSError as error:
            _tell_unrecorded(error)
            return None

    @contextmanager
    def recorded(self, name: str, task_id: str | None, actor_id: str | None) -> Iterator[None]:
        """Record the call that runs in the `with` block; see `add`."""
        begun = SYSTEM.monotonic()
        try:
            yield
        finally:
            self.add(name, begun, task_id, actor_id)

    def add(self, name: str, begun: float, task_id: str | None, actor_id: str | None) -> None:
        """Record a call that ends now.

        Args:
            name: name of the call.
            begun: start of the call, by the monotonic clock.
            task_id: id of the call; None for a constructor.
            actor_id: id of the actor; None for a task.
        """
        if self._left == 0:
            return
        self._left -= 1
        busy_s = SYSTEM.monotonic() - begun
        ids = task_id, actor_id, self._worker_id, os.getpid()
        call = RecordedCall(name, SYSTEM.now() - busy_s, busy_s, *ids)
        line = f"{json.dumps(call)}\n".encode()
        try:
            if os.write(self._fd, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:  # the record can't be written, but the call itself succeeded
            self._left = 0
            _tell_unrecorded(error)


def _tell_unrecorded(error: OSError) -> None:
    sys.stderr.write(f"trainkit: the timeline omits all further calls of this process: {error}\n")
