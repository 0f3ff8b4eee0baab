"""Times at which the calls of a session ran, under the name of `ray.timeline`."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, overload

from trainkit.errors import ConfigError
from trainkit.runtime import session
from trainkit.runtime.observability.call_recorder import FOLDER, RecordedCall
from trainkit.settings import TIMELINE, records_calls


@overload
def timeline(filename: None = None) -> list[dict[str, Any]]: ...
@overload
def timeline(filename: str | os.PathLike[str]) -> None: ...
def timeline(filename: str | os.PathLike[str] | None = None) -> list[dict[str, Any]] | None:
    """Return the times at which the session's tasks and methods ran, as events of a Chrome trace.

    https://ui.perfetto.dev and chrome://tracing can show the file. A call is included shortly after its
    result arrives, even if the process that ran it has ended. A call is not included if its process was
    killed during the call. For each process, only the first 100,000 calls are included. With engine="inline",
    each step of a generator's stream is a separate event. On Ray, the function returns the events of
    `ray.timeline`.

    Args:
        filename: path of a JSON file for the events; None returns the events.

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
            "this session does not record its calls, because recording slows each call by some "
            f"microseconds: set {TIMELINE}=1 before the program calls trainkit.init()"
        )
    if filename is None:
        return events
    Path(filename).write_text(json.dumps(events), encoding="utf-8")
    return None


def _recorded(folder: Path) -> Iterator[RecordedCall]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            # A line without a line end is still being written, or the disk became full while it was written.
            if line.endswith("]\n"):
                yield RecordedCall(*json.loads(line))


def trace_events(calls: Iterable[RecordedCall]) -> list[dict[str, Any]]:
    """Return the calls as events of a Chrome trace, in the order of their start times.

    Calls that ran in a process at the same time are shown in different rows (`tid`).
    """
    events: list[dict[str, Any]] = []
    # The list of each process contains the end time of the last call in each of its rows.
    ends: dict[int, list[float]] = {}
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
