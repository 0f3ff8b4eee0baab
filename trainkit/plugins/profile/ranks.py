"""Timing measurements of the ranks on this machine, read from the ranks' memory; and requests for traces."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import math
import mmap
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.profile.rank_meter import NAME, TRACE, Page
from trainkit.runtime.local.system import process

MAX_STEPS = 100
"""Maximum number of steps of a trace; each step may need megabytes."""
TRACE_S = 60.0
STRAGGLES = 1.2
"""Factor: the own time per batch of a straggler is more than this factor times the median of the other
ranks.
"""
_POLL_S = 0.02

Row = dict[str, Any]


class Rank:
    """State of one rank, as read from its memory page.

    Args:
        pid: process id of the rank.
        page: copy of the page.

    Attributes:
        recent: snapshot of the last seconds in which the rank took batches; see `Page`.
        idle_s: seconds since the rank's last batch; None if it has taken no batch.
        own_s: mean seconds per batch, without waiting for other ranks; None if unknown.
    """

    def __init__(self, pid: int, page: Page) -> None:
        self.pid = pid
        self.page = page
        self.group = page.group.decode(errors="ignore") or f"pid {pid}"
        self.recent = [new - old for new, old in zip(page.newer, page.older, strict=True)]
        self.idle_s = max(0.0, SYSTEM.monotonic() - page.at) if page.batches else None
        batches, wait_s, step_s, others_s = self.recent
        known = batches and not math.isnan(others_s)
        self.own_s = max(0.0, (wait_s + step_s - others_s) / batches) if known else None

    def __str__(self) -> str:
        return f"rank {self.page.rank} of {self.page.world_size} (process {self.pid})"

    def row(self, straggles: bool | None) -> Row:
        """Return the state, including `straggles`, as a dictionary for JSON."""
        page, (batches, wait_s, step_s, others_s) = self.page, self.recent
        took = wait_s + step_s
        batches_per_s = batches / took if batches and took else None
        return {
            "pid": self.pid,
            "rank": page.rank,
            "world_size": page.world_size,
            "trainer": page.trainer.decode(errors="ignore"),
            "group": self.group,
            "counts": "optimizer steps" if page.steps_only else "batches",
            "batches": int(page.batches),
            "wait_s": None if page.steps_only else round(page.wait_s, 6),
            "step_s": round(page.step_s, 6),
            "batches_per_s": batches_per_s,
            "samples_per_s": batches_per_s * page.samples if batches_per_s and page.samples else None,
            "data_wait_percent": None if page.steps_only else _percent(wait_s, took),
            "rank_wait_percent": _percent(others_s, took),
            "own_s": self.own_s,
            "straggles": straggles,
            "idle_s": self.idle_s,
        }


def _percent(part: float, whole: float) -> float | None:
    return round(min(100.0, 100 * part / whole), 1) if whole and not math.isnan(part) else None


def rows(pids: Iterable[int]) -> list[Row]:
    """Return a row for each rank in these processes, grouped by trainer."""
    found = sorted(
        (rank for pid in pids for rank in ranks_of(pid)), key=lambda each: (each.group, each.page.rank)
    )
    trainers = itertools.groupby(found, lambda each: each.group)
    return [row for _, ranks in trainers for row in _of_trainer(list(ranks))]


def _of_trainer(ranks: Sequence[Rank]) -> Iterator[Row]:
    """Yield the rows of a trainer's ranks. If a rank's own time is unknown, its `straggles` is None.

    The straggler is the rank with the largest own time per batch, if this time is more than `STRAGGLES` times
    the median of the other ranks.
    """
    own = {each: each.own_s for each in ranks if each.page.world_size > 1 and each.own_s is not None}
    slowest = max(own, key=lambda each: own[each], default=None)
    others = [own_s for each, own_s in own.items() if each is not slowest]
    clear = slowest is not None and bool(others) and own[slowest] > STRAGGLES * statistics.median(others)
    for each in ranks:
        yield each.row(clear and each is slowest if each in own else None)


def ranks_of(pid: int) -> list[Rank]:
    """Return the ranks in a process; [] if it has none, has ended, or belongs to another user."""
    return [rank for path in process.memory_files(pid, NAME) if (rank := _read(pid, path)) is not None]


def _read(pid: int, path: str) -> Rank | None:
    try:
        page = Page.from_buffer_copy(Path(path).read_bytes())
    except (OSError, ValueError):  # The process has ended.
        return None
    return Rank(pid, page) if page.world_size else None


def trace(
    pid: int,
    folder: Path,
    steps: int,
    timeout_s: float = TRACE_S,
    *,
    ended: Callable[[], bool] = lambda: False,
) -> BinaryIO:
    """Record the next steps of a rank with torch's profiler.

    A step is the time from one batch to the next. The rank is slower while it is recorded.

    Args:
        pid: process id of the rank.
        folder: folder for temporary files of the trace while it is recorded.
        steps: number of steps to record, 1 to `MAX_STEPS`.
        timeout_s: seconds to wait until these steps are recorded.
        ended: function that returns True if no program waits for the trace any more; the recording then
            stops.

    Returns:
        Open file with the trace, which has no path; its format is Chrome's, which Perfetto can show.

    Raises:
        ConfigError: `steps` or `timeout_s` is out of range, or the process is not a rank of a trainer.
        TrainkitError: another trace of the rank is being recorded; the rank takes no batches or too few
            within `timeout_s`; the rank has ended; the profiler failed; or `ended` returned True.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise ConfigError(f"steps must be 1 to {MAX_STEPS}, not {steps}")
    if not 0 < timeout_s <= 3600:
        raise ConfigError(f"timeout_s must be more than 0 and at most 3600 seconds, not {timeout_s}")
    found = [
        (rank, path) for path in process.memory_files(pid, NAME) if (rank := _read(pid, path)) is not None
    ]
    if not found:
        raise ConfigError(
            f"process {pid} is not a rank of one of your trainers on this machine, or has just ended"
        )
    rank, path = max(found, key=lambda each: -math.inf if each[0].idle_s is None else -each[0].idle_s)
    if rank.idle_s is None:
        raise TrainkitError(
            f"{rank} cannot be traced, as it has taken no batch and no optimizer step so far: it has not "
            "begun, or its loop uses its own loader and no torch optimizer. Use a loader from "
            "prepare_data_loader(loader), or from iter_torch_batches() of get_dataset_shard()"
        )
    try:
        with (
            open(path, "r+b", buffering=0) as file,
            _reserved(file, rank) as page,
            tempfile.TemporaryDirectory(prefix="trace-", dir=folder, ignore_cleanup_errors=True) as place,
        ):
            page.folder, page.error, page.steps, page.taken = os.fsencode(place), b"", steps, 0
            _await_trace(rank, page, timeout_s, ended)
            return open(os.path.join(place, TRACE), "rb")
    except OSError as error:
        raise TrainkitError(f"the trace of {rank} cannot be saved: {error}") from error


