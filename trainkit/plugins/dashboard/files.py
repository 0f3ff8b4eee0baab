"""Files of a trial for the dashboard, and notes about experiments and trials."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trainkit.errors import StoreError
from trainkit.plugins.dashboard.endpoints import DOWNLOAD, QueryParameter
from trainkit.plugins.dashboard.experiments.reading import NotFoundError
from trainkit.tune.results import printed

SEARCH = QueryParameter("search", "text that a line has; case does not matter", default="")
LINES = QueryParameter("lines", "how many of the last lines of each file", "integer", 500, 5000, 1)

NOTES = "notes.json"
"""File of notes in an experiment's folder. It maps "" to the experiment's note, and trial ids to notes."""
MAX_NOTE = 20_000
"""Maximum number of characters of a note."""
_MAX_ENTRIES = 10_000
_PIECE_BYTES = 1 << 20
_WRITING = threading.Lock()


def inside(folder: Path, *names: str) -> Path:
    """Return a path below `folder`, with all links resolved.

    Raises:
        NotFoundError: the path does not exist, or leads out of the folder.
    """
    found = printed.inside(folder, *names)
    if found is None:
        raise NotFoundError(f"there is no file {'/'.join(names)!r}")
    return found


def listed(folder: Path, below: str) -> dict[str, Any]:
    """Return the files and folders in a trial's folder, without links that lead out of it."""
    there = inside(folder, below) if below else inside(folder)
    entries = []
    for name in sorted(os.listdir(there))[:_MAX_ENTRIES]:
        with contextlib.suppress(NotFoundError, OSError):
            path = inside(there, name)
            inside(folder, os.path.relpath(path, folder.resolve()))
            found = path.stat()
            entries.append(
                {
                    "name": name,
                    "path": f"{below}/{name}" if below else name,
                    "kind": "folder" if path.is_dir() else "file",
                    "size": 0 if path.is_dir() else found.st_size,
                    "modified": found.st_mtime,
                }
            )
    return {"path": below, "entries": entries}


def download(file: BinaryIO, name: str, request: Request) -> Response:
    """Return an open file as a download of its current content, although a trial may still be writing it.

    Args:
        file: open file; it is closed at the end, even if the client disconnects.
        name: name of the file.
        request: request, which may ask for a range of the file to resume an interrupted download.
    """
    found, quoted = os.fstat(file.fileno()), quote(os.fsencode(name), safe="")
    shown = f'filename="{name}"' if name == quoted else f"filename*=utf-8''{quoted}"
    tag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'
    first, last, status = 0, found.st_size - 1, 200
    head = {"Content-Disposition": f"attachment; {shown}", "Accept-Ranges": "bytes", "ETag": tag}
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if asked is not None and request.headers.get("if-range", tag) == tag:
        begin, end = int(asked[1]), min(int(asked[2] or last), last)
        if begin <= end:  # for any other range, the whole file is sent
            first, last, status = begin, end, 206
            head["Content-Range"] = f"bytes {first}-{last}/{found.st_size}"
    head["Content-Length"] = str(last - first + 1)
    return _Download(file, first, last - first + 1, status, head)


_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


class _Download(StreamingResponse):
    def __init__(self, file: BinaryIO, first: int, size: int, status: int, head: Mapping[str, str]) -> None:
        file.seek(first)
        super().__init__(_pieces(file, size), status, head, DOWNLOAD)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:  # the file is closed even if reading was interrupted
            await super().__call__(scope, receive, send)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size and (piece := file.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece


# --- notes ----------------------------------------------------------------------------------------


def note_of(folder: Path, trial_id: str) -> str:
    """Return the note about a trial, or about the experiment if `trial_id` is ''; '' if it does not exist."""
    return str(_notes(folder).get(trial_id, ""))


def write_note(folder: Path, trial_id: str, text: str) -> None:
    """Write a note to a separate file, because only the experiment's owner writes the experiment's file.

    Raises:
        StoreError: the note is too long, or the folder can't be written.
    """
    if len(text) > MAX_NOTE:
        raise StoreError(f"the note has {len(text)} characters: {MAX_NOTE} at most are kept")
    aside = folder / f".{NOTES}.{uuid.uuid4().hex}.partial"
    with _WRITING:  # the lock ensures that neither of two concurrent notes is lost
        notes = _notes(folder)
        notes[trial_id] = text
        try:
            aside.write_text(json.dumps({name: note for name, note in notes.items() if note}, indent=1))
            aside.rename(folder / NOTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise StoreError(f"{folder / NOTES} cannot be written: {error}") from error


def _notes(folder: Path) -> dict[str, Any]:
    path = folder / NOTES
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}; mend or remove it") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path} holds no notes: remove it")
    return found
