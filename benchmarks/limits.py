"""Bare work that trainkit's operations can't avoid, as `Plain` objects that are timed beside them."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import pickle
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.interleaved import Plain
from trainkit.tune.store.schema import create_database


@contextmanager
def round_trips(count: int) -> Iterator[Plain]:
    """Yield work of `count` bare round trips of a pickle over a Unix socket between two Python processes."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            while data := theirs.recv(65536):
                theirs.send(pickle.dumps(pickle.loads(data), 5))
        finally:  # the child must never unwind the parent's stack
            os._exit(0)
    theirs.close()

    def work() -> None:
        for index in range(count):
            ours.send(pickle.dumps(("same", 1, (index,), {}), 5))
            pickle.loads(ours.recv(65536))

    try:
        yield Plain(work)
    finally:
        ours.close()
        os.waitpid(pid, 0)


FORKS = 5


def forks() -> None:
    """Fork processes that end at once, and wait for their ends: the least work of a trial."""
    for _ in range(FORKS):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)


def insertions() -> None:
    """Keep ten thousand values sorted as they arrive, as schedulers do."""
    rng, ordered = random.Random(0), list[float]()
    for _ in range(10_000):
        bisect.insort(ordered, rng.random())


@contextmanager
def commits(folder: Path, count: int) -> Iterator[Plain]:
    """Yield work of `count` transactions of a result and a decision, in a file like an experiment's."""
    connection = create_database(folder / "bare.sqlite")
    numbers = itertools.count()
    connection.execute("PRAGMA foreign_keys=OFF")

    def work() -> None:
        for _ in range(count):
            number = next(numbers)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT INTO results VALUES ('t', 0, ?, ?, '{\"loss\": 0.5}')", (number, number)
            )
            connection.execute("INSERT INTO decisions VALUES (?, 't', 0, 1, 'CONTINUE', '{}')", (number,))
            connection.execute("COMMIT")

    with contextlib.closing(connection):
        yield Plain(work)
