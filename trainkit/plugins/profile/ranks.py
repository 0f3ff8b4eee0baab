"""Timing measurements of the ranks on this machine, read from the ranks' memory; and requests for traces."""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.profile.rank_meter import (
    ERROR_AT,
    ERROR_BYTES,
    FOLDER_AT,
    FOLDER_BYTES,
    NAME,
    PAGE_BYTES,
    TEXT_AT,
    TEXT_BYTES,
    TRACE,
    Cell,
    Figures,
    read_text,
    write_text,
)
from trainkit.runtime.local.system import process

MAX_STEPS = 100
"""Maximum number of steps of a trace; each step may need megabytes."""
TRACE_S = 60.0
STRAGGLES = 1.2
"""A straggler's own time per batch is more than this factor times the median of the other ranks."""
_POLL_S = 0.02

Row = dict[str, Any]


@dataclass(frozen=True)
class Rank:
    """State of one rank, as read from its memory page.

    Attributes:
        pid: process id of the rank.
        rank, world_size, trainer, group: see `RankMeter`.
        now: cumulative work.
        recent: measurements over the last seconds in which the rank took batches.
        idle_s: seconds since the rank's last batch; None if it has taken no batch.
        samples: number of samples per batch; 0 if unknown.
        steps_only: True if optimizer steps are counted instead of batches.
    """

    pid: int
    rank: int
    world_size: int
    trainer: str
    group: str
    now: Figures
    recent: Figures
    idle_s: float | None
    samples: int
    steps_only: bool

    @property
    def own_s(self) -> float | None:
        """Mean seconds per batch, without waiting for other ranks; None if unknown."""
        took = self.recent.wait_s + self.recent.step_s - self.recent.others_s
        return max(0.0, took / self.recent.batches) if self.recent.batches and not math.isnan(took) else None

    def row(self, straggles: bool | None) -> Row:
        """Return the state, including `straggles`, as a dictionary for JSON."""
        recent = self.recent
        took = recent.wait_s + recent.step_s
        batches_per_s = recent.batches / took if recent.batches and took else None
        return {
            "pid": self.pid,
            "rank": self.rank,
            "world_size": self.world_size,
            "trainer": self.trainer,
            "group": self.group,
            "counts": "optimizer steps" if self.steps_only else "batches",
            "batches": int(self.now.batches),
            "wait_s": None if self.steps_only else round(self.now.wait_s, 6),
            "step_s": round(self.now.step_s, 6),
            "batches_per_s": batches_per_s,
            "samples_per_s": batches_per_s * self.samples if batches_per_s and self.samples else None,
            "data_wait_percent": None if self.steps_only else _percent(recent.wait_s, took),
            "rank_wait_percent": _percent(recent.others_s, took),
            "own_s": self.own_s,
            "straggles": straggles,
            "idle_s": self.idle_s,
        }


def _percent(part: float, whole: float) -> float | None:
    return round(min(100.0, 100 * part / whole), 1) if whole and not math.isnan(part) else None


def rows(pids: Iterable[int]) -> list[Row]:
    """Return a row for each rank in these processes, grouped by trainer."""
    found = sorted((rank for pid in pids for rank in ranks_of(pid)), key=lambda each: (each.group, each.rank))
    straggling = stragglers(found)
    return [each.row(straggling.get((each.group, each.rank))) for each in found]


def stragglers(ranks: Iterable[Rank]) -> dict[tuple[str, int], bool]:
    """Return for each rank whether it is a straggler; ranks whose times are unknown are left out.

    The straggler of a trainer is the rank with the largest own time per batch, if this time is more than
    `STRAGGLES` times the median of the other ranks.
    """
    by_group: dict[str, list[tuple[float, int]]] = {}
    for each in ranks:
        if each.world_size > 1 and each.own_s is not None:
            by_group.setdefault(each.group, []).append((each.own_s, each.rank))
    found = {}
    for group, own in by_group.items():
        slowest, number = max(own)
        others = [own_s for own_s, rank in own if rank != number]
        clear = bool(others) and slowest > STRAGGLES * statistics.median(others)
        found.update({(group, rank): clear and rank == number for _, rank in own})
    return found


def ranks_of(pid: int) -> list[Rank]:
    """Return the ranks in a process; [] if it has none, has ended, or belongs to another user."""
    return [rank for page in _pages(pid) if (rank := _read(pid, page)) is not None]


class Page(NamedTuple):
    """Memory page of a rank, open for reading and writing."""

    file: IO[bytes]
    memory: mmap.mmap
    cells: Any


