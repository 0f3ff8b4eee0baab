"""Start of the node process, and removal of processes and folders left behind by ended sessions."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from trainkit.errors import ConfigError
from trainkit.runtime import session as preload
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.memory.spilling import choose_folder
from trainkit.runtime.local.system import boot, process
from trainkit.runtime.local.system.devices import memory_bytes, visible_gpus
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.local.wire.messages import packed
from trainkit.runtime.specs import SessionSpec

_STORE_SHARE = 3
"""Default limit for the memory of objects, in tenths of the machine's memory."""


@dataclass(frozen=True, eq=False)
class NodeProcess:
    """Node process, as seen by the driver.

    Attributes:
        control: the socket to the node.
        mark: path of the session's folder, which is in the environment of all processes of the session.
        account: budget of the shared memory that the session's objects use.
    """

    child: subprocess.Popen[bytes]
    control: socket.socket
    mark: str
    account: StoreBudget

    def status(self) -> str:
        """Return a description of how the node ended, for error messages."""
        try:
            code = self.child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def join(self) -> None:
        """Wait for the node to end the session; if it takes too long, kill the node and its processes."""
        try:
            self.child.wait(timeout=process.NODE_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if self.child.returncode != 0:
            self.end_leftovers()

    def let_stay(self) -> None:
        """Keep the node running for detached actors, and reap it when it ends."""
        threading.Thread(target=self.child.wait, name="trainkit-reaper", daemon=True).start()

    def end_leftovers(self) -> None:
        """Kill the remaining processes of the session, which can outlive a killed node."""
        end_leftovers(Path(self.mark))


def end_leftovers(folder: Path) -> int:
    """Kill the processes of a session whose node has ended, remove its folder, and return the number killed.

    The session's folder contains links to other folders. If the driver still runs, the linked folders are
    kept, as the driver may use them in another session.
    """
    session = sessions.session_at(folder)
    spared = None
    if session is not None and not session.driver_gone and process.exists(session.driver):
        spared = session.driver
    ended: set[int] = set()

    def left() -> list[int]:
        found = process.marked(str(folder))
        ended.update(found)
        return found

    if not process.end(left, process.END_S):
        process.remove_folder(folder, spared=spared)
    return len(ended)


def start_node(spec: SessionSpec) -> NodeProcess:
    """Start the node process and return before it is ready. The node's socket accepts requests at once."""
    _remove_abandoned(_usable(boot.home()))
    begun = boot.take()
    try:
        limit = spec.object_store_bytes
        account = StoreBudget.create(
            _STORE_SHARE * memory_bytes() // 10 if limit is None else limit,
            choose_folder(spec.object_spilling_directory),
        )
        options = {
            "driver": os.getpid(),
            "program": json.dumps(_program()),
            "spec": spec,
            "gpus": visible_gpus(),
            "preload": preload.at_start(spec.preload),
        }
        settings = os.memfd_create("trainkit-settings", os.MFD_CLOEXEC)
        with open(settings, "wb") as file:
            file.write(packed(options).payload)
            file.flush()
            begun.tell(settings, account.fd)
    except BaseException:
        begun.control.close()
        begun.end()
        raise
    return NodeProcess(begun.child, begun.control, begun.mark, account)


def _program() -> str:
    """Return the name and the working folder of this program, such as 'train.py in /data'."""
    script = Path(str((sys.argv or [""])[0]))
    name = script.parent.name if script.name == "__main__.py" else script.name
    # /proc/self/cwd can be read even if the folder was removed, while os.getcwd() would raise an error.
    return f"{'python' if name in ('', '-c') else name} in {os.readlink('/proc/self/cwd')}"


def _usable(folder: Path) -> Path:
    """Return `folder`, the parent folder of all sessions, after creating it if it is missing.

    Raises:
        ConfigError: the folder cannot be created or written to.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("it is not writable")
    except OSError as error:
        raise ConfigError(
            f"a session can't start in {folder} ({error}): set TRAINKIT_RUNTIME_DIR to a writable folder"
        ) from None
    return folder


def _remove_abandoned(parent: Path) -> None:
    """End the remaining processes of sessions whose nodes were killed, and remove the sessions' folders."""
    for folder in sessions.folders(parent):
        session = sessions.session_at(folder)
        if session is None:  # the session is starting or ending, or was killed while it started or ended
            if not process.marked(str(folder)):
                process.remove_folder(folder)
        elif not session.alive:
            end_leftovers(folder)
