"""Program that keeps one command on a machine: it starts the command, passes its input, output and signals,
and ends the command when the connection to the program that asked for it ends.

The text of this file is sent to the machine, and Python runs the text there. So this file imports the
standard library only. It first writes GREETING, because a shell may have written something before. Messages
are frames of a kind (one letter), a length and a content, in both directions:

| kind | to the keeper | from the keeper |
| --- | --- | --- |
| H | first frame: command, folder and environment variables, as JSON | the command has begun: its id |
| I | input of the command; an empty frame closes the input | |
| S | signal for the command: its number | |
| B | sign of life; the command is ended if none comes for some time | its answer |
| O, E | | output of the command, and its standard error |
| M | | what the command has written to its descriptor REPORTS |
| X | | end of the command: its exit code, negative for a signal, or why it can't start |
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import os
import select
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

HEAD = struct.Struct(">cI")
GREETING = b"\0trainkit's keeper\0"
REPORTS = 3
"""Descriptor to which a command can write messages, apart from its output."""
_PIECE = 65536
_LAST_WORDS_S = 5.0
_LOOK_S = 0.02
_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36


class _Keeper:
    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self._telling = threading.Lock()

    def keep(self) -> None:
        """Run the command until it ends."""
        environment = dict(os.environ)
        for name, value in self.asked["environment"].items():
            environment.pop(name, None)
            if value is not None:
                environment[name] = value
        reports = _reports()
        try:
            os.chdir(os.path.expanduser(self.asked["folder"] or "."))
            child = subprocess.Popen(
                self.asked["command"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(REPORTS,),
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            self._tell(b"X", json.dumps({"error": str(error)}).encode())
            return
        os.close(REPORTS)
        self._tell(b"H", str(child.pid).encode())
        pipes = {b"O": child.stdout, b"E": child.stderr}
        fds = {kind: pipe.fileno() for kind, pipe in pipes.items() if pipe is not None}
        copies = [
            threading.Thread(target=self._copy, args=pair, daemon=True)
            for pair in [*fds.items(), (b"M", reports)]
        ]
        for thread in [*copies, threading.Thread(target=self._obey, args=(child,), daemon=True)]:
            thread.start()
        code = child.wait()
        _end_descendants()
        for thread in copies:
            thread.join(_LAST_WORDS_S)
        self._tell(b"X", json.dumps({"code": code}).encode())

    def _tell(self, kind: bytes, content: bytes) -> None:
        with self._telling, contextlib.suppress(OSError):  # the connection may have ended
            data = HEAD.pack(kind, len(content)) + content
            while data:
                data = data[os.write(1, data) :]

    def _copy(self, kind: bytes, fd: int) -> None:
        while piece := os.read(fd, _PIECE):
            self._tell(kind, piece)

    def _obey(self, child: subprocess.Popen[bytes]) -> None:
        for kind, content in frames(_input(), self.asked["silence_s"]):
            if kind == b"S":
                child.send_signal(int(content))
            elif kind == b"B":
                self._tell(b"B", b"")
            elif kind == b"I" and child.stdin is not None:
                with contextlib.suppress(OSError):  # the command may have closed its input
                    child.stdin.write(content)
                    child.stdin.flush() if content else child.stdin.close()
        # The program that asked for the command has ended, or the connection to this program is lost.
        if child.stdin is not None:
            with contextlib.suppress(OSError):
                child.stdin.close()
        child.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(self.asked["grace_s"])
        child.kill()


def _input() -> io.RawIOBase:
    return open(0, "rb", buffering=0, closefd=False)


def _reports() -> int:
    """Open a pipe that ends at the descriptor REPORTS, and return the descriptor to read from."""
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, REPORTS + 7)
    os.dup2(writing, REPORTS)
    for fd in {reading, writing} - {REPORTS}:
        os.close(fd)
    return high


def _end_descendants() -> None:
    """End all processes that the command has left behind; they have become children of this process."""
    pause = threading.Event()
    asked: set[int] = set()
    looks = 0
    while left := children():
        looks += 1
        is_late = looks > _LAST_WORDS_S / _LOOK_S
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                if is_late or pid not in asked:
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        asked.update(left)
        pause.wait(_LOOK_S)


def children() -> list[int]:
    """Return the process ids of this process's children."""
    found: list[int] = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/children") as file:
            found += map(int, file.read().split())
    return found


def frames(stream: io.RawIOBase, silence_s: float | None = None) -> Iterator[tuple[bytes, bytes]]:
    """Yield the kind and content of each frame of a stream without a buffer.

    The frames end with the stream, or after `silence_s` seconds without data.
    """

    def whole(size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            if silence_s is not None and not select.select([stream], [], [], silence_s)[0]:
                return None
            piece = stream.read(size - len(data))
            if not piece:
                return None
            data += piece
        return data

    while head := whole(HEAD.size):
        kind, size = HEAD.unpack(head)
        content = whole(size)
        if content is None:
            return
        yield kind, content


def _end_with_parent() -> None:
    """Let this process get SIGTERM when the keeper is killed."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)


def _pass(number: int, frame: object) -> None:
    """Do nothing; a handler, unlike SIG_IGN, is not inherited by the command."""


def main() -> None:
    """Keep the command that the first frame asks for."""
    # Slurm sends signals of the job to all its processes. The command acts on them, and this process ends
    # with the command.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _pass)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    os.write(1, GREETING)
    asked = next(frames(_input()), None)
    if asked is not None:
        _Keeper(json.loads(asked[1])).keep()
    os._exit(0)


if __name__ == "__main__":
    main()
