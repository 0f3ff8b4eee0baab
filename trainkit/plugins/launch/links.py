"""Links between the leader of a run on several machines and its nodes, over which both send messages.

A leader that starts the nodes itself talks to them over the connection of `srun` or `ssh`. Launchers that
users start on each machine connect to the leader's port; both sides prove that they know the run's key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import stat
import struct
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any, Protocol

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.plugins.cluster.keeper import REPORTS
from trainkit.plugins.launch.script import say

Message = tuple[str, Any]
"""Kind and content of a message."""

_LOSS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""Options by which the loss of the other machine is noticed after 30 s."""
PATIENCE_S = 20.0
"""Seconds after which a launcher says what it waits for."""
_AUTHENTICATION_S = 20
_AGAIN_S = 0.2
_LONGEST = 1 << 24


class Link(Protocol):
    """Connection of a node to the leader of its run."""

    def send(self, kind: str, content: Any) -> None:
        """Send a message; without effect if the other side has ended."""

    def receive(self) -> Message | None:
        """Wait for a message, and return it; None if the other side has ended."""


class PipeLink:
    """Link of a node whose leader has started it: its standard input, and the descriptor REPORTS."""

    def __init__(self) -> None:
        # Ranks get the descriptor 0, and must not read the leader's messages.
        self._reading = os.fdopen(os.dup(0), "rb")
        self._writing = os.dup(REPORTS)
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        os.close(REPORTS)

    def send(self, kind: str, content: Any) -> None:
        data = json.dumps([kind, content]).encode() + b"\n"
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(self._writing, data) :]

    def receive(self) -> Message | None:
        line = self._reading.readline()
        return tuple(json.loads(line)) if line.endswith(b"\n") else None


class SocketLink:
    """Link over a connected socket, after both sides have proved that they know the key.

    Args:
        connected: socket.
        key: key of the run.
        leads: True on the leader's side.

    Raises:
        ConfigError: the other side does not know the key, or is no launcher.
    """

    def __init__(self, connected: socket.socket, key: bytes, *, leads: bool) -> None:
        self.address: str = connected.getsockname()[0]
        self.peer: str = connected.getpeername()[0]
        for option, value in _LOSS.items():
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setblocking(True)
        _limit(connected, _AUTHENTICATION_S)
        self._sending = threading.Lock()
        self._connection: Connection = Connection(os.dup(connected.fileno()))
        try:
            for prove in (deliver_challenge, answer_challenge)[:: 1 if leads else -1]:
                prove(self._connection, key)
        except (AuthenticationError, OSError, EOFError, AssertionError) as error:
            self._connection.close()
            raise ConfigError(f"{self.peer} and this launcher have different keys ({error})") from error
        _limit(connected, 0)
        connected.close()

    def send(self, kind: str, content: Any) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._connection.send_bytes(json.dumps([kind, content]).encode())

    def receive(self) -> Message | None:
        try:
            return tuple(json.loads(self._connection.recv_bytes(_LONGEST)))
        except (OSError, EOFError):
            return None


def _limit(connected: socket.socket, seconds: int) -> None:
    """Limit the time of each read and write; 0 means no limit."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))


def key_of(run_id: str, endpoint: str) -> bytes:
    """Return the key of a run, which only programs of this user can compute.

    The key is made of the run's id and of a secret file in the user's home folder, which is created by the
    first run. The machines of the run must have the same file.

    Raises:
        ConfigError: other users can read the file.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "trainkit"
    path = folder / "run-secret"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"run-secret.{secrets.token_hex(8)}"
        new.touch(mode=0o600)
        new.write_text(secrets.token_hex(32))
        # Several machines may do this at once, and all must get the same file.
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
        new.unlink()
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise ConfigError(f"other users can read {path}, which is secret: `chmod 600` it, or delete it")
    return hmac.digest(path.read_bytes(), f"{run_id} {endpoint}".encode(), hashlib.sha256)


def joined(host: str, port: int, key: bytes, seconds: float) -> SocketLink:
    """Connect to the leader of a run, which may start later than this launcher.

    Raises:
        ConfigError: no leader with the same key answers within `seconds`.
    """
    begun = SYSTEM.monotonic()
    latest, quiet = begun + seconds, begun + PATIENCE_S
    while True:
        try:
            connected = socket.create_connection((host, port), timeout=_AUTHENTICATION_S)
            return SocketLink(connected, key, leads=False)
        except ConfigError as error:
            same = "--rdzv-id, --rdzv-endpoint and the file ~/.config/trainkit/run-secret"
            raise ConfigError(f"{error}: {same} must be the same on all machines") from None
        except OSError as error:
            missing = f"the launcher with --node-rank 0 can't be reached at {host}:{port} ({error}):"
            if SYSTEM.monotonic() > latest:
                raise ConfigError(f"{missing} start it, and let all machines connect to this port") from error
            if SYSTEM.monotonic() > quiet:
                quiet = latest
                say(f"{missing} waiting for it")
            SYSTEM.sleep(_AGAIN_S)


def accept(listening: socket.socket, key: bytes, join: Callable[[SocketLink], None]) -> None:
    """Call `join` in a thread with each link of a launcher that knows the key, until the socket is closed."""

    def welcome(connected: socket.socket) -> None:
        with contextlib.suppress(ConfigError):  # a stranger; a launcher with another key reports it itself
            join(SocketLink(connected, key, leads=True))

    while True:
        try:
            connected, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=welcome, args=(connected,), daemon=True).start()
