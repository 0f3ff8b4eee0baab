"""Output of workers, which is written to log files and shown in the driver, with repeated lines only once."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import re
import select
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from trainkit import settings
from trainkit.clock import SYSTEM
from trainkit.resources import describe_bytes
from trainkit.runtime.local.node.loop import After
from trainkit.runtime.local.node.records import DRIVER, Notify, WorkerRecord
from trainkit.runtime.local.wire.messages import MARK, MARK_END, MARKED, Output, Waits
from trainkit.settings import LOG_DIR, dedup_logs

WINDOW_S = 5.0
TICK_S = 1.0
_MOST_LINES = 1_000
_TAIL_LINES = 50
_READ_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 16
_LONGEST_MARK = 1 << 10
_SIGN = MARK[:1]


@dataclass
class RepeatedLine:
    """Line that was shown, with the number of later repetitions of the line by other workers.

    Attributes:
        source: number of the worker whose line was shown.
        since: time by the monotonic clock at which the line was shown.
        name: name of the worker that last repeated the line.
        pid: pid of the worker that last repeated the line.
        count: number of repetitions by other workers since the line was last shown.
        latest: time of the last repetition, by the monotonic clock.
    """

    source: int
    since: float
    is_error: bool
    line: str
    name: str = ""
    pid: int = 0
    count: int = 0
    latest: float = 0.0

    @property
    def text(self) -> str:
        """Line followed by the number of its repetitions. A number of 1 is left out."""
        return self.line if self.count == 1 else f"{self.line} [repeated {self.count}x by other workers]"


class LineDeduplicator:
    """Deduplicator of shown lines.

    If other workers print a shown line within 5 s, the repetitions are only counted. Repetitions by the same
    worker are shown. Only exactly equal lines count as repetitions.
    """

    def __init__(self) -> None:
        self._shown: dict[tuple[bool, str], RepeatedLine] = {}

    def __bool__(self) -> bool:
        return bool(self._shown)

    def fresh(
        self, source: int, name: str, pid: int, is_error: bool, lines: Sequence[str], now: float
    ) -> list[str]:
        """Return the lines to show now, and count the other lines as repetitions.

        Args:
            source: number of the worker that printed the lines.
            name: name of the worker that printed the lines.
            pid: pid of the worker that printed the lines.
            is_error: True for lines from standard error.
            lines: printed lines, in the order of printing.
            now: current time, by the monotonic clock.
        """
        found = []
        for line in lines:
            known = self._shown.get((is_error, line))
            if known is None or known.source == source:
                found.append(line)
                if known is None and line.strip() and len(self._shown) < _MOST_LINES:
                    self._shown[is_error, line] = RepeatedLine(source, now, is_error, line)
            else:
                known.name, known.pid = name, pid
                known.count, known.latest = known.count + 1, now
        return found

    def due(self, now: float) -> list[RepeatedLine]:
        """Return the repeated lines that must be shown now.

        A line is due 5 s after it was first shown, or, if it was repeated only once, 1 s after its
        repetition. After these 5 s, the line is no longer tracked.
        """
        over = [key for key, known in self._shown.items() if known.since + WINDOW_S <= now]
        found = [known for known in map(self._shown.pop, over) if known.count]
        alone = [k for k in self._shown.values() if k.count == 1 and k.latest + TICK_S <= now]
        return found + _taken(alone)

    def last_of(self, pid: int) -> list[RepeatedLine]:
        """Return the lines that worker `pid` was the last to repeat, with counts that are not shown yet."""
        return _taken([known for known in self._shown.values() if known.count and known.pid == pid])


def _taken(pending: list[RepeatedLine]) -> list[RepeatedLine]:
    """Return copies of `pending`, and reset the counts of the original objects."""
    taken = [replace(known) for known in pending]
    for known in pending:
        known.count = 0
    return taken


_KEEP_SESSIONS = 10
_MOST_BYTES = 50 << 20
_SESSION = re.compile(r"\d{8}-\d{6}-[0-9a-f]{8}")
_LONGEST_NAME = 100


class Printer(Protocol):
    """Attributes of a worker that determine the names of the worker's log files.

    Attributes:
        serial: number of the worker in the session.
        pid: pid of the worker; None until the process that forked the worker has reported the pid.
    """

    serial: int
    name: str
    pid: int | None


class SessionLogs:
    """Log files of one session.

    Args:
        session: hexadecimal digits that distinguish sessions started in the same second.
        most_bytes: size at which a file is renamed to NAME.1, which replaces the previous NAME.1.
    """

    def __init__(self, session: str, most_bytes: int = _MOST_BYTES) -> None:
        started = time.strftime("%Y%m%d-%H%M%S", time.localtime(SYSTEM.now()))
        self._name = f"{started}-{session[:8]}"
        self._most_bytes = most_bytes
        self._folder: Path | None = None
        self._early: dict[tuple[int, str], bytes] = {}
        self._written: dict[int, dict[str, None]] = {}

    def write(self, worker: Printer, kind: str, data: bytes) -> None:
        """Append `data` to a worker's log file.

        Args:
            worker: worker that printed the bytes.
            kind: "out" or "err".
            data: the printed bytes.

        Raises:
            OSError: the file can't be written.
        """
        key = (worker.serial, kind)
        if worker.pid is None:  # the name of the file contains the pid, which is not known yet
            self._early[key] = self._early.get(key, b"") + data
            return
        data = self._early.pop(key, b"") + data
        if not data:
            return
        self._written.setdefault(worker.serial, {})[kind] = None
        path = self._path(worker, kind)
        # The file is opened for each write, as a thousand workers would otherwise keep
        # two thousand files open.
        with open(path, "ab", opener=_private) as file:
            size = file.tell()
            if size < self._most_bytes:
                file.write(data)
                return
        aside = path.with_name(f"{path.name}.1")
        os.replace(path, aside)
        with open(path, "ab", opener=_private) as file:
            file.write(f"[trainkit: the previous {describe_bytes(size)} are in {aside.name}]\n".encode())
            file.write(data)

    def files_of(self, worker: Printer) -> str:
        """Return the paths of a worker's log files as text for messages; "" if the worker printed nothing."""
        return " and ".join(str(self._path(worker, kind)) for kind in self._written.get(worker.serial, ()))

    def paths(self) -> list[str]:
        """Return the paths of all workers' log files, including the files of workers that have ended."""
        return [] if self._folder is None else [str(path) for path in sorted(self._folder.iterdir())]

    def forget(self, worker: Printer) -> None:
        """Drop the data kept about a worker that has ended."""
        self._written.pop(worker.serial, None)
        for kind in ("out", "err"):
            self._early.pop((worker.serial, kind), None)

    def _path(self, worker: Printer, kind: str) -> Path:
        if self._folder is None:
            self._folder = self._make_folder()
        name = re.sub(r"[^\w.-]", "_", worker.name)[:_LONGEST_NAME]
        return self._folder / f"{name}-{worker.pid}.{kind}"

    def _make_folder(self) -> Path:
        root = settings.log_dir()
        root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
        for folder in (root, root.parent) if settings.log_dir_is_own() else (root,):
            if folder.stat().st_uid != os.getuid():
                # The parent folder may belong to another user if all users can write to the folder.
                raise PermissionError(f"{folder} belongs to another user: set {LOG_DIR} to your own")
        folder = root / self._name
        folder.mkdir(mode=0o700, exist_ok=True)
        # The lock, which is held until this process ends, keeps other sessions from removing the folder.
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
        _remove_old(root)
        return folder


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _remove_old(root: Path) -> None:
    """Remove the folders of ended sessions, except the newest 10 folders."""
    sessions = sorted(entry for entry in os.listdir(root) if _SESSION.fullmatch(entry))
    for name in sessions[:-_KEEP_SESSIONS]:
        folder = root / name
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # another session has just removed the folder
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(fd)


