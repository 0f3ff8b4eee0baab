"""Timing measurements of one rank, in memory that other processes of the user can read, and the recording of
traces.

The memory is an anonymous file of the rank's process; other processes find it by its name in /proc. An
anonymous file needs no path, can be read while the rank is busy, and disappears when the process ends.
`ranks.py` reads it.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import mmap
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from ctypes import c_char, c_double
from typing import Any, TypeVar, cast

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.train.distributed.observers import RankObserver, Timed

T = TypeVar("T")

log = logging.getLogger(__name__)

NAME = "tk-rank"
"""Name of the anonymous file that contains a rank's page of memory."""
NAME_BYTES = 400
ERROR_BYTES = 2048
TRACE = "trace.json"

_LOOK_S = 1.0
_MARKS = 6
"""Number of snapshots that are kept, one for each second.

Recent measurements are differences between snapshots.
"""
_SAMPLE_S = 0.01
"""Seconds between two queries of the time that DDP has waited for other ranks; a query takes microseconds."""
_NO_WORK = (0.0,) * 4
_LIVE = struct.Struct("4d")
"""The first four numbers of a page."""


class Page(ctypes.Structure):
    """Memory of a rank: measurements, requests for traces, and the rank's identity.

    A snapshot has four sums over all batches of the rank. The first three are `batches`, `wait_s` and
    `step_s`. The fourth is the part of `step_s` in which the rank only waited for the gradients of other
    ranks; nan if unknown.

    Attributes:
        batches: number of batches that the rank has taken from its loaders.
        wait_s: seconds that the rank has waited for batches.
        step_s: seconds between the arrival of each batch and the request for the next one.
        at: time of the last batch.
        older: the oldest kept snapshot.
        newer: the latest snapshot.
        due: time of the rank's next periodic check; a request for a trace sets it to 0, so that the check
            comes at once.
        samples: number of samples in the batch at the last check; 0 if unknown.
        steps_only: 1 if optimizer steps are counted instead of batches.
        asked: number of the trace that is requested now; 0 if no trace is requested.
        steps: number of steps that the requested trace must contain.
        taken: number of steps of the trace that are recorded so far.
        answered: number of the last trace that is complete or has failed.
        number: number of the last requested trace.
        rank, world_size, trainer, group: see `RankMeter`; `world_size` is 0 if the rank has left its trainer.
        folder: folder in which the requested trace is written.
        error: error message of a trace that failed.
    """

    _fields_ = (
        *((name, c_double) for name in ("batches", "wait_s", "step_s", "at")),
        ("older", c_double * 4),
        ("newer", c_double * 4),
        *((name, c_double) for name in ("due", "samples", "steps_only")),
        *((name, c_double) for name in ("asked", "steps", "taken", "answered", "number")),
        ("rank", ctypes.c_int),
        ("world_size", ctypes.c_int),
        ("trainer", c_char * NAME_BYTES),
        ("group", c_char * NAME_BYTES),
        ("folder", c_char * 4096),
        ("error", c_char * ERROR_BYTES),
    )