@contextmanager
def _reserved(file: IO[bytes], rank: Rank) -> Iterator[Page]:
    """Yield the memory of `rank`; no other program can request a trace inside the block."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrainkitError(
            f"another trace of {rank} is being recorded: try again when it is complete"
        ) from None
    try:
        yield Page.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Page)))
    finally:
        # The lock is released explicitly, because the traceback of an error may keep the memory, and so the
        # file, open.
        fcntl.flock(file, fcntl.LOCK_UN)


def _await_trace(rank: Rank, page: Page, timeout_s: float, ended: Callable[[], bool]) -> None:
    """Request the trace that `page` describes, and wait until it is complete."""
    page.asked = page.number = page.number + 1
    page.due = 0.0
    deadline = SYSTEM.monotonic() + timeout_s
    try:
        while page.answered != page.number:
            if not process.exists(rank.pid):
                raise TrainkitError(f"{rank} has ended before its trace was complete")
            if ended():
                raise TrainkitError(f"the trace of {rank} is canceled, as its requester has disconnected")
            if SYSTEM.monotonic() > deadline:
                since = SYSTEM.monotonic() - page.at
                raise TrainkitError(
                    f"{rank} has made {page.taken:g} of {page.steps:g} steps within {timeout_s:g} s, and "
                    f"took its last batch {since:.1f} s ago: it is busy in a step, or stopped by a signal. "
                    "Request fewer steps, or pass a longer timeout_s"
                )
            SYSTEM.sleep(_POLL_S)
    finally:
        page.asked = 0.0
    if why := page.error.decode(errors="replace"):
        raise TrainkitError(f"the trace of {rank} has failed: {why}")
