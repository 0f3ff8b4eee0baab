"""What a program leaves behind: when it ends, its detached actors stay, with what they started.

program ends ──▶ its workers are killed, its requests and groups given up ──▶ the node stays
the last detached actor ends ──▶ the node ends
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainkit.runtime.local import process
from trainkit.runtime.local.births import Redirect
from trainkit.runtime.local.channel import Descriptor
from trainkit.runtime.local.children import Worker
from trainkit.runtime.local.frames import NOTICE
from trainkit.runtime.local.loop import try_send
from trainkit.runtime.local.messages import packed
from trainkit.runtime.local.requests import NOBODY
from trainkit.runtime.supervise import Exit

if TYPE_CHECKING:
    from trainkit.runtime.local.node import Node

LOG = "node.log"
"""In the session's folder: what the node prints once there is no program to print it in."""

_DRIVER = 1
_GRACE_S = 2.0


def end_program(node: Node, then: Callable[[], None]) -> None:
    """End all that belongs to the program that started the session.

    Args:
        node: whose session it is.
        then: called once, when that is dead, or after a grace if the kernel can't end some of it yet.
    """
    workers = node.census.workers()
    staying = _belonging_to(NOBODY, workers)
    doomed = {worker.worker_id: worker for worker in workers if worker.serial not in staying}
    node.stores.forsake(_DRIVER, "the program that asked for it has ended")

    waiting = [then]

    def done() -> None:
        while waiting:
            waiting.pop()()

    def ended(worker_id: int, _: Exit) -> None:
        doomed.pop(worker_id, None)
        if not doomed:
            done()

    if not doomed:
        done()
    node.after(_GRACE_S, done)
    for worker_id in list(doomed):
        node.census.kill(worker_id, "its program has ended", functools.partial(ended, worker_id))


def _belonging_to(owner: int, workers: list[Worker]) -> set[int]:
    """Numbers of the workers that `owner` asked for, that those asked for, and so on."""
    found = {worker.serial for worker in workers if worker.owner == owner}
    while True:
        more = {worker.serial for worker in workers if worker.owner in found} - found
        if not more:
            return found
        found |= more


def may_stay(node: Node) -> bool:
    """Tell others that the program has ended, and print to a file from now on; False if that can't be.

    Whoever reads the program's output waits for the last to hold it open.
    """
    try:
        node.door.driver_left()
        fd = os.open(node.mark / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:  # the session's folder was removed, or the disk is full
        sys.stderr.write(f"trainkit: detached actors end with this program, as nobody finds them: {error}\n")
        return False
    for template in node.census.templates.connections():
        try_send(template, NOTICE, 0, packed(Redirect(), [Descriptor(os.dup(fd))]))
    process.take_output(fd)
    os.close(fd)
    return True
