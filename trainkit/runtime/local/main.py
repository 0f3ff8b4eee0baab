"""Entry point of the node process, which forks the plain template (the process that forks
workers), then runs the node.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from trainkit.runtime import signals
from trainkit.runtime.local.node.node import Node
from trainkit.runtime.local.node.records import SessionRecord
from trainkit.runtime.local.node.restarts import keep_handles
from trainkit.runtime.local.system import boot, process
from trainkit.runtime.local.worker.template import run_template
from trainkit.settings import SESSION_MARK


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the node of a session, or a new plain template process for a running node.

    Args:
        arguments: for the node, the descriptor of the socket over which the settings arrive. For a template,
            the descriptor of its socket to the node, the descriptor of the pipe that reports the node's end,
            and the node's pid.
    """
    signals.keep_pending()
    control = socket.socket(fileno=int(arguments[0]))
    if arguments[1:]:
        _become_template(control, *map(int, arguments[1:]))
    if (told := boot.received(control)) is None:
        raise SystemExit
    settings, account = told
    with open(settings, "rb") as file:
        file.seek(0)
        options = pickle.load(file)
    ours, theirs = socket.socketpair()
    node_pid = signals.node = os.getpid()
    lifeline, writer = os.pipe()
    # The plain template is forked before the node has any state, so that the template's memory stays small.
    template_pid = os.fork()
    if template_pid == 0:
        control.close()
        os.close(account)
        os.close(writer)
        ours.close()
        _become_template(theirs, lifeline, node_pid)
    theirs.close()
    process.set_name("trainkit-node")
    process.become_subreaper()
    process.keep_spare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_handles()
    session = SessionRecord(
        spec=options["spec"],
        folder=Path(os.environ[SESSION_MARK]),
        account_fd=account,
        gpus=options["gpus"],
        template=ours,
        template_pid=template_pid,
        new_template=lambda: _new_template(lifeline),
        driver_pid=options["driver"],
        program=options["program"],
    )
    node = Node(session, control)
    for imports in options["preload"]:
        node.warm(imports)
    code = 0
    try:
        node.run()
    except Exception:
        traceback.print_exc()
        code = 1
    finally:
        node.end_everything()
        os._exit(code)


def _become_template(sock: socket.socket, lifeline: int, node_pid: int) -> NoReturn:
    signals.node = node_pid
    process.die_with_parent(node_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run_template(sock, lifeline, frozenset())


def _new_template(lifeline: int) -> tuple[socket.socket, int]:
    """Start a plain template as a new Python process, as the node has too much state to be forked."""
    ours, theirs = socket.socketpair()
    for fd in (theirs.fileno(), lifeline):
        os.set_inheritable(fd, True)
    command = boot.command(theirs.fileno(), lifeline, os.getpid())
    with theirs:
        pid = os.posix_spawn(command[0], command, os.environ)
    return ours, pid
