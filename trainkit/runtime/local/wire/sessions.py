"""Sessions of this user: their folders and sockets, and a client that asks their nodes.

A visit is one connection to a node's socket, for a few questions. It needs no session of one's own, so
the command line uses it as well as a program that calls an actor of another one's session.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainkit.clock import SYSTEM
from trainkit.errors import GetTimeoutError, NodeDiedError, ObjectLostError, TrainkitError
from trainkit.runtime.failures import raisable, unpack_failure
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.boot import PREFIX
from trainkit.runtime.local.wire.channel import FAILURE, NOTICE, REQUEST, Connection, Frame, explain
from trainkit.runtime.local.wire.messages import Kill, QueryExit, State, packed
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import Handle, unpack
from trainkit.runtime.signals import InterruptGuard
from trainkit.settings import SESSION_MARK

SOCKET = "node.sock"
CARD = "node.json"
"""File in a session's folder with facts about the session."""

_ENDED_BY = "ended-by"
"""File in a session's folder: the command that ends it, as `trainkit stop`, for its program to read."""

_PATIENCE_S = 10.0
_TURN_S = 10.0
_LOOK_S = 0.5
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class Session(NamedTuple):
    """Session of this user.

    Attributes:
        folder: its folder, and mark.
        node: pid of its node.
        driver: pid of the program that started it.
        driver_gone: that has ended; only detached actors are left.
        started: seconds since the epoch.
        program: name and folder of that program, as 'train.py in /data'.
    """

    folder: Path
    node: int
    driver: int
    driver_gone: bool
    started: float
    program: str = ""

    @property
    def id(self) -> str:
        """The name that users give it."""
        name = self.folder.name
        return name.removeprefix(PREFIX)

    @property
    def alive(self) -> bool:
        """Return True if its node runs."""
        if process.environment(self.node).get(SESSION_MARK) == str(self.folder):
            return True
        # Seen from another container its pid is another: what takes visitors is not dead.
        try:
            connect(self.folder).close()
        except NodeDiedError:
            return False
        return True

    def __str__(self) -> str:
        return f"session {self.id} (pid {self.driver})"


def folders(parent: Path) -> list[Path]:
    """Return the folders of this user's sessions, also of those that ended without removing theirs."""
    found = []
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            if folder.stat().st_uid == os.getuid():
                found.append(folder)
    return found


def session_at(folder: Path) -> Session | None:
    """Return the session with that folder; None if it has said nothing of itself yet, or says no more."""
    import json  # most programs meet no other session

    try:
        card = {"program": "", **json.loads((folder / CARD).read_text())}  # older versions do not say it
        return Session(folder, *(card[name] for name in Session._fields[1:]))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):  # it is cut off, as by a machine that went down
        return None


def note_end(folder: Path, by: str) -> None:
    """Write down for the program of a session that it is ended on purpose.

    Args:
        folder: of the session.
        by: the user's command that ends it.
    """
    with contextlib.suppress(FileNotFoundError):  # it has just ended
        (folder / _ENDED_BY).write_text(by)


def ended_by(folder: Path) -> str:
    """Return what ended the session with that folder on purpose; '' if nothing did."""
    try:
        return (folder / _ENDED_BY).read_text()
    except OSError:
        return ""


def socket_path(folder_fd: int) -> str:
    """Return the path of the socket in an open folder, for bind() and connect().

    Through /proc, as a socket's path may have no more than 107 bytes, and a folder for temporary files
    can lie deep.
    """
    return f"/proc/self/fd/{folder_fd}/{SOCKET}"


