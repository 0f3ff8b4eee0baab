"""Figures of one rank, in a page of memory that other processes of the user can read, and traces on demand.

The page is an anonymous file of the rank's process, found by its name in /proc: it has no path, can be read
while the rank is busy in a step, and is gone with the process. `ranks.py` reads it.
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
from typing import Any, NamedTuple, Protocol, TypeVar, cast

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError

T = TypeVar("T")

log = logging.getLogger(__name__)

NAME = "tk-rank"
"""Name of the page's file."""
PAGE_BYTES = 8192
TEXT_AT, TEXT_BYTES = 1024, 1024
"""Where the page has who the rank is, as JSON."""
_NAME_BYTES = 400
"""Bytes there of each of its two names."""
FOLDER_AT, FOLDER_BYTES = 2048, 4096
"""Where the page has the folder that a trace is wanted in."""
ERROR_AT, ERROR_BYTES = 6144, 2048
"""Where the page has why there is no trace."""
TRACE = "trace.json"

_LOOK_S = 1.0
_MARKS = 6
"""Looks that the recent figures span: some seconds."""
_SAMPLE_S = 0.01
"""Between two questions to DDP how long it waited: each takes microseconds."""
_LIVE = struct.Struct("4d")
_RECENT = struct.Struct("8d")


class Cell(IntEnum):
    """Numbers of the page, each 8 bytes: live figures, recent ones, and what is asked for.

    Attributes:
        BATCHES, WAIT_S, STEP_S, AT: written at each batch; see `Figures`. AT: when it was given.
        DUE: when the rank looks at the others again; who asks for a trace sets it to 0.
        SAMPLES: of the last batch that was looked at; 0 if that is not known.
        OLDER: figures of the oldest look that is kept.
        NEWER: figures of the latest one.
        ASKED: number of the trace that is wanted; 0 for none.
        STEPS: how many steps it is to have.
        TAKEN: how many it has.
        ANSWERED: number of the last trace that there is, or that failed.
        NUMBER: that the last one was asked for under.
        STEPS_ONLY: 1 if what is counted is no batches but steps of optimizers.
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
    """Work of a rank so far.

    Attributes:
        batches: taken from its loaders.
        wait_s: seconds in which it waited for them.
        step_s: seconds from each batch to the question for the next.
        others_s: those of them in which it had its own gradients and waited for other ranks' gradients; nan
            if that is not known.
    """

    batches: float = 0.0
    wait_s: float = 0.0
    step_s: float = 0.0
    others_s: float = 0.0


class Timed(Protocol):
    """Function that returns one like `take`, whose batches and time are counted; `end` is no batch."""

    def __call__(self, take: Callable[[], T], end: Any) -> Callable[[], T]: ...


class RankMeter:
    """Counts what a rank takes from its loaders and how long that takes, and records traces.

    Until the rank takes a batch of a loader that is known here, steps of torch's optimizers are counted
    instead, whoever makes them: libraries and plain loops, whose loaders are their own.

    Args:
        rank: of the worker.
        world_size: how many there are.
        trainer: name of what is trained.
        group: the same text for all ranks of the trainer, and for no other's.

    Attributes:
        models: as they are wrapped; those of DDP tell how long they wait for other ranks.
    """

    def __init__(self, rank: int, world_size: int, *, trainer: str, group: str) -> None:
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()
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
        """Count the steps of optimizers in this process, until a batch is taken."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._cells[Cell.STEPS_ONLY] = 1.0
        self._hook = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        if self._step is None:  # the first one, which took nobody knows how long
            self._step = self._count(lambda: None, object())
        else:
            self._step()

    def _count_no_steps(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def timed(self, take: Callable[[], T], end: Any) -> Callable[[], T]:
        """Return a function for a pass over a loader; see `Timed`."""
        self._count_no_steps()
        if self._cells[Cell.STEPS_ONLY]:
            self._count = self._counting()
            self._marks = deque([Figures()], maxlen=_MARKS)
            _LIVE.pack_into(self._memory, 0, *(0.0,) * 4)
            _RECENT.pack_into(self._memory, 8 * Cell.OLDER, *(0.0,) * 8)
            self._cells[Cell.STEPS_ONLY] = 0.0
        return self._count(take, end)

    def metered(self, batches: Iterator[T]) -> Iterator[T]:
        """Return `batches`, counted; those of a process that this one has forked are not."""
        return _Metered(batches, self.timed) if os.getpid() == self._pid else batches

    def close(self) -> None:
        """Tell of this rank no more; a trace that is not complete fails."""
        self._count_no_steps()
        if self._recording is not None:
            recording = self._recording
            self._stop_recording()
            self._fail(recording.number, f"the rank has left its trainer after {recording.taken} steps")
        self._write(TEXT_AT, TEXT_BYTES, "")

    def _counting(self) -> Timed:
        """Return `timed`, whose counts are local variables: a step may take only microseconds."""
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
        """Do what is not done at each batch; an error there is not the loop's, and ends the measuring."""
        try:
            self._measure(now, batch)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if not self._is_broken:
                log.warning("the figures of this rank are kept no longer: %s", why)
            self._is_broken = True
            self._cells[Cell.DUE] = math.inf  # until a trace is asked for
            self._stop_recording()
            asked = self._cells[Cell.ASKED]
            if asked != self._cells[Cell.ANSWERED]:
                self._fail(asked, why)

    def _measure(self, now: float, batch: Any) -> None:
        """Keep the figures, and see if a trace is wanted."""
        cells = self._cells
        self._trace()
        told = [model for model in list(self.models) if hasattr(model, "_get_ddp_logging_data")]
        for model in told:
            self._others_s += self._waited_for_others(model)
        if now - self._marked_at >= _LOOK_S:
            known = told or self._world_size == 1
            mark = Figures._make([*cells[Cell.BATCHES : Cell.AT], self._others_s if known else math.nan])
            for model in told:
                if model.device_type == "cpu":  # that of a GPU would have to wait for its GPU
                    steps = (mark.batches - self._marks[-1].batches) * _SAMPLE_S / (now - self._marked_at)
                    model._set_ddp_runtime_logging_sample_rate(max(1, round(steps)))
            self._marked_at = now
            self._marks.append(mark)
            cells[Cell.SAMPLES] = samples_of(batch)
            _RECENT.pack_into(self._memory, 8 * Cell.OLDER, *self._marks[0], *mark)
        cells[Cell.DUE] = 0.0 if self._recording else now + (_SAMPLE_S if told else _LOOK_S)

    def _waited_for_others(self, model: Any) -> float:
        """Return the seconds since the last question in which DDP waited for the gradients of other ranks.

        DDP measures the last iteration that it has sampled, which stands for those since the one before.
        """
        data: Mapping[str, Any] = model._get_ddp_logging_data()
        iteration = data.get("iteration", 0)
        new, self._iterations[model] = iteration - self._iterations.get(model, 0), iteration
        waited = data.get("backward_comm_time", 0) - data.get("backward_compute_comm_overlap_time", 0)
        return float(new * max(0, waited) / 1e9)

    def _trace(self) -> None:
        """Begin, continue or end the recording that is asked for."""
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
            if asked != recording.number:  # who asked has given up, or is gone
                self._stop_recording()
            elif recording.taken < cells[Cell.STEPS]:
                recording.step()
            else:
                self._recording = None
                recording.stop()
                try:
                    recording.save(Path(read_text(self._memory, FOLDER_AT, FOLDER_BYTES), TRACE))
                except Exception as error:  # such as for want of room
                    self._fail(asked, f"{type(error).__name__}: {error}")
                else:
                    cells[Cell.ANSWERED] = asked

    def _stop_recording(self) -> None:
        """End the recording, if there is one; it is of no use any more, so errors of torch's don't matter."""
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


class _Metered(Iterator[T]):
    """Iterator over batches that are counted: with a length if theirs has one, and it outlives an error."""

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
    """Trace of some steps, by torch's profiler.

    Attributes:
        number: that it was asked for under.
        thread: whose steps it has.
        taken: steps that it has so far.
    """

    def __init__(self, number: float) -> None:
        import torch
        from torch.profiler import ProfilerAction, ProfilerActivity, profile

        if torch._C._autograd._profiler_enabled():  # torch would end that one, and not say so
            raise ConfigError("a profiler runs in it already: wait until that has ended")
        self.number = number
        self.thread = threading.current_thread()
        self.taken = 0
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, schedule=lambda _: ProfilerAction.RECORD)
        self._profile.start()

    def step(self) -> None:
        """Note that another step begins."""
        self._profile.step()

    def stop(self) -> None:
        """Record no more."""
        self._profile.stop()

    def save(self, path: Path) -> None:
        """Write the trace, in the format of Chrome's."""
        self._profile.export_chrome_trace(str(path))


