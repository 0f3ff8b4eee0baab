"""Spares: processes that are forked in advance, and become the nodes and templates of a program's sessions.

    driver ──fork──▶ spare ──needed──▶ node ──fork──▶ spare ──needed──▶ template

trainkit starts these processes by `Popen` and `posix_spawn`, which here wake a spare. So the parent of a node
is its driver, the parent of a template is its node, and both have the environment and descriptors as always.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

PAD = "KILLS_PAD"
"""Environment variable of the warm process, whose place in memory holds the variables of a forked process."""
PAD_BYTES = 4096
MESSAGE_BYTES = 1 << 16
TEMPLATES = 1
"""Number of spares of a node: the templates that replace killed templates."""
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask a program to end. Spares ignore them, because a new program has no such process."""
HIGH = 100
"""Number above all descriptors of a spare."""
NAME = "trainkit-spare"
"""Name of a spare, which starts as the names of all processes that may stay with a detached actor."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


@dataclass(frozen=True)
class Block:
    """Environment of the warm process in memory, as /proc shows it for each process forked from it.

    Attributes:
        variables: variables with which the warm process was started.
        place: address of the pad.
    """

    variables: Mapping[bytes, bytes]
    place: int

    @classmethod
    def own(cls) -> Block:
        """Return the block of this process, which must be the warm process."""
        data = Path("/proc/self/environ").read_bytes()
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start = int(fields[47])  # env_start, the 50th field if pid and name are counted
        pairs = (item.partition(b"=") for item in data.split(b"\0") if item)
        return cls({name: value for name, _, value in pairs}, start + data.index(PAD.encode() + b"="))

    def take(self, environment: Mapping[str, str]) -> None:
        """Give this forked process an environment, also in /proc."""
        new = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        changed = (pair for pair in new.items() if self.variables.get(pair[0]) != pair[1])
        data = b"".join(b"%b=%b\0" % pair for pair in changed)
        if len(data) > PAD_BYTES:
            raise ValueError(
                f"environment variables need {len(data)} bytes, but {PAD} has {PAD_BYTES}: use --cold"
            )
        ctypes.memmove(self.place, data.ljust(PAD_BYTES, b"\0"), PAD_BYTES)
        os.environ.clear()
        os.environ.update(environment)


def draw_seeds() -> None:
    """Give the generators of Python and numpy new states, as in a new process."""
    random.seed()
    np.random.seed()


class Spares:
    """Spares of one process. They are forked before the process has any thread.

    Args:
        block: environment of the warm process.
        count: number of spares.
    """

    def __init__(self, block: Block, count: int) -> None:
        self._block = block
        self._count = count
        self._owner = os.getpid()
        self._ready: list[tuple[int, socket.socket]] = []

    def prepare(self, held: Sequence[int] = ()) -> Callable[[], NoReturn] | None:
        """Fork the spares; return None, and in a spare that is needed the function that runs it.

        Args:
            held: descriptors of this process that spares must close.
        """
        for _ in range(self._count):
            ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
            # A KeyboardInterrupt in a function that Python calls at a fork would be lost.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
            pid = os.fork()
            if pid == 0:
                for number in ASKING:
                    signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if pid == 0:
                ours.close()
                for _, sock in self._ready:
                    sock.close()
                for descriptor in held:
                    os.close(descriptor)
                return self._needed(theirs)
            theirs.close()
            self._ready.append((pid, ours))
        return None

    def serve_nodes(self) -> None:
        """Let trainkit's start of a node wake a spare."""
        from trainkit.runtime.local.system import boot

        def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
            if not self._usable():
                return subprocess.Popen(command, **options)
            return _Node(self._ready.pop(), command, options)

        vars(boot)["subprocess"] = types.SimpleNamespace(Popen=popen, DEVNULL=subprocess.DEVNULL)

    def serve_templates(self) -> None:
        """Let trainkit's start of a new template wake a spare."""
        real = os.posix_spawn

        def spawn(program: str, command: Sequence[str], environment: Mapping[str, str]) -> int:
            if not self._usable():
                return real(program, command, environment)
            pid, sock = self._ready.pop()
            socket_number, lifeline, _ = map(int, command[-3:])
            _wake(sock, command, environment, [socket_number, lifeline])
            return pid

        vars(os)["posix_spawn"] = spawn

    def _usable(self) -> bool:
        return bool(self._ready) and os.getpid() == self._owner

    def _needed(self, sock: socket.socket) -> Callable[[], NoReturn]:
        """Wait until this spare is needed, and return the function that runs the node or template."""
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        prctl(_PR_SET_NAME, NAME.encode())
        if os.getppid() != self._owner:
            os._exit(0)
        message, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 4)
        if not message:
            os._exit(0)
        prctl(_PR_SET_PDEATHSIG, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in ASKING[1:]:
            signal.signal(number, signal.SIG_DFL)
        command, environment, numbers, new = pickle.loads(message)
        sock.close()
        for here, there in zip([_moved(fd) for fd in fds], numbers, strict=True):
            os.dup2(here, there)
            os.close(here)
        if new:
            os.setsid()
            os.chdir("/")
        self._block.take(environment)
        draw_seeds()
        at = command.index("-c")
        sys.path.insert(0, command[at + 2])
        if new:
            templates = Spares(self._block, TEMPLATES)
            if (needed := templates.prepare(numbers)) is not None:
                return needed
            templates.serve_templates()
        from trainkit.runtime.local.main import main

        def run() -> NoReturn:
            main(command[at + 3 :])

        return run


def _moved(descriptor: int) -> int:
    """Move a descriptor to a number that no other descriptor is to have."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)
    os.close(descriptor)
    return moved


def _wake(
    sock: socket.socket,
    command: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    new: bool = False,
) -> None:
    """Wake a spare, which receives descriptors under the same numbers, and a new session if `new` is True."""
    message = pickle.dumps((list(command), dict(environment), list(descriptors), new))
    with sock:
        socket.send_fds(sock, [message], descriptors)


class _Node(subprocess.Popen[bytes]):
    """Handle of a spare that has become a node."""

    def __init__(self, spare: tuple[int, socket.socket], command: Sequence[str], options: Mapping[str, Any]):
        self._spare = spare
        super().__init__(command, pass_fds=options["pass_fds"], env=options["env"])

    def _execute_child(
        self, args: Any, program: Any, before: Any, close: Any, pass_fds: Any, cwd: Any, env: Any, *more: Any
    ) -> None:
        self.pid, sock = self._spare
        self._child_created = True
        _wake(sock, args, env, pass_fds, new=True)
