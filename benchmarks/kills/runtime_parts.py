"""Programs of the runtime: tasks and actors whose results are acknowledged, and a detached actor."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import numpy as np

import trainkit
from benchmarks.kills.job import Job
from trainkit.errors import ActorDiedError, NodeDiedError, WorkerDiedError

WAVES, CALLS = 12, 6
SIZE = 50_000
"""Numbers in a result of a task: 400 kB, which lie in shared memory."""
COUNT = 60
EFFECTS = "effects"


def record(job: Job, session: int, name: str, wave: int, index: int) -> Any:
    """Write down that this call has run, and return an array of its number."""
    time.sleep(0.01)
    job.ack("ran", session, name, wave, index, to=EFFECTS)
    return np.full(SIZE, wave * 100 + index)


class Recorder:
    """Actor whose calls do what the tasks do."""

    def record(self, *call: Any) -> Any:
        """Write down that this call has run, and return an array of its number."""
        return record(*call)


def calls(job: Job) -> None:
    """Call tasks and actors, with and without retries, in waves; a wave is acknowledged call by call."""
    session = f"{os.getpid()} 0"
    trainkit.init(num_cpus=2)
    for wave in range(max((ack[2] for ack in job.lines() if ack[0] == "wave"), default=-1) + 1, WAVES):
        while True:
            try:
                _wave(job, session, wave)
                break
            except NodeDiedError:
                session = f"{os.getpid()} {int(session.split()[1]) + 1}"
                trainkit.shutdown()
                trainkit.init(num_cpus=2)
        job.ack("wave", session, wave)
    trainkit.shutdown()
    job.finish(job.lines(EFFECTS))


def _wave(job: Job, session: str, wave: int) -> None:
    sure, once = (trainkit.remote(max_retries=retries)(record) for retries in (-1, 0))
    lasting = trainkit.remote(max_restarts=-1, max_task_retries=-1)(Recorder).remote()
    mortal = trainkit.remote(Recorder).remote()
    forms = {"sure": sure, "once": once, "lasting": lasting.record, "mortal": mortal.record}
    refs = {
        (name, index): form.remote(job, session, name, wave, index)
        for name, form in forms.items()
        for index in range(CALLS)
    }
    for (name, index), ref in refs.items():
        failures: tuple[type[Exception], ...] = (WorkerDiedError, ActorDiedError)
        allowed = failures if name in ("once", "mortal") else ()
        with contextlib.suppress(*allowed):
            job.ack("value", session, name, wave, index, float(trainkit.get(ref)[-1]))


class Counter:
    """Detached actor that counts."""

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> int:
        """Add one, and return the count."""
        time.sleep(0.02)
        self.value += 1
        return self.value

    def read(self) -> int:
        """Return the count."""
        return self.value


def detached(job: Job) -> None:
    """Count with a detached actor, which outlives its program."""
    trainkit.init(num_cpus=2)
    value = 0
    while value < COUNT:
        try:
            value = _count(job)
        except WorkerDiedError:
            job.ack("lost", os.getpid())
        except NodeDiedError:
            job.ack("lost", os.getpid())
            trainkit.shutdown()
            trainkit.init(num_cpus=2)
    trainkit.shutdown()
    job.finish(value)


def _count(job: Job) -> int:
    try:
        counter = trainkit.get_actor("counter")
    except ValueError:
        counter = trainkit.remote(Counter).options(name="counter", lifetime="detached").remote()
        job.ack("new", os.getpid())
    value = trainkit.get(counter.read.remote())
    job.ack("found", value)
    while value < COUNT:
        value = trainkit.get(counter.add.remote())
        job.ack("value", value)
    trainkit.kill(counter)
    return value