def _page() -> mmap.mmap:
    """Return a page of memory; others can read it where the system has files in memory."""
    if not hasattr(os, "memfd_create"):
        return mmap.mmap(-1, PAGE_BYTES)
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, PAGE_BYTES)
        return mmap.mmap(fd, PAGE_BYTES)
    finally:
        os.close(fd)  # the page has an open file of its own


def _within(name: str, shorter: slice) -> str:
    """Return as much of a name as has room there; `shorter` leaves out a character."""
    while len(json.dumps(name, ensure_ascii=False).encode(errors="replace")) > _NAME_BYTES:
        name = name[shorter]
    return name


def write_text(memory: mmap.mmap, at: int, size: int, text: str) -> None:
    """Write `text` into its place in a page, where `read_text` finds it; what has no room is cut off."""
    memory[at : at + size] = text.encode(errors="replace")[: size - 1].ljust(size, b"\0")


def read_text(memory: mmap.mmap, at: int, size: int) -> str:
    """Return the text at a place in a page."""
    return memory[at : at + size].rstrip(b"\0").decode(errors="replace")


def samples_of(batch: Any) -> int:
    """Return the first size of the first tensor in a batch; 0 if there is none."""
    while not hasattr(batch, "shape"):
        if isinstance(batch, Mapping):
            batch = list(batch.values())
        if not isinstance(batch, (list, tuple)) or not batch:
            return 0
        batch = batch[0]
    return int(batch.shape[0]) if len(batch.shape) else 0
