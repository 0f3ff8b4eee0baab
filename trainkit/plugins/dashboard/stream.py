"""Streams of server-sent events on changes: of one experiment, the list of experiments, or sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from trainkit.clock import SYSTEM, busy_s
from trainkit.errors import StoreError
from trainkit.plugins.dashboard.endpoints import STREAM, Call, Endpoint, QueryParameter, Server
from trainkit.plugins.dashboard.experiments.board import Board, Row
from trainkit.plugins.dashboard.experiments.reading import NotFoundError, RowReader
from trainkit.plugins.dashboard.threads import Threads
from trainkit.tune.core.metrics import encode

EVERY_S = 0.6
"""Seconds between two checks for changes."""
QUIET_S = 10.0
"""Seconds without changes after which a comment is sent, so that the client knows that the stream is
alive.
"""
SHARE = 10
"""Pause after a check, as a multiple of the check's CPU time; the pause is at least as long as the check.

The pause depends on CPU time, because on a busy machine, a check mostly waits for a CPU.
"""
MAX_ROWS = 200
"""Maximum number of changed trials that an event contains. If more trials have changed, the page must request
its trials again."""
MAX_EVENTS = 200

Change = dict[str, Any]


class Since(NamedTuple):
    """State of an experiment or list that a client already knows.

    Attributes:
        generation: generation of the table of trials that the client knows; None if the client knows nothing
            yet.
        seq: sequence number of the last log entry that was sent.
        shown: summary or list that was sent last, as JSON.
    """

    generation: int | None = None
    seq: int = 0
    shown: str = ""


class ExperimentWatch:
    """Check for changes in one experiment since a known state.

    Args:
        board: all experiments.
        folder: folder of the experiment to check.
    """

    def __init__(self, board: Board, folder: Path) -> None:
        self.name = f"experiment {folder.name}"
        self._board, self._folder = board, folder
        # This object keeps the table, because a new table would count its generations from 0 again.
        self._table = board.table(folder)

    def __call__(self, since: Since) -> tuple[Since, Change | None]:
        """Return the new state, and what has changed since the state `since`; None if nothing has changed.

        A client that knows nothing yet receives the summary, and must then request the trials.

        Raises:
            StoreError: the experiment is gone, or its file is damaged.
        """
        generation = self._table.refresh(EVERY_S / 2)
        newest = self._table.newest
        summary = self._board.summary(self._folder, at_leisure=True)
        if since.generation is None:
            # The trials may have changed since the page was loaded, so the page must request them again.
            rows, more = list[Row](), True
        else:
            rows, more = self._table.changed_since(since.generation, MAX_ROWS)
        events, seq = [], newest
        # If the log has become shorter, a different experiment now has this name, so its entries are not
        # sent.
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
    """Check for changes in a list of all machines, which is read completely for each check.

    Args:
        name: name of the list in events.
        read: function that reads the list. Ages of its entries are not compared, because they always change.
        machines: function that reads the list of machines.
    """

    def __init__(self, name: str, read: Callable[[], list[Row]], machines: Callable[[], list[Row]]) -> None:
        self.name = name
        self._read, self._machines = read, machines

    def __call__(self, since: Since) -> tuple[Since, Change | None]:
        """Return the new state, and the lists if one has changed since the state `since`; otherwise None."""
        machines, found = self._machines(), self._read()
        compared = [{name: each[name] for name in each if name != "age_s"} for each in found]
        now = Since(shown=encode([machines, compared]))
        if now == since:
            return now, None
        return now, {"changed": [self.name], self.name: found, "machines": machines}


async def stream(call: Call) -> Response:
    """Return a response that sends changes until the client disconnects."""
    server, name = call.server, call.query["experiment"]
    if call.query["sessions"]:
        watch: ExperimentWatch | ListWatch = ListWatch("sessions", server.sessions, server.machines)
    elif name:
        watch = ExperimentWatch(server.board, await run_in_threadpool(server.board.folder_of, name))
    else:
        watch = ListWatch("experiments", server.experiments, server.machines)
    # The first check comes before the response starts, so that an error can set the response's status.
    first = await _look(server.threads, watch, Since())
    return StreamingResponse(_told(server, watch, first), media_type=STREAM)


class _Found(NamedTuple):
    """Result of a check.

    Attributes:
        known: state that the client knows after the check.
        news: changes as JSON; None if nothing changed.
        rest_s: pause before the next check, in seconds.
    """

    known: Since
    news: str | None
    rest_s: float


async def _look(threads: Threads, watch: ExperimentWatch | ListWatch, since: Since) -> _Found:
    """Check once for all listeners with the same state."""

    def look() -> _Found:
        begun, busy = SYSTEM.monotonic(), busy_s()
        known, change = watch(since)
        news = None if change is None else encode({**change, "time": SYSTEM.now()})
        return _Found(known, news, max(SHARE * (busy_s() - busy), SYSTEM.monotonic() - begun))

    return await threads.share((watch.name, since), lambda: threads.look(look, watch.name))


async def _told(server: Server, watch: ExperimentWatch | ListWatch, found: _Found) -> AsyncIterator[str]:
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
        # All streams wake at the same times, so that one check serves all streams.
        await asyncio.sleep(rest + EVERY_S - (now + rest) % EVERY_S)


STREAMS = (
    Endpoint(
        "/api/stream",
        "Changes, as server-sent events.",
        stream,
        STREAM,
        (
            QueryParameter("experiment", "experiment to watch (default: the list of all)", default=""),
            QueryParameter("sessions", "1 to watch your sessions", "integer", 0, 1),
        ),
        is_async=True,
    ),
)
"""Endpoints whose responses last until the client disconnects or the server ends."""
