"""Sessions of this user, with their folders and sockets, and a client for their nodes.

The client connects to a node's socket for a few requests. The client's process need not belong to a session.
The command line uses the client, and programs use it to call an actor of another session.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Callable, Sequence
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
"""Name of the file in a session's folder that describes the session as JSON."""

_ENDED_BY = "ended-by"
"""Name of the file in a session's folder that says who ended the session by `trainkit stop`."""

_PATIENCE_S = 10.0
_CREDENTIALS = struct.Struct("3i")  # the fields are pid, uid and gid


class Session(NamedTuple):
    """Session of this user.

    Attributes:
        folder: the session's folder. The folder's path is in the environment of all processes of the session.
        node: pid of the session's node.
        driver: pid of the program that started the session.
        driver_gone: True once the driver has ended, so that only detached actors and groups are left.
        started: start time of the session in seconds since the epoch.
        program: name and folder of the program that started the session, such as `train.py in /data`.
    """

    folder: Path
    node: int
    driver: int
    driver_gone: bool
    started: float
    program: str = ""

    @property
    def id(self) -> str:
        """Id by which users name the session in commands."""
        name = self.folder.name
        return name.removeprefix(PREFIX)

    @property
    def alive(self) -> bool:
        """True if the session's node is running."""
        if process.environment(self.node).get(SESSION_MARK) == str(self.folder):
            return True
        # In a different container, the node has a different pid, so a node also counts as running if it
        # accepts a connection.
        try:
            connect(self.folder).close()
        except NodeDiedError:
            return False
        return True

    def __str__(self) -> str:
        return f"session {self.id} (pid {self.driver})"


def folders(parent: Path) -> list[Path]:
    """Return the folders of this user's sessions, including those left behind by ended sessions."""
    found = []
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # the session has just ended
            if folder.stat().st_uid == os.getuid():
                found.append(folder)
    return found


def session_at(folder: Path) -> Session | None:
    """Return the session of a folder; None if the file that describes it is missing or incomplete."""
    import json  # imported here, as most programs never read the description of a session

    try:
        # Older versions of trainkit do not write the field "program".
        card = {"program": "", **json.loads((folder / CARD).read_text())}
        return Session(folder, *(card[name] for name in Session._fields[1:]))
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None  # the session has ended, or the file is truncated, for example by a crash of the machine


def note_end(folder: Path, by: str) -> None:
    """Record who ended the session by `trainkit stop`, in a file that the session's program reads.

    Args:
        folder: the session's folder.
        by: name of the process that ends the session, such as "ann@host (pid 12)".
    """
    with contextlib.suppress(FileNotFoundError):  # the session has just ended
        (folder / _ENDED_BY).write_text(by)


def ended_by(folder: Path) -> str:
    """Return who ended the session of `folder` by `trainkit stop`; "" if the file is missing."""
    try:
        return (folder / _ENDED_BY).read_text()
    except OSError:
        return ""


def socket_path(folder_fd: int) -> str:
    """Return the path of the node's socket in a session's folder that is open as `folder_fd`.

    The returned path is for bind() and connect().

    The path goes through /proc because a socket's path may have at most 107 bytes, and the path of a
    temporary folder can be longer.
    """
    return f"/proc/self/fd/{folder_fd}/{SOCKET}"


def is_own(sock: socket.socket) -> bool:
    """Return True if the process at the other end of a Unix socket belongs to this user."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    uid: int = _CREDENTIALS.unpack(raw)[1]
    return uid == os.getuid()


def sessions(parent: Path) -> list[Session]:
    """Return the sessions whose nodes are running, newest first."""
    known = [session_at(folder) for folder in folders(parent)]
    living = [session for session in known if session is not None and session.alive]
    return sorted(living, key=lambda session: session.started, reverse=True)


def connect(folder: Path) -> ControlClient:
    """Connect to the node of the session in `folder`.

    Raises:
        NodeDiedError: the session's node has ended.
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
    """Connection to a node's socket, for use by one thread.

    Args:
        sock: a connected socket.
        folder: the session's folder.
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
        """Return the node's answer to a request. With `timeout_s=None`, wait without a limit.

        Raises:
            NodeDiedError: the node ended.
            GetTimeoutError: the node did not answer within `timeout_s`.
            TrainkitError: the node answered with an error.
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
        """Send a message that has no answer."""
        try:
            self.send(NOTICE, 0, packed(message))
        except OSError as error:
            raise _gone(self._folder, str(error)) from error

    def await_end(self, timeout_s: float) -> bool:
        """Wait for the node to close the connection. Return False if `timeout_s` seconds pass first."""
        self._read_until(lambda: False, timeout_s)
        return self.closed

    def _read_until(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else SYSTEM.monotonic() + timeout_s
        while True:
            left = None if deadline is None else deadline - SYSTEM.monotonic()
            with InterruptGuard() as guard:
                self.wait_until(lambda: done() or self.closed, left, guard)
            if not guard.noted:  # after Ctrl-C, the handler has returned, so the loop waits again
                return


KINDS = ("nodes", "actors", "tasks", "placement_groups", "requests")


@dataclass(frozen=True, kw_only=True)
class SessionState:
    """State of one session.

    Attributes:
        lists: rows of each state listing, by its kind, such as `"actors"`.
        problem: reason why the lists of the state are empty; "" if the node answered.
    """

    session: Session
    lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    problem: str = ""

    @property
    def age_s(self) -> float:
        """Seconds since the session's start."""
        return max(0.0, SYSTEM.now() - self.session.started)

    @property
    def driver(self) -> int | None:
        """Pid of the program that started the session; None if it has ended."""
        session = self.session
        return None if session.driver_gone or not process.exists(session.driver) else session.driver

    def plain(self) -> dict[str, Any]:
        """Return the state as a mapping that can be written as JSON."""
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
    """Return a session's state, with the listings of these `kinds` from the session's node."""
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
    """Return the exit record of an actor in another session; see `messages.QueryExit`.

    Raises:
        ObjectLostError: the actor is alive, and a connection to it was lost.
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
    """Kill an actor of another session and wait until it is dead.

    With `restart=True`, the actor may be restarted.
    """
    with contextlib.suppress(NodeDiedError), connect(Path(home)) as node:  # an actor dies with its node
        node.ask(Kill(worker_id, reason, restart))
