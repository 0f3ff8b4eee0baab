"""Timeline of a session: start and duration of its calls, with the interface of `ray.timeline`.

Each process appends a line per call to its own file in the session's folder. The timeline therefore includes
calls of killed processes, and needs no request to any process.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, overload

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.runtime import session
from trainkit.settings import TIMELINE, records_calls

FOLDER = "timeline"
"""Subfolder of the session's folder for the files."""
MAX_CALLS = 100_000
"""Maximum number of recorded calls of one process; later calls are left out."""


class RecordedCall(NamedTuple):
    """Call that has ended.

    Attributes:
        name: given name of the call, else the name of its function or "Class.method".
        start_s: start in seconds since 1970.
        busy_s: duration in seconds.
        task_id: id of the call in hexadecimal; None for a constructor.
        actor_id: id of the actor; None for a task.
        worker_id: id of the process.
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
        # A program may have several sessions in turn. At interpreter exit, a call may still be running.
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
        """Record the call that runs in the block; see `add`."""
        begun = SYSTEM.monotonic()
        try:
            yield
        finally:
            self.add(name, begun, task_id, actor_id)

    def add(self, name: str, begun: float, task_id: str | None, actor_id: str | None) -> None:
        """Record a call that ends now.

        Args:
            name: name of the call.
            begun: start by the monotonic clock.
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
        except OSError as error:  # the call itself succeeded
            self._left = 0
            _tell_unrecorded(error)


def _tell_unrecorded(error: OSError) -> None:
    sys.stderr.write(f"trainkit: further calls of this process are not in the timeline: {error}\n")


@overload
def timeline(filename: None = None) -> list[dict[str, Any]]: ...
@overload
def timeline(filename: str | os.PathLike[str]) -> None: ...
def timeline(filename: str | os.PathLike[str] | None = None) -> list[dict[str, Any]] | None:
    """Return the times of the session's tasks and methods, as events of a Chrome trace.

    https://ui.perfetto.dev and chrome://tracing show the file. A call appears a moment after its result, even
    if its process has ended since. A call that was killed with its process does not appear. The first 100,000
    calls of each process are kept. With engine="inline", each step of a stream is an event. On Ray, the
    result is that of `ray.timeline`.

    Args:
        filename: file to write the events to, as JSON; None returns them.

    Raises:
        ConfigError: calls are not recorded, because TRAINKIT_TIMELINE is not set.
    """
    engine = session.engine()
    if engine.name == "ray":
        events: list[dict[str, Any]] = importlib.import_module("ray").timeline()
    elif records_calls():
        events = trace_events(_recorded(engine.scratch_dir() / FOLDER))
    else:
        raise ConfigError(
            "the calls of this session are not recorded, as that makes each some microseconds longer: set "
            f"{TIMELINE}=1 before the program calls trainkit.init()"
        )
    if filename is None:
        return events
    Path(filename).write_text(json.dumps(events), encoding="utf-8")
    return None


def _recorded(folder: Path) -> Iterator[RecordedCall]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("]\n"):  # an incomplete line is still being written, or the disk was full
                yield RecordedCall(*json.loads(line))


def trace_events(calls: Iterable[RecordedCall]) -> list[dict[str, Any]]:
    """Return calls as the events of a Chrome trace, in the order in which they began.

    A process has as many rows (`tid`) as calls that ran in it at the same time.
    """
    events: list[dict[str, Any]] = []
    ends: dict[int, list[float]] = {}  # end of the last call in each row, by process
    names: dict[int, str] = {}
    for call in sorted(calls, key=lambda call: call.start_s):
        names[call.pid] = f"worker:{call.worker_id}"
        rows = ends.setdefault(call.pid, [])
        row = next((row for row, end in enumerate(rows) if end <= call.start_s), len(rows))
        rows[row : row + 1] = [call.start_s + call.busy_s]
        ids = {"task_id": call.task_id, "actor_id": call.actor_id, "worker_id": call.worker_id}
        events.append(
            {
                "cat": f"task::{call.name}",
                "name": call.name,
                "ph": "X",
                "ts": call.start_s * 1e6,
                "dur": call.busy_s * 1e6,
                "pid": call.pid,
                "tid": row,
                "args": {"name": call.name, **ids},
            }
        )
    return events + [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in names.items()
    ]
