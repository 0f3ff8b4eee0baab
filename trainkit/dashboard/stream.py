"""Stream of what changes, as server-sent events: an experiment, the list of experiments, or the sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from trainkit.clock import SYSTEM, busy_s
from trainkit.dashboard.board import Board, Row
from trainkit.dashboard.endpoints import STREAM, Call, Endpoint, QueryParameter
from trainkit.dashboard.processes import sessions
from trainkit.dashboard.reading import NotFoundError, RowReader
from trainkit.dashboard.threads import Threads
from trainkit.errors import StoreError
from trainkit.tune.core.metrics import encode

EVERY_S = 0.6
"""Seconds between two looks at what may have changed."""
QUIET_S = 10.0
"""Seconds after which a word is sent although nothing has changed, so that who listens knows it."""
SHARE = 10
"""A look is followed by a rest of so many times as long as it kept a core busy, and as long as it took.

On a busy machine a look mostly waits for a core, which is no reason to rest longer.
"""
MAX_ROWS = 200
"""Trials that are sent at once; of more it is said that there are more, and who shows a page asks for it."""
MAX_EVENTS = 200

Change = dict[str, Any]


class Watched(Protocol):
    """Server, as streams know it."""

    board: Board
    threads: Threads

    @property
    def is_ending(self) -> bool:
        """True once streams have to end."""


class Since(NamedTuple):
    """What a listener was told before.

    Attributes:
        generation: of the trials; None: nothing.
        seq: place of the last entry of the log.
        shown: the summary, or the list, as JSON.
    """

    generation: int | None = None
    seq: int = 0
    shown: str = ""


class ExperimentWatch:
    """Watch over one experiment: what has changed since the last look.

    Args:
        board: all experiments.
        folder: of this one.
    """

    def __init__(self, board: Board, folder: Path) -> None:
        self.name = f"experiment {folder.name}"
        self._board, self._folder = board, folder
        # Kept though another watch may look for this one: a new table would count changes anew.
        self._table = board.table(folder)

    def __call__(self, since: Since) -> tuple[Since, Change | None]:
        """Look; return what is known now, and what has changed, or None.

        A listener that knows nothing gets the summary, and the order to read the trials.

        Raises:
            StoreError: the experiment is gone, or its file is damaged.
        """
        generation = self._table.refresh(EVERY_S / 2)
        newest = self._table.newest
        summary = self._board.summary(self._folder, at_leisure=True)
        if since.generation is None:
            # What has changed since the page was made is not known: it is to be asked for again.
            rows, more = list[Row](), True
        else:
            rows, more = self._table.changed_since(since.generation, MAX_ROWS)
        events, seq = [], newest
        # Where the log is shorter than it was, it is another experiment of the same name.
        if since.generation is not None and newest > since.seq:
            with RowReader(self._folder) as reader:
                events = reader.events_after(since.seq, MAX_EVENTS)
            is_all = len(events) < MAX_EVENTS
            seq = max([newest] * is_all + [each["seq"] for each in events])
        shown = encode(summary)
        changed = ["trials"] * bool(rows or more) + ["events"] * bool(events)
        changed += ["summary"] * (shown != since.shown)
        now = Since(generation, seq, shown)
        if not changed:
            return now, None
        return now, {
            "changed": changed,
            "rows": rows,
            "more": more,
            "events": events,
            "seq": seq,
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
        self.name = name
        self._ignored = ignored
        self._read = read

    def __call__(self, since: Since) -> tuple[Since, Change | None]:
        """Look; return the new state, and the list if it has changed, else None."""
        found = self._read()
        now = Since(
            shown=encode([{name: each[name] for name in each if name != self._ignored} for each in found])
        )
        return now, None if now == since else {"changed": [self.name], self.name: found}


async def stream(call: Call) -> Response:
    """Return a stream of what changes."""
    server: Watched = call.server
    name = call.query["experiment"]
    if call.query["sessions"]:
        watch: ExperimentWatch | ListWatch = ListWatch("sessions", sessions, "age_s")
    elif name:
        watch = ExperimentWatch(server.board, await run_in_threadpool(server.board.folder_of, name))
    else:
        watch = ListWatch("experiments", server.board.summaries)
    first = await _look(server.threads, watch, Since())  # what is wrong now is told by the status
    return StreamingResponse(_told(server, watch, first), media_type=STREAM)


class _Found(NamedTuple):
    """What a look has found.

    Attributes:
        known: to who has looked, from now on.
        news: as JSON; None: nothing has changed.
        rest_s: seconds to rest after the look.
    """

    known: Since
    news: str | None
    rest_s: float


async def _look(threads: Threads, watch: ExperimentWatch | ListWatch, since: Since) -> _Found:
    """Look once for all listeners with the same knowledge."""

    def look() -> _Found:
        begun, busy = SYSTEM.monotonic(), busy_s()
        known, change = watch(since)
        news = None if change is None else encode({**change, "time": SYSTEM.now()})
        return _Found(known, news, max(SHARE * (busy_s() - busy), SYSTEM.monotonic() - begun))

    return await threads.share((watch.name, since), lambda: threads.look(look, watch.name))


async def _told(server: Watched, watch: ExperimentWatch | ListWatch, found: _Found) -> AsyncIterator[str]:
    last = SYSTEM.monotonic()
    while not server.is_ending:
        if found.news is not None:
            yield f"event: change\ndata: {found.news}\n\n"
            last = SYSTEM.monotonic()
        elif SYSTEM.monotonic() - last > QUIET_S:
            yield ": nothing has changed\n\n"
            last = SYSTEM.monotonic()
        try:
            found = await _look(server.threads, watch, found.known)
        except (StoreError, NotFoundError) as error:
            yield f"event: problem\ndata: {encode({'error': str(error)})}\n\n"
            return
        now, rest = SYSTEM.monotonic(), found.rest_s
        # To the next moment at which all look, so that one of them looks for all.
        await asyncio.sleep(rest + EVERY_S - (now + rest) % EVERY_S)


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
