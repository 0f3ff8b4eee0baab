"""Timing measurements of one rank, in memory that the user's other processes can read; and recording of
traces.

The memory is an anonymous file of the rank's process; other processes find it by its name in /proc. This file
needs no path, can be read while the rank is busy, and disappears when the process ends. `ranks.py` reads it.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import mmap
import os
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.train.distributed.observers import RankObserver, Timed

T = TypeVar("T")

log = logging.getLogger(__name__)

NAME = "tk-rank"
"""Name of the anonymous file that contains a rank's page of memory."""
PAGE_BYTES = 8192
TEXT_AT, TEXT_BYTES = 1024, 1024
"""Offset and size of the part of the page that identifies the rank, as JSON."""
_NAME_BYTES = 400
"""Maximum number of bytes of each of the two names in this JSON."""
FOLDER_AT, FOLDER_BYTES = 2048, 4096
"""Offset and size of the part of the page for the folder in which a requested trace is written."""
ERROR_AT, ERROR_BYTES = 6144, 2048
"""Offset and size of the part of the page for the error message of a trace that failed."""
TRACE = "trace.json"

_LOOK_S = 1.0
_MARKS = 6
"""Number of kept snapshots, one per second; recent measurements are differences between snapshots."""
_SAMPLE_S = 0.01
"""Seconds between two queries of the time that DDP has waited for other ranks; a query takes microseconds."""
_LIVE = struct.Struct("4d")
_RECENT = struct.Struct("8d")


class Cell(IntEnum):
    """Indices of the numbers of 8 bytes each at the beginning of the page: measurements and requests for
    traces.

    Attributes:
        BATCHES, WAIT_S, STEP_S, AT: measurements that are updated at each batch; see `Figures`. AT is the
            time of the last batch.
        DUE: time of the rank's next periodic check; a request for a trace sets it to 0, so that the check
            comes at once.
        SAMPLES: number of samples in the batch at the last check; 0 if unknown.
        OLDER: index of the first number of the oldest kept snapshot.
        NEWER: index of the first number of the latest snapshot.
        ASKED: number of the trace that is requested now; 0 if no trace is requested.
        STEPS: number of steps that the requested trace must contain.
        TAKEN: number of steps of the trace that are recorded so far.
        ANSWERED: number of the last trace that is complete or has failed.
        NUMBER: number of the last requested trace.
        STEPS_ONLY: 1 if optimizer steps are counted instead of batches.
    """

    BATCHES = 0
    WAIT_S = 1
    STEP_S = 2
    AT = 3
    DUE = 4
    SAMPLES = 5
    OLDER = 6
    NEWER = 10
    ASKED = 14
    STEPS = 15
    TAKEN = 16
    ANSWERED = 17
    NUMBER = 18
    STEPS_ONLY = 19


