"""Stream of what changes, as server-sent events: an experiment, the list of experiments, or the sessions."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from trainkit.clock import SYSTEM
from trainkit.dashboard.board import Board, Row, TrialTable
from trainkit.dashboard.endpoints import STREAM, Call, Endpoint, QueryParameter, Waiting
from trainkit.dashboard.processes import sessions
from trainkit.dashboard.reading import NotFoundError, RowReader
from trainkit.errors import StoreError
from trainkit.tune.core.metrics import encode

EVERY_S = 0.5
"""Seconds between two looks at what may have changed."""
QUIET_S = 10.0
"""Seconds after which a word is sent although nothing has changed, so that who listens knows it."""
SHARE = 10
"""A look that takes long is followed by a rest of so many times as long."""
MAX_ROWS = 200
"""Trials that are sent at once; of more it is said that there are more, and who shows a page asks for it."""
MAX_EVENTS = 200

NICE = 10
"""How far looks stand back for the programs that they look at, as `nice` has it."""

Change = dict[str, Any]


def _stand_back() -> None:
    if sys.platform == "linux":  # elsewhere it is the whole process that has a priority
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, os.nice(0) + NICE))


def looking() -> ThreadPoolExecutor:
    """Return threads for the looks of one server, which stand back."""
    return ThreadPoolExecutor(4, "trainkit-dashboard-looks", _stand_back)


class Watched(Protocol):
    """Server, as streams know it."""

    board: Board
    looking: ThreadPoolExecutor
    waiting: Waiting

    @property
    def is_ending(self) -> bool:
        """True once streams have to end."""


class ExperimentWatch:
    """Watch over one experiment: what has changed since the last look.

    Args:
        board: all experiments.
        folder: of this one.
    """

    def __init__(self, board: Board, folder: Path) -> None:
        self._board, self._folder = board, folder
        self._table: TrialTable | None = None
        self._generation: int | None = None
        self._seq = 0
        self._summary: dict[str, Any] = {}

    def __call__(self) -> Change | None:
        """Look; return what has changed, or None; at first, the summary, and that the trials are to be read.

        Raises:
            StoreError: the experiment is gone, or its file is damaged.
        """
        if self._table is None:  # not before, as this reads
            self._table = self._board.table(self._folder)
        generation = self._table.refresh(EVERY_S / 2)
        newest = self._table.newest
        summary = self._board.summary(self._folder, at_leisure=True)
        if self._generation is None:
            # What has changed since the page was made is not known: it is to be asked for again.
            rows, more = list[Row](), True
        else:
            rows, more = self._table.changed_since(self._generation, MAX_ROWS)
        events = []
        if self._generation is None or newest < self._seq:  # another experiment of the same name
            self._seq = newest
        elif newest > self._seq:
            with RowReader(self._folder) as reader:
                events = reader.events_after(self._seq, MAX_EVENTS)
            is_all = len(events) < MAX_EVENTS
            self._seq = max([newest] * is_all + [each["seq"] for each in events])
        changed = ["trials"] * bool(rows or more) + ["events"] * bool(events)
        changed += ["summary"] * (summary != self._summary)
        self._generation, self._summary = generation, summary
        if not changed:
            return None
        return {
            "changed": changed,
            "rows": rows,
            "more": more,
            "events": events,
            "seq": self._seq,
            "summary": summary,
        }


class ListWatch:
    """Watch over a list that is read as a whole.

    Args:
        name: of the list in what is sent.
        read: reads it.
        ignored: field of an entry that always changes.
    """

    def __init__(self, name: str, read: Callable[[], list[dict[str, Any]]], ignored: str = "") -> None:
        self._ignored = ignored
        self._name, self._read = name, read
        self._last: list[dict[str, Any]] | None = None

    def __call__(self) -> Change | None:
        """Look; return the list if it has changed, or None."""
        found = self._read()
        compared = [{name: value for name, value in each.items() if name != self._ignored} for each in found]
        if compared == self._last:
            return None
        self._last = compared
        return {"changed": [self._name], self._name: found}


async def stream(call: Call) -> Response:
    """Return a stream of what changes."""
    server: Watched = call.server
    name = call.query["experiment"]
    if call.query["sessions"]:
        watch: Callable[[], Change | None] = ListWatch("sessions", sessions, "age_s")
    elif name:
        watch = ExperimentWatch(server.board, await run_in_threadpool(server.board.folder_of, name))
    else:
        watch = ListWatch("experiments", server.board.summaries)
    # One look at a time: those that wait for another's take no thread from the looks at something else.
    watched = "sessions" if call.query["sessions"] else f"experiment {name}"
    turn = server.waiting.turn(f"look at {watched}")
    async with turn:
        first = await run_in_threadpool(watch)  # what is wrong now is told by the status of the answer
    return StreamingResponse(_told(server, watch, first, turn), media_type=STREAM)


async def _told(
    server: Watched, watch: Callable[[], Change | None], first: Change | None, turn: asyncio.Semaphore
) -> AsyncIterator[str]:
    found, last = first, SYSTEM.monotonic()
    while not server.is_ending:
        if found is not None:
            yield f"event: change\ndata: {encode({**found, 'time': SYSTEM.now()})}\n\n"
            last = SYSTEM.monotonic()
        elif SYSTEM.monotonic() - last > QUIET_S:
            yield ": nothing has changed\n\n"
            last = SYSTEM.monotonic()
        await turn.acquire()
        begun = SYSTEM.monotonic()
        try:
            found = await _looked(server, watch, turn)
        except (StoreError, NotFoundError) as error:
            yield f"event: problem\ndata: {encode({'error': str(error)})}\n\n"
            return
        now = SYSTEM.monotonic()
        rest = SHARE * (now - begun)
        # To the next moment at which all look, so that one of them reads for all.
        await asyncio.sleep(rest + EVERY_S - (now + rest) % EVERY_S)


async def _looked(
    server: Watched, watch: Callable[[], Change | None], turn: asyncio.Semaphore
) -> Change | None:
    """Look, and give the turn to the next once that has ended, which may be after the client has gone."""
    loop, look = asyncio.get_running_loop(), server.looking.submit(watch)

    def give_turn(_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(turn.release)

    look.add_done_callback(give_turn)
    return await asyncio.wrap_future(look)


STREAMS = (
    Endpoint(
        "GET",
        "/api/stream",
        "What changes, as server-sent events.",
        stream,
        STREAM,
        (
            QueryParameter("experiment", "the experiment to watch; without it, the list of all", default=""),
            QueryParameter("sessions", "1: your sessions", "integer", 0, 1),
        ),
        is_async=True,
    ),
)
"""Endpoints that do not end by themselves."""
