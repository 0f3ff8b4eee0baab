"""Files in a trial's folder, for the dashboard."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trainkit.plugins.dashboard.endpoints import DOWNLOAD, QueryParameter
from trainkit.plugins.dashboard.experiments.reading import NotFoundError
from trainkit.tune.results import overview

SEARCH = QueryParameter("search", "text that a line must contain, ignoring case", default="")
LINES = QueryParameter("lines", "number of last lines of each file", "integer", 500, 5000, 1)

_MAX_ENTRIES = 10_000
_PIECE_BYTES = 1 << 20


def inside(folder: Path, *names: str) -> Path:
    """Return a path below `folder`, with all links resolved.

    Raises:
        NotFoundError: the path does not exist, or leads out of the folder.
    """
    found = overview.inside(folder, *names)
    if found is None:
        raise NotFoundError(f"file {'/'.join(names)!r} does not exist")
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
    """Return an open file as a download; a trial may continue to write to the file during the download.

    Args:
        file: open file, which is closed when the download ends or the client disconnects.
        name: file name that the client sees.
        request: request of the client; it may ask for a range of bytes, to resume an interrupted download.
    """
    found, quoted = os.fstat(file.fileno()), quote(os.fsencode(name), safe="")
    shown = f'filename="{name}"' if name == quoted else f"filename*=utf-8''{quoted}"
    tag = f'"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"'
    first, last, status = 0, found.st_size - 1, 200
    head = {"Content-Disposition": f"attachment; {shown}", "Accept-Ranges": "bytes", "ETag": tag}
    asked = _RANGE.fullmatch(request.headers.get("range", ""))
    if asked is not None and request.headers.get("if-range", tag) == tag:
        begin, end = int(asked[1]), min(int(asked[2] or last), last)
        if begin <= end:  # For any other range, the whole file is sent.
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
        with self._file:  # The file must be closed even if the download is interrupted.
            await super().__call__(scope, receive, send)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size and (piece := file.read(min(size, _PIECE_BYTES))):
        size -= len(piece)
        yield piece