class OutputPipe:
    """Reading end of a worker's stdout or stderr, which splits the output into lines and keeps the last 50.

    Args:
        fd: the reading end, which this object owns from now on.
        on_lines: function called with each batch of whole lines, as a terminal would finally show the lines,
            and with the name of the function that printed them. None means the worker's own name.
        on_bytes: function called with the printed bytes as soon as they arrive.
    """

    def __init__(
        self,
        fd: int,
        on_lines: Callable[[list[str], str | None], None],
        on_bytes: Callable[[bytes], None],
    ) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._on_lines = on_lines
        self._on_bytes = on_bytes
        self._partial = b""
        self._cut = b""
        self._name: str | None = None
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def read(self) -> bool:
        """Read the available output. Return False if the worker's end of the pipe is closed."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        if not self._cut and _SIGN not in data:
            self._take(data)
        else:
            self._take_marked(self._cut + data, is_last=not data)
        if not data:
            self._end_line()
        return bool(data)

    def _take_marked(self, data: bytes, is_last: bool) -> None:
        """Process output that may contain marks, which name the function that prints next.

        The output may end inside a mark.
        """
        at = data.rfind(_SIGN)
        rest = data[at:]
        may_go_on = MARK.startswith(rest) or (rest.startswith(MARK) and MARK_END not in rest)
        is_cut = at >= 0 and not is_last and may_go_on and len(rest) < _LONGEST_MARK
        self._cut = rest if is_cut else b""
        printed, *marked = MARKED.split(data[:at] if is_cut else data)
        self._take(printed)
        for name, printed in zip(marked[::2], marked[1::2], strict=True):
            self._end_line()
            self._name = name.decode(errors="replace")
            self._take(printed)

    def _take(self, data: bytes) -> None:
        if not data:
            return
        self._on_bytes(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if lines:
            self._tell([_shown(line) for line in lines])
        if len(self._partial) > _LONGEST_LINE_BYTES:
            self._end_line()

    def _end_line(self) -> None:
        """Process an unfinished line as a whole line."""
        if self._partial:
            text, self._partial = _shown(self._partial), b""
            self._tell([text])

    def _tell(self, lines: list[str]) -> None:
        self.tail.extend(lines)
        self._on_lines(lines, self._name)

    def drain(self) -> None:
        """Read all available output, after the worker has ended."""
        with contextlib.suppress(OSError):
            while self.read() and _readable(self.fd):
                pass
        self._end_line()

    def close(self) -> None:
        """Close the reading end."""
        os.close(self.fd)


def _shown(line: bytes) -> str:
    """Return the text that a terminal finally shows for a line, such as the last state of a progress bar."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


