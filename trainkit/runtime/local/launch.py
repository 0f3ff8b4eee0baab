"""Starting the node from the driver, and seeing to it that nothing of it is left."""

from __future__ import annotations

import os
import pickle
import resource
import secrets
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from trainkit import settings
from trainkit.clock import SYSTEM
from trainkit.runtime import preload
from trainkit.runtime.local import process
from trainkit.runtime.local.account import StoreAccount
from trainkit.runtime.local.devices import memory_bytes, visible_gpus
from trainkit.runtime.specs import SessionSpec
from trainkit.settings import SESSION_MARK

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[3])
_GRACE_S = 5.0
_SCRATCH = "trainkit-session-"
_STORE_SHARE = 3
"""Objects may take so many tenths of the memory unless the user says otherwise."""

# The package's folder goes first, so the node runs the code that the driver runs; -P keeps the
# driver's working directory from being searched for modules.
_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from trainkit.runtime.local.node import main
main(sys.argv[2:])
"""


class Node:
    """The supervising process, from the driver's side.

    Attributes:
        control: the socket to it.
        mark: the session's, in the environment of all its processes; its scratch folder's path.
        account: of what the session's objects take.
    """

    def __init__(
        self, child: subprocess.Popen[bytes], control: socket.socket, mark: str, account: StoreAccount
    ) -> None:
        self.child = child
        self.control = control
        self.mark = mark
        self.account = account

    def status(self) -> str:
        """How it ended, for messages."""
        try:
            code = self.child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def join(self) -> None:
        """Wait until it has ended everything; end it, and what it left, if it doesn't."""
        try:
            self.child.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if self.child.returncode != 0:
            self.end_leftovers()

    def end_leftovers(self) -> None:
        """Kill whatever still carries the session's mark: what outlives a killed node."""
        deadline = SYSTEM.monotonic() + _GRACE_S
        while SYSTEM.monotonic() < deadline:
            left = process.marked(self.mark)
            if not left:
                shutil.rmtree(self.mark, ignore_errors=True)  # there only if it was used
                return
            for pid in left:
                process.kill(pid)
            SYSTEM.sleep(0.01)


def start_node(spec: SessionSpec) -> Node:
    """Start the supervising process; returns before it is ready, as its socket takes requests at once."""
    _raise_descriptor_limit()
    _remove_abandoned()
    mark = str(settings.runtime_dir() / f"{_SCRATCH}{secrets.token_hex(8)}")
    ours, theirs = socket.socketpair()
    # One OpenBLAS thread, or the templates could not fork; workers are given their own number.
    environ = {**os.environ, SESSION_MARK: mark, "OPENBLAS_NUM_THREADS": "1"}
    limit = spec.object_store_bytes
    account = StoreAccount.create(_STORE_SHARE * memory_bytes() // 10 if limit is None else limit)
    options = {
        "fd": theirs.fileno(),
        "account": account.fd,
        "driver": os.getpid(),
        "spec": spec,
        "gpus": visible_gpus(),
        "preload": preload.at_start(spec.preload),
    }
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _BOOT, _PACKAGE_ROOT, pickle.dumps(options).hex()],
        stdin=subprocess.DEVNULL,
        env=environ,
        pass_fds=[theirs.fileno(), account.fd],
        start_new_session=True,  # Ctrl-C in the terminal is the driver's alone
        cwd="/",
    )
    theirs.close()
    return Node(child, ours, mark, account)


def _remove_abandoned() -> None:
    """Remove the scratch folders of sessions of which nothing runs any more: node and driver were killed."""
    for folder in settings.runtime_dir().glob(f"{_SCRATCH}*"):
        if folder.stat().st_uid == os.getuid() and not process.marked(str(folder)):
            shutil.rmtree(folder, ignore_errors=True)


def _raise_descriptor_limit() -> None:
    """As far as is allowed, here and so in all processes of the session: a worker costs the node three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