class Figures(NamedTuple):
    """Sums over all batches of a rank since its start.

    Attributes:
        batches: number of batches that the rank has taken from its loaders.
        wait_s: seconds that the rank has waited for batches.
        step_s: seconds between the arrival of each batch and the request for the next one.
        others_s: part of `step_s` in which the rank only waited for the gradients of other ranks; nan if
            unknown.
    """

    batches: float = 0.0
    wait_s: float = 0.0
    step_s: float = 0.0
    others_s: float = 0.0


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
    """

    def __init__(self, rank: int, world_size: int, *, trainer: str, group: str) -> None:
        super().__init__()
        self._memory = _page()
        self._cells = memoryview(self._memory).cast("d")
        self._world_size = world_size
        self._pid = os.getpid()
        self._marks = deque([Figures()], maxlen=_MARKS)
        self._marked_at = 0.0
        self._iterations: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._others_s = 0.0
        self._recording: _Recording | None = None
        self._is_broken = False
        about = {
            "rank": rank,
            "world_size": world_size,
            "trainer": _within(trainer[:_NAME_BYTES], slice(-1)),
            "group": _within(group[-_NAME_BYTES:], slice(1, None)),
        }
        self._write(TEXT_AT, TEXT_BYTES, json.dumps(about, ensure_ascii=False))
        self._count = self._counting()
        self._step: Callable[[], None] | None = None
        self._hook: Any = None

    def count_steps(self) -> None:
        """Count optimizer steps in this process until the first batch is taken."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._cells[Cell.STEPS_ONLY] = 1.0
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        if self._step is None:  # The first step has no known beginning, so only the later steps are measured.
            self._step = self._count(lambda: None, object())
        else:
            self._step()

    def _count_no_steps(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def timed(self, take: Callable[[], T], end: Any) -> Callable[[], T]:
        """Return a function that takes a batch and measures it, for one pass over a loader; see `Timed`."""
        self._count_no_steps()
        if self._cells[Cell.STEPS_ONLY]:
            self._count = self._counting()
            self._marks = deque([Figures()], maxlen=_MARKS)
            _LIVE.pack_into(self._memory, 0, *(0.0,) * 4)
            _RECENT.pack_into(self._memory, 8 * Cell.OLDER, *(0.0,) * 8)
            self._cells[Cell.STEPS_ONLY] = 0.0
        return self._count(take, end)

    def metered(self, batches: Iterator[T]) -> Iterator[T]:
        """Return `batches` with counting.

        A process that was forked from this one gets `batches` unchanged.
        """
        return _Metered(batches, self.timed) if os.getpid() == self._pid else batches

    def close(self) -> None:
        """Remove this rank from the measurements; a trace that is being recorded fails."""
        self._count_no_steps()
        if self._recording is not None:
            recording = self._recording
            self._stop_recording()
            self._fail(recording.number, f"the rank has left its trainer after {recording.taken} steps")
        self._write(TEXT_AT, TEXT_BYTES, "")

    def _counting(self) -> Timed:
        """Return `timed` with counters in fast local variables, because a step may take only microseconds."""
        monotonic, pack, due = SYSTEM.monotonic, _LIVE.pack_into, int(Cell.DUE)
        cells, memory, look = self._cells, self._memory, self._look
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
                pack(memory, 0, batches, wait_s, step_s, at)
                if at >= cells[due]:
                    look(at, batch)
                return batch

            return measured

        return timed

    def _look(self, now: float, batch: Any) -> None:
        """Do the periodic check; an error in it stops the measurements, but not the training."""
        try:
            self._measure(now, batch)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if not self._is_broken:
                log.warning("the measurements of this rank have stopped: %s", why)
            self._is_broken = True
            # With this value, no more checks are made until a trace is requested.
            self._cells[Cell.DUE] = math.inf
            self._stop_recording()
            asked = self._cells[Cell.ASKED]
            if asked != self._cells[Cell.ANSWERED]:
                self._fail(asked, why)

    def _measure(self, now: float, batch: Any) -> None:
        cells = self._cells
        self._trace()
        told = [model for model in list(self.models) if hasattr(model, "_get_ddp_logging_data")]
        for model in told:
            self._others_s += self._waited_for_others(model)
        if now - self._marked_at >= _LOOK_S:
            known = told or self._world_size == 1
            mark = Figures._make([*cells[Cell.BATCHES : Cell.AT], self._others_s if known else math.nan])
            for model in told:
                if model.device_type == "cpu":  # On a GPU, DDP's query would wait for the GPU.
                    steps = (mark.batches - self._marks[-1].batches) * _SAMPLE_S / (now - self._marked_at)
                    model._set_ddp_runtime_logging_sample_rate(max(1, round(steps)))
            self._marked_at = now
            self._marks.append(mark)
            cells[Cell.SAMPLES] = samples_of(batch)
            _RECENT.pack_into(self._memory, 8 * Cell.OLDER, *self._marks[0], *mark)
        cells[Cell.DUE] = 0.0 if self._recording else now + (_SAMPLE_S if told else _LOOK_S)

    def _waited_for_others(self, model: Any) -> float:
        """Return the seconds that DDP has waited for the gradients of other ranks since the last query.

        DDP measures only some of the iterations. The latest measured iteration stands for all iterations
        since the previous query.
        """
        data: Mapping[str, Any] = model._get_ddp_logging_data()
        iteration = data.get("iteration", 0)
        new, self._iterations[model] = iteration - self._iterations.get(model, 0), iteration
        waited = data.get("backward_comm_time", 0) - data.get("backward_compute_comm_overlap_time", 0)
        return float(new * max(0, waited) / 1e9)

    def _trace(self) -> None:
        cells, recording, asked = self._cells, self._recording, self._cells[Cell.ASKED]
        if recording is None:
            if asked in (0, cells[Cell.ANSWERED]):
                return
            try:
                self._recording = _Recording(asked)
            except Exception as error:
                self._fail(asked, f"{type(error).__name__}: {error}")
        elif not recording.thread.is_alive():
            self._stop_recording()
            self._fail(
                recording.number, f"the thread that took the steps ended after {recording.taken} steps"
            )
        elif recording.thread is threading.current_thread():
            recording.taken += 1
            cells[Cell.TAKEN] = recording.taken
            if asked != recording.number:  # The program that requested the trace has stopped waiting.
                self._stop_recording()
            elif recording.taken < cells[Cell.STEPS]:
                recording.step()
            else:
                self._recording = None
                recording.stop()
                try:
                    recording.save(Path(read_text(self._memory, FOLDER_AT, FOLDER_BYTES), TRACE))
                except Exception as error:  # An error is possible here if, for example, the disk is full.
                    self._fail(asked, f"{type(error).__name__}: {error}")
                else:
                    cells[Cell.ANSWERED] = asked

    def _stop_recording(self) -> None:
        """Stop the recording, if one is running, and discard its data.

        Errors of torch's profiler are ignored, because the data is not used.
        """
        recording, self._recording = self._recording, None
        if recording is not None:
            try:
                recording.stop()
            except Exception:
                log.debug("torch's profiler could not be stopped", exc_info=True)

    def _fail(self, number: float, why: str) -> None:
        if self._cells[Cell.ASKED] == number:
            self._write(ERROR_AT, ERROR_BYTES, why)
            self._cells[Cell.ANSWERED] = number

    def _write(self, at: int, size: int, text: str) -> None:
        write_text(self._memory, at, size, text)


def observing(rank: int, world_size: int, *, trainer: str, group: str) -> RankMeter:
    """Return a meter for this process that counts steps until a batch is taken; see `RankMeter`."""
    meter = RankMeter(rank, world_size, trainer=trainer, group=group)
    meter.count_steps()
    return meter


class _Metered(Iterator[T]):
    """Iterator over counted batches.

    It has a length if `batches` has one, and can continue after an error.
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
    """

    def __init__(self, number: float) -> None:
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        # Starting a second profiler in torch would silently end the first one.
        if torch._C._autograd._profiler_enabled():
            raise ConfigError("another profiler is already running in the process: wait until it has ended")
        self.number = number
        self.thread = threading.current_thread()
        self.taken = 0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, schedule=lambda _: ProfilerAction.RECORD)
        self._profile.start()

    def step(self) -> None:
        """Mark the start of the next step."""
        self._profile.step()

    def stop(self) -> None:
        """Stop recording."""
        self._profile.stop()

    def save(self, path: Path) -> None:
        """Write the trace in Chrome's format."""
        self._profile.export_chrome_trace(str(path))