class WorkerOutput:
    """Output of all workers, shown in the driver and kept in files.

    Args:
        logs: the log files.
        is_shown: False to show nothing in the driver.
        after: `Loop.after`.
        notify: `Clients.notify`.
    """

    def __init__(self, logs: SessionLogs, is_shown: bool, after: After, notify: Notify) -> None:
        self._logs = logs
        self._is_shown = is_shown
        self._after = after
        self._notify = notify
        self._repeated = LineDeduplicator() if dedup_logs() else None
        self._logs_fail = False
        self.files_of, self.forget = logs.files_of, logs.forget

    def pipe(self, fd: int, kind: str, printer: Callable[[], WorkerRecord]) -> OutputPipe:
        """Return a pipe whose output is shown in the driver and written to the log files.

        Args:
            fd: the reading end.
            kind: "out" or "err".
            printer: function that returns the worker whose output the pipe carries, called
                only when output has arrived.
        """
        return OutputPipe(
            fd,
            lambda lines, name: self.show(printer(), kind, lines, name),
            lambda data: self.keep(printer(), kind, data),
        )

    def show(self, worker: WorkerRecord, kind: str, lines: list[str], name: str | None = None) -> None:
        """Show lines of a worker in the driver under `name`; None means the worker's own name."""
        if not self._is_shown:
            return
        name = worker.shown_as or worker.name if name is None else name
        pid, is_error = worker.pid or 0, kind == "err"
        if self._repeated is not None:
            lines = self._repeated.fresh(worker.serial, name, pid, is_error, lines, SYSTEM.monotonic())
            if self._repeated:
                self._after(TICK_S, self._show_repeated)
        if lines:
            self._notify(DRIVER, Output(name, pid, is_error, lines))

    def _show_repeated(self, now: float | None = None) -> None:
        """Show the repeated lines that are due at time `now`; None means the current time."""
        if self._repeated is None:
            return
        self._show_pending(self._repeated.due(SYSTEM.monotonic() if now is None else now))
        if self._repeated:
            self._after(TICK_S, self._show_repeated)

    def _show_pending(self, pending: list[RepeatedLine]) -> None:
        for known in pending:
            self._notify(DRIVER, Output(known.name, known.pid, known.is_error, [known.text]))

    def finish(self, worker: WorkerRecord) -> None:
        """Show the lines that an ended worker was the last to repeat, with counts that are not shown yet."""
        if self._repeated is not None and worker.pid is not None:
            self._show_pending(self._repeated.last_of(worker.pid))

    def stop_counting(self) -> None:
        """Show all pending repetitions and stop deduplication, as the program is about to end."""
        self._show_repeated(math.inf)
        self._repeated = None

    def keep(self, worker: WorkerRecord, kind: str, data: bytes) -> None:
        """Write a worker's output to its log file; `kind` is "out" or "err"."""
        if self._logs_fail:
            return
        try:
            self._logs.write(worker, kind, data)
        except OSError as error:
            self._logs_fail = True
            self._notify(DRIVER, Waits(f"output of workers is no longer written to files: {error}"))