class RankMeter(RankObserver):
    """Meter of a rank's batches and their times, which also records requested traces.

    Until the rank takes a batch from a loader that trainkit observes, the meter counts the steps of all torch
    optimizers instead. Therefore, the meter also works for libraries and loops that use their own loaders.

    Args:
        rank: rank of this worker.
        world_size: number of workers.
        trainer: name of the training run.
        group: text that is the same on all ranks of a trainer, and different for other trainers.

    Attributes:
        models: models after wrapping; DDP models report how long they have waited for other ranks.
        page: memory with the measurements.
    """

    def __init__(self, rank: int, world_size: int, *, trainer: str, group: str) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        super().__init__()
        self.page = _new_page()
        self.page.trainer = trainer.encode(errors="replace")[:NAME_BYTES]
        self.page.group = group.encode(errors="replace")[-NAME_BYTES:]
        self.page.rank, self.page.world_size, self.page.steps_only = rank, world_size, 1
        self._world_size = world_size
        self._pid = os.getpid()
        self._marks = deque([_NO_WORK], maxlen=_MARKS)
        self._marked_at = 0.0
        self._iterations: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._others_s = 0.0
        self._recording: _Recording | None = None
        self._is_broken = False
        self._count = self._counting()
        self._step: Callable[[], None] | None = None
        self._hook: Any = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        if self._step is None:  # The first step has no known beginning, so only the later steps are measured.
            self._step = self._count(lambda: None, object())
        else:
            self._step()

    def timed(self, take: Callable[[], T], end: Any) -> Callable[[], T]:
        """Return a function that takes a batch and measures it, for one pass over a loader; see `Timed`."""
        if self.page.steps_only:
            self._hook.remove()
            self._count = self._counting()
            self._marks = deque([_NO_WORK], maxlen=_MARKS)
            ctypes.memset(ctypes.addressof(self.page), 0, Page.due.offset)
            self.page.steps_only = 0
        return self._count(take, end)

    def metered(self, batches: Iterator[T]) -> Iterator[T]:
        """Return `batches` with counting.

        A process that was forked from this one gets `batches` unchanged.
        """
        return _Metered(batches, self.timed) if os.getpid() == self._pid else batches

    def close(self) -> None:
        """Remove this rank from the measurements; a trace that is being recorded fails."""
        self._hook.remove()
        if self._recording is not None:
            number, taken = self._recording.number, self._recording.taken
            self._end_trace(number, f"the rank has left its trainer after {taken} steps")
        self.page.world_size = 0

    def _counting(self) -> Timed:
        """Return `timed` with counters in fast local variables, because a step may take only microseconds."""
        monotonic, pack, page, look = SYSTEM.monotonic, _LIVE.pack_into, self.page, self._look
        batches, wait_s, step_s, at = 0, 0.0, 0.0, 0.0

        def timed(take: Callable[[], T], end: Any) -> Callable[[], T]:
            nonlocal at
            at = monotonic()

            def measured() -> T:
                nonlocal batches, wait_s, step_s, at
                asked = monotonic()
                step_s += asked - at
                batch = take()
                at = monotonic()
                wait_s += at - asked
                if batch is end:
                    return batch
                batches += 1
                pack(page, 0, batches, wait_s, step_s, at)
                if at >= page.due:
                    look(at, batch)
                return batch

            return measured

        return timed

    def _look(self, now: float, batch: Any) -> None:
        """Do the periodic check; an error in it stops the trace or the measurements, but not the training."""
        page = self.page
        # A program that requests a trace sets `due` to 0. Requests that arrive after this line are not lost.
        page.due, asked = math.inf, page.asked
        try:
            self._trace()
        except Exception as error:  # The check may fail, for example if the disk is full.
            self._end_trace(asked, f"{type(error).__name__}: {error}")
        if not self._is_broken:
            try:
                page.due = now + self._measure(now, batch)
            except Exception as error:
                self._is_broken = True
                log.warning("the measurements of this rank have stopped: %s: %s", type(error).__name__, error)
        if self._recording or page.asked not in (0, page.answered):
            page.due = 0.0

    def _measure(self, now: float, batch: Any) -> float:
        """Update the recent measurements; return the seconds until the next check."""
        page = self.page
        told = [model for model in list(self.models) if hasattr(model, "_get_ddp_logging_data")]
        for model in told:
            self._others_s += self._waited_for_others(model)
        if now - self._marked_at >= _LOOK_S:
            others_s = self._others_s if told or self._world_size == 1 else math.nan
            for model in told:
                if model.device_type == "cpu":  # On a GPU, DDP's query would wait for the GPU.
                    steps = (page.batches - self._marks[-1][0]) * _SAMPLE_S / (now - self._marked_at)
                    model._set_ddp_runtime_logging_sample_rate(max(1, round(steps)))
            self._marked_at = now
            self._marks.append((page.batches, page.wait_s, page.step_s, others_s))
            page.samples = samples_of(batch)
            page.older[:], page.newer[:] = self._marks[0], self._marks[-1]
        return _SAMPLE_S if told else _LOOK_S

    def _waited_for_others(self, model: Any) -> float:
        """Return the seconds that DDP has waited for the gradients of other ranks since the last query.

        DDP measures only some of the iterations. The time of the latest measured iteration is used for all
        iterations since the previous query.
        """
        data: Mapping[str, Any] = model._get_ddp_logging_data()
        iteration = data.get("iteration", 0)
        new, self._iterations[model] = iteration - self._iterations.get(model, 0), iteration
        waited = data.get("backward_comm_time", 0) - data.get("backward_compute_comm_overlap_time", 0)
        return float(new * max(0, waited) / 1e9)

    def _trace(self) -> None:
        """Start, continue or complete the requested trace."""
        page, recording = self.page, self._recording
        if recording is None:
            if page.asked not in (0, page.answered):
                self._recording = _Recording(page.asked)
        elif not recording.thread.is_alive():
            self._end_trace(
                recording.number, f"the thread that took the steps ended after {recording.taken} steps"
            )
        elif recording.thread is threading.current_thread():
            recording.taken += 1
            page.taken = recording.taken
            if page.asked != recording.number:
                self._end_trace(recording.number, "the program that requested the trace has stopped waiting")
            elif recording.taken < page.steps:
                recording.profile.step()
            else:
                self._recording = None
                recording.profile.stop()
                recording.profile.export_chrome_trace(os.path.join(os.fsdecode(page.folder), TRACE))
                page.answered = recording.number

    def _end_trace(self, number: float, why: str) -> None:
        """Discard the trace with this number; report the failure to the program that requested it, if this
        program still waits.
        """
        recording, self._recording = self._recording, None
        if recording is not None:
            try:
                recording.profile.stop()
            except Exception:
                log.debug("torch's profiler could not be stopped", exc_info=True)
        if self.page.asked == number:
            self.page.error = why.encode(errors="replace")[:ERROR_BYTES]
            self.page.answered = number