def is_own(sock: socket.socket) -> bool:
    """Return True if the process at the other end of a Unix socket belongs to this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid == os.getuid()


def sessions(parent: Path) -> list[Session]:
    """Return the sessions whose nodes run, newest first."""
    known = [session_at(folder) for folder in folders(parent)]
    living = [session for session in known if session is not None and session.alive]
    return sorted(living, key=lambda session: session.started, reverse=True)


def connect(folder: Path) -> ControlClient:
    """Connect to the node of the session with that folder.

    Raises:
        NodeDiedError: no node answers there.
        ObjectLostError: this process has no file descriptor left.
    """
    try:
        return ControlClient(_connected(folder), folder)
    except OSError as error:
        explain(error)
        raise _gone(folder, error.strerror or str(error)) from error


def _connected(folder: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            sock.settimeout(_PATIENCE_S)
            sock.connect(socket_path(fd))
        finally:
            os.close(fd)
        if not is_own(sock):
            raise PermissionError("it belongs to another user")
    except BaseException:
        sock.close()
        raise
    return sock


def _gone(folder: Path, why: str) -> NodeDiedError:
    return NodeDiedError(f"the session at {folder} has ended ({why})")


class ControlClient(Connection):
    """Connection to a node's socket, used by one thread.

    Args:
        sock: connected.
        folder: of the session.
    """

    def __init__(self, sock: socket.socket, folder: Path) -> None:
        super().__init__(sock)
        self._folder = folder
        self._answers: dict[int, Frame] = {}
        self._calls = itertools.count(1)

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_frame(self, frame: Frame) -> None:
        if frame.kind != NOTICE:
            self._answers[frame.call_id] = frame

    def on_backlog(self) -> None:
        self.flush_blocking(_PATIENCE_S)

    def ask(self, message: Any, handles: Sequence[Handle] = (), timeout_s: float | None = _PATIENCE_S) -> Any:
        """Return the node's answer; with None it may take as long as the node lives.

        Raises:
            NodeDiedError: it ended.
            GetTimeoutError: it did not answer within `timeout_s`.
            TrainkitError: what it answered with.
        """
        call = next(self._calls)
        try:
            self.send(REQUEST, call, packed(message, handles))
        except OSError as error:
            raise _gone(self._folder, str(error)) from error
        self._read_until(lambda: call in self._answers, timeout_s)
        frame = self._answers.pop(call, None)
        if frame is None and self.closed:
            raise _gone(self._folder, "it closed the connection")
        if frame is None:
            raise GetTimeoutError(
                f"the node of the session at {self._folder} has not answered for {timeout_s:g} s; "
                "is it stopped?"
            )
        if frame.kind == FAILURE:
            raise raisable(unpack_failure(frame.body))
        return unpack(frame.body)

    def tell(self, message: Any) -> None:
        """Send something that is not answered."""
        try:
            self.send(NOTICE, 0, packed(message))
        except OSError as error:
            raise _gone(self._folder, str(error)) from error

    def await_end(self, timeout_s: float) -> bool:
        """Wait for the node to close the connection; return False if `timeout_s` passes first."""
        self._read_until(lambda: False, timeout_s)
        return self.closed

    def _read_until(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else SYSTEM.monotonic() + timeout_s
        while True:
            left = None if deadline is None else deadline - SYSTEM.monotonic()
            with InterruptGuard() as guard:
                self.wait_until(lambda: done() or self.closed, left, SYSTEM.monotonic, guard)
            if not guard.noted:  # else a handler of Ctrl-C has returned, and the wait goes on
                return


KINDS = ("nodes", "actors", "tasks", "placement_groups", "requests")


@dataclass(frozen=True, kw_only=True)
class SessionState:
    """State of one session.

    Attributes:
        lists: entries by kind: those of KINDS, or what was asked for.
        problem: why the lists are empty; "" if the node answered.
    """

    session: Session
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problem: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since its start."""
        return max(0.0, SYSTEM.now() - self.session.started)

    @property
    def driver(self) -> int | None:
        """Pid of the program that started it; None if that has ended."""
        session = self.session
        return None if session.driver_gone or not process.exists(session.driver) else session.driver

    def plain(self) -> dict[str, Any]:
        """Return the state as JSON can hold it."""
        return {
            "session_id": self.session.id,
            "program": self.session.program,
            "node_pid": self.session.node,
            "driver_pid": self.driver,
            "age_s": round(self.age_s, 3),
            "problem": self.problem,
            **self.lists,
        }


def state_of(session: Session, kinds: Sequence[str] = KINDS) -> SessionState:
    """Ask the node of a session for lists of these kinds."""
    lists: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    problem = ""
    try:
        with connect(session.folder) as node:
            for kind in kinds:
                lists[kind] = node.ask(State(kind))
    except TrainkitError as error:
        problem = str(error)
    return SessionState(session=session, lists=lists, problem=problem)


def query_exit(home: str | None, worker_id: int | None) -> ExitRecord:
    """Return how an actor of another session ended; see `messages.QueryExit`.

    Raises:
        ObjectLostError: it lives, and a connection to it was lost.
    """
    try:
        with connect(Path(home or "")) as node:
            exit_: ExitRecord = node.ask(QueryExit(worker_id or 0))
            return exit_
    except ObjectLostError:
        raise
    except TrainkitError as error:
        return ExitRecord(requested=True, reason=str(error))


def kill(home: str, worker_id: int, reason: str, restart: bool) -> None:
    """End an actor of another session; returns when it is dead. With `restart` it may be restarted."""
    with contextlib.suppress(NodeDiedError), connect(Path(home)) as node:  # then it is dead already
        node.ask(Kill(worker_id, reason, restart))


@contextlib.contextmanager
def in_turn(parent: Path) -> Iterator[None]:
    """Let only one of the user's threads in here at a time: two must not make detached actors of one name.

    Raises:
        TrainkitError: the same one has been in here for seconds.
    """
    global _turns
    _await_turn(parent, lambda: _own_turn.acquire(timeout=_LOOK_S), lambda: (os.getpid(), _turns))
    try:
        # The folder itself is what is locked, so no file is left; the kernel lets go with the process.
        fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _await_turn(parent, lambda: _locks(fd), lambda: (_lock_holder(fd), 0))
            yield
        finally:
            os.close(fd)
    finally:
        _turns += 1
        _own_turn.release()


_own_turn = threading.Lock()
_turns = 0
"""Number of turns that a thread of this process has had."""


def _await_turn(parent: Path, take: Callable[[], bool], turn: Callable[[], tuple[int | None, int]]) -> None:
    """Call `take` until it returns True; raise TrainkitError when `turn` has been the same for long."""
    seen, since = turn(), SYSTEM.monotonic()
    while not take():
        now = turn()
        if now != seen:
            seen, since = now, SYSTEM.monotonic()
        elif SYSTEM.monotonic() - since > _TURN_S:
            who = "another program" if now[0] is None else f"a program (pid {now[0]})"
            raise TrainkitError(
                f"{who} has been making a detached actor for {_TURN_S:g} s: it holds the lock of {parent}; "
                "see what it waits for, or end it"
            )


def _locks(fd: int) -> bool:
    """Return whether `fd` could be locked within a moment."""
    deadline = SYSTEM.monotonic() + _LOOK_S
    while SYSTEM.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        SYSTEM.sleep(0.005)
    return False


def _lock_holder(fd: int) -> int | None:
    """Return the process that holds the lock of `fd`; None if the kernel does not say."""
    inode = f":{os.fstat(fd).st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()  # 1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF
            if parts[1] == "FLOCK" and parts[5].endswith(inode):
                return int(parts[4])
    return None
