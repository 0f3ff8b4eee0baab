"""A node's process, begun ahead of its settings: its Python loads the node while this program goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainkit.settings import SESSION_MARK, TERMINAL, runtime_dir

PREFIX = "trainkit-session-"
"""Start of the names of sessions' folders."""

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[4])

# The package's folder goes first, so the node runs the code that the driver runs; -P keeps the
# driver's working directory from being searched for modules.
_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from trainkit.runtime.local.main import main
main(sys.argv[2:])
"""


@dataclass(frozen=True)
class Boot:
    """A process that becomes the node once it is told its settings, or ends with the program that began it.

    Attributes:
        child: the process.
        control: the socket to it.
        mark: path of its session's folder, which it makes.
        environ: what it was started with.
        owner: pid of the program.
    """

    child: subprocess.Popen[bytes]
    control: socket.socket
    mark: str
    environ: Mapping[str, str]
    owner: int

    def tell(self, settings: int, account: int) -> None:
        """Hand over what it waits for.

        Args:
            settings: descriptor of a file with them.
            account: of the object store.
        """
        with contextlib.suppress(BrokenPipeError):  # it has ended, as whoever asks it is told
            socket.send_fds(self.control, [b"\0"], [settings, account])

    def end(self) -> None:
        """End the process, which has been told nothing."""
        self.child.kill()
        self.child.wait()


_begun: Boot | None = None


def home() -> Path:
    """Return the folder of all sessions, by the one name that all programs know it by."""
    return runtime_dir().resolve()


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Have a process wait while the block is run, unless one does already; end it if nobody takes it."""
    global _begun
    if sys.platform == "linux":  # elsewhere the engine says that it needs it
        _begun = take()
    try:
        yield
    finally:
        left, _begun = _begun, None
        if left is not None:
            left.control.close()
            left.end()


def take() -> Boot:
    """Return the process that waits, or a new one; the caller tells it its settings, or ends it."""
    global _begun
    found, _begun = _begun, None
    environ = dict(os.environ)
    if found is not None:
        is_own = found.owner == os.getpid()  # else it is that of the process which forked this one
        if is_own and found.environ == environ and found.child.poll() is None:
            return found
        found.control.close()
        if is_own:
            found.end()
    return _started(environ)


def received(control: socket.socket) -> tuple[int, int] | None:
    """Return the settings and the account in the process; None if the program has ended without a word."""
    fds = socket.recv_fds(control, 1, 2)[1]
    return (fds[0], fds[1]) if fds else None


def command(*arguments: int) -> list[str]:
    """Return the command of a process that runs `main` with `arguments`."""
    return [sys.executable, "-P", "-c", _CODE, _PACKAGE_ROOT, *map(str, arguments)]


def _started(environ: Mapping[str, str]) -> Boot:
    _raise_descriptor_limit()
    mark = str(home() / f"{PREFIX}{secrets.token_hex(8)}")
    # One OpenBLAS thread, or the templates could not fork; workers are given their own number.
    own = {**environ, SESSION_MARK: mark, "OPENBLAS_NUM_THREADS": "1"}
    own[TERMINAL] = _terminal()
    # Heaps of huge pages, which training takes a tenth less time in; what a user has set goes before.
    tunables = ("glibc.malloc.hugetlb=1", environ.get("GLIBC_TUNABLES"))
    own["GLIBC_TUNABLES"] = ":".join(filter(None, tunables))
    # No thread of pyarrow's allocator, which pandas would start in a template.
    arrow = (environ.get("JE_ARROW_MALLOC_CONF"), "background_thread:false")
    own["JE_ARROW_MALLOC_CONF"] = ",".join(filter(None, arrow))
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            command(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            env=own,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is the driver's alone
            cwd="/",
        )
    return Boot(child, ours, mark, environ, os.getpid())


def _terminal() -> str:
    """Return the device of the program's terminal; "" where there is none, or none by name in a container."""
    try:
        return os.ttyname(0)
    except OSError:
        return ""


def _raise_descriptor_limit() -> None:
    """Raise the limit as far as allowed, for all processes of the session: a worker costs the node three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