class _Metered(Iterator[T]):
    """Iterator over counted batches.

    Iterator over `batches` that counts them. The iterator can continue after an error, and has a length if
    `batches` has a length.
    """

    def __init__(self, batches: Iterator[T], timed: Timed) -> None:
        self._batches = batches
        self._end: Any = object()
        self._take = timed(functools.partial(next, batches, self._end), self._end)

    def __len__(self) -> int:
        return len(cast(Sized, self._batches))

    def __bool__(self) -> bool:
        return True

    def __next__(self) -> T:
        batch: T = self._take()
        if batch is self._end:
            raise StopIteration
        return batch


class _Recording:
    """Recording of some steps with torch's profiler.

    Attributes:
        number: number of the requested trace.
        thread: thread whose training steps are recorded.
        taken: number of steps recorded so far.
        profile: torch's profiler.
    """

    def __init__(self, number: float) -> None:
        import torch
        from torch.profiler import ProfilerAction, profile

        # Starting a second profiler in torch would silently end the first one.
        if torch._C._autograd._profiler_enabled():
            raise ConfigError("another profiler is already running in the process: wait until it has ended")
        self.number = number
        self.thread = threading.current_thread()
        self.taken = 0
        self.profile = profile(schedule=lambda _: ProfilerAction.RECORD)
        self.profile.start()


def _new_page() -> Page:
    """Return a new page of memory; other processes can read it if the system supports anonymous files."""
    if not hasattr(os, "memfd_create"):
        return Page()
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, ctypes.sizeof(Page))
        return Page.from_buffer(mmap.mmap(fd, ctypes.sizeof(Page)))
    finally:
        os.close(fd)  # The file stays open as long as the mapping exists.


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor; 0 without a tensor."""
    while not hasattr(batch, "shape"):
        if isinstance(batch, Mapping):
            batch = list(batch.values())
        if not isinstance(batch, (list, tuple)) or not batch:
            return 0
        batch = batch[0]
    return int(batch.shape[0]) if len(batch.shape) else 0