def _page() -> mmap.mmap:
    """Return a new page of memory; other processes can read it if the system supports anonymous files."""
    if not hasattr(os, "memfd_create"):
        return mmap.mmap(-1, PAGE_BYTES)
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, PAGE_BYTES)
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)  # The file stays open as long as the mapping exists.


def _within(name: str, shorter: slice) -> str:
    """Shorten `name` until its JSON fits into `_NAME_BYTES`; `name[shorter]` drops one character."""
    while len(json.dumps(name, ensure_ascii=False).encode(errors="replace")) > _NAME_BYTES:
        name = name[shorter]
    return name


def write_text(memory: mmap.mmap, at: int, size: int, text: str) -> None:
    """Write `text` into `size` bytes of a page from offset `at`; a text that is too long is cut."""
    memory[at : at + size] = text.encode(errors="replace")[: size - 1].ljust(size, b"\0")


def read_text(memory: mmap.mmap, at: int, size: int) -> str:
    """Return the text that `write_text` has written to offset `at` of a page."""
    return memory[at : at + size].rstrip(b"\0").decode(errors="replace")


def samples_of(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor; 0 without a tensor."""
    while not hasattr(batch, "shape"):
        if isinstance(batch, Mapping):
            batch = list(batch.values())
        if not isinstance(batch, (list, tuple)) or not batch:
            return 0
        batch = batch[0]
    return int(batch.shape[0]) if len(batch.shape) else 0