@contextmanager
def _opened(path: str) -> Iterator[Page]:
    with (
        open(path, "r+b", buffering=0) as file,
        mmap.mmap(file.fileno(), PAGE_BYTES) as memory,
        memoryview(memory) as view,
        view.cast("d") as cells,
    ):
        yield Page(file, memory, cells)


def _pages(pid: int) -> list[str]:
    return process.memory_files(pid, NAME)


def _read(pid: int, path: str) -> Rank | None:
    try:
        with _opened(path) as page:
            facts = json.loads(read_text(page.memory, TEXT_AT, TEXT_BYTES))
            cells = list(page.cells[: len(Cell) + 16])
    except (OSError, ValueError):  # The process has ended or left its trainer.
        return None
    older = Figures(*cells[Cell.OLDER : Cell.NEWER])
    newer = Figures(*cells[Cell.NEWER : Cell.ASKED])
    return Rank(
        pid=pid,
        rank=facts["rank"],
        world_size=facts["world_size"],
        trainer=facts["trainer"],
        group=facts["group"] or f"pid {pid}",
        now=Figures._make([*cells[Cell.BATCHES : Cell.AT], newer.others_s]),
        recent=Figures(*(new - old for new, old in zip(newer, older, strict=True))),
        idle_s=max(0.0, SYSTEM.monotonic() - cells[Cell.AT]) if cells[Cell.BATCHES] else None,
        samples=int(cells[Cell.SAMPLES]),
        steps_only=bool(cells[Cell.STEPS_ONLY]),
    )


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
        ended: function that returns True if nobody waits for the trace any more; the recording then stops.

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
    found = [(rank, path) for path in _pages(pid) if (rank := _read(pid, path)) is not None]
    if not found:
        raise ConfigError(
            f"process {pid} is not a rank of one of your trainers on this machine, or has just ended"
        )
    rank, path = max(found, key=lambda each: -math.inf if each[0].idle_s is None else -each[0].idle_s)
    name = f"rank {rank.rank} of {rank.world_size} (process {pid})"
    if rank.idle_s is None:
        raise TrainkitError(
            f"{name} cannot be traced, as it has taken no batch and no optimizer step so far: it has not "
            "begun, or its loop uses its own loader and no torch optimizer. Use a loader from "
            "prepare_data_loader(loader), or from iter_torch_batches() of get_dataset_shard()"
        )
    try:
        with _opened(path) as page:
            return _recorded(page, name, pid, folder, steps, timeout_s, ended)
    except OSError as error:
        raise TrainkitError(f"the trace of {name} cannot be saved: {error}") from error


def _recorded(
    page: Page,
    name: str,
    pid: int,
    folder: Path,
    steps: int,
    timeout_s: float,
    ended: Callable[[], bool],
) -> BinaryIO:
    file, memory, cells = page
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # Closing releases the lock.
    except BlockingIOError:
        raise TrainkitError(
            f"another trace of {name} is being recorded: try again when it is complete"
        ) from None
    place = Path(tempfile.mkdtemp(prefix="trace-", dir=folder))
    number = cells[Cell.NUMBER] = cells[Cell.NUMBER] + 1
    try:
        write_text(memory, FOLDER_AT, FOLDER_BYTES, str(place))
        write_text(memory, ERROR_AT, ERROR_BYTES, "")
        cells[Cell.STEPS], cells[Cell.TAKEN] = steps, 0
        cells[Cell.ASKED] = number
        cells[Cell.DUE] = 0.0
        deadline = SYSTEM.monotonic() + timeout_s
        while cells[Cell.ANSWERED] != number:
            if not process.exists(pid):
                raise TrainkitError(f"{name} has ended before its trace was complete")
            if ended():
                raise TrainkitError(f"the trace of {name} is canceled, as its requester has disconnected")
            if SYSTEM.monotonic() > deadline:
                since = SYSTEM.monotonic() - cells[Cell.AT]
                raise TrainkitError(
                    f"{name} has made {int(cells[Cell.TAKEN])} of {steps} steps within {timeout_s:g} s, and "
                    f"took its last batch {since:.1f} s ago: it is busy in a step, or stopped by a signal. "
                    "Request fewer steps, or pass a longer timeout_s"
                )
            SYSTEM.sleep(_POLL_S)
        if why := read_text(memory, ERROR_AT, ERROR_BYTES):
            raise TrainkitError(f"the trace of {name} has failed: {why}")
        return (place / TRACE).open("rb")
    finally:
        cells[Cell.ASKED] = 0.0
        shutil.rmtree(place, ignore_errors=True)
