"""Early start of the node's process, which imports modules while the program prepares the settings."""

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

from trainkit.runtime import signals
from trainkit.settings import SESSION_MARK, TERMINAL, runtime_dir

PREFIX = "trainkit-session-"
"""Prefix of the names of sessions' folders."""

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[4])

# The folder with the package is first in the path, so that the node runs the same code as the driver. The
# option -P keeps Python from searching the working directory for modules.
_CODE = """
import sys
sys.path.insert(0, sys.argv[1])
from trainkit.runtime.local.main import main
main(sys.argv[2:])
"""


@dataclass(frozen=True)
class Boot:
    """Process that becomes the node when it receives the session's settings.

    Without settings, the process ends with the program.

    Attributes:
        child: handle of the process.
        control: socket to the process.
        mark: path of the session's folder, which the process creates.
        environ: environment of the program when the process was started.
        owner: pid of the program.
    """

    child: subprocess.Popen[bytes]
    control: socket.socket
    mark: str
    environ: Mapping[str, str]
    owner: int

    def tell(self, settings: int, account: int) -> None:
        """Send the settings to the process, which waits for them.

        Args:
            settings: descriptor of the file with the settings.
            account: descriptor of the memory file with the object store's budget.
        """
        with contextlib.suppress(BrokenPipeError):  # an ended process is reported by later requests
            socket.send_fds(self.control, [b"\0"], [settings, account])

    def end(self) -> None:
        """Kill the process. The process must not have received settings."""
        self.child.kill()
        self.child.wait()


_begun: Boot | None = None


def home() -> Path:
    """Return the parent folder of all sessions.

    The path has no symbolic links, so that all programs use the same path.
    """
    return runtime_dir().resolve()


@contextlib.contextmanager
def begun() -> Iterator[None]:
    """Keep a node process ready while the block runs.

    Kill the process if the function `take` has not taken it over.
    """
    global _begun
    if sys.platform == "linux":  # on other systems, the engine reports that it needs Linux
        _begun = take()
    try:
        yield
    finally:
        left, _begun = _begun, None
        if left is not None:
            left.control.close()
            left.end()


def take() -> Boot:
    """Return the node process that `begun` keeps ready, or a new node process.

    The caller must send settings to the process or end it.
    """
    global _begun
    found, _begun = _begun, None
    environ = dict(os.environ)
    if found is not None:
        # in a forked child, the test fails, as the parent owns the node process
        is_own = found.owner == os.getpid()
        if is_own and found.environ == environ and found.child.poll() is None:
            return found
        found.control.close()
        if is_own:
            found.end()
    return _started(environ)


def received(control: socket.socket) -> tuple[int, int] | None:
    """Receive the descriptors of the settings file and of the memory file with the object store's budget.

    Return None if the program has ended.
    """
    fds = socket.recv_fds(control, 1, 2)[1]
    return (fds[0], fds[1]) if fds else None


def command(*arguments: int) -> list[str]:
    """Return the command line of a process that runs `main` with `arguments`."""
    return [sys.executable, "-P", "-c", _CODE, _PACKAGE_ROOT, *map(str, arguments)]


def _started(environ: Mapping[str, str]) -> Boot:
    _raise_descriptor_limit()
    mark = str(home() / f"{PREFIX}{secrets.token_hex(8)}")
    # OpenBLAS gets one thread, because template processes, from which workers are forked, must not have
    # threads. Workers set their own number of threads later.
    own = {**environ, SESSION_MARK: mark, "OPENBLAS_NUM_THREADS": "1"}
    own[TERMINAL] = _terminal()
    # Heaps of huge pages make training 10% faster. If the user has set one of these variables, the user's
    # value is kept.
    tunables = ("glibc.malloc.hugetlb=1", environ.get("GLIBC_TUNABLES"))
    own["GLIBC_TUNABLES"] = ":".join(filter(None, tunables))
    # The background thread of pyarrow's allocator is off, as pandas would start this thread in a template
    # process.
    arrow = (environ.get("JE_ARROW_MALLOC_CONF"), "background_thread:false")
    own["JE_ARROW_MALLOC_CONF"] = ",".join(filter(None, arrow))
    ours, theirs = socket.socketpair()
    # The new process inherits the signal mask, so that it does not die of a signal before it sets the mask
    # itself.
    with theirs, signals.held():
        child = subprocess.Popen(
            command(theirs.fileno()),
            stdin=subprocess.DEVNULL,
            env=own,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal must reach only the driver
            cwd="/",
        )
    return Boot(child, ours, mark, environ, os.getpid())


def _terminal() -> str:
    """Return the device of the program's terminal; "" if it is missing or a container hides its name."""
    try:
        return os.ttyname(0)
    except OSError:
        return ""


def _raise_descriptor_limit() -> None:
    """Raise the descriptor limit of this process to its maximum, because the node needs three descriptors for
    each worker.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
