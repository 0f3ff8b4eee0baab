"""What follows when workers end, without a process: orders, restarts, names, and what becomes of others."""

from __future__ import annotations

import os
from typing import Any

from tests.runtime.local.node.parts import NodeParts
from trainkit.errors import ObjectLostError
from trainkit.runtime.local.wire import messages
from trainkit.runtime.restart_policy import ExitRecord


def exit_of(node: NodeParts, worker_id: int) -> list[Any]:
    """Ask how a worker ended; returns the answers to come."""
    answers: list[Any] = []
    node.supervisor.query_exit(messages.QueryExit(worker_id), answers.append)
    return answers


def test_a_lease_of_a_worker_that_ends_in_order_is_returned() -> None:
    node = NodeParts(11, CPU=2)
    serial = node.worker(11).serial
    node.ask_lease(21, client=serial)
    node.supervisor.departs(serial, stays=False, reason="it ended itself")
    node.exits(11, code=0)
    assert (node.processes.killed, node.machine.amounts()) == ([], {"CPU": 2.0})


def test_an_actor_stays_that_a_connection_is_on_its_way_to() -> None:
    node = NodeParts(11, CPU=1)
    serial = node.worker(11).serial
    assert not node.supervisor.may_leave(serial, introduced=-1)
    assert node.supervisor.may_leave(serial, introduced=0)
    assert node.worker(11).ending == "its last handle is gone"


# restarts


def test_a_restart_waits_for_descriptors() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, max_restarts=1)
    node.worker(11).pid = 4711
    node.processes.full = True
    node.exits(11)
    (told,) = [message for _, message in node.notices if isinstance(message, messages.Waits)]
    assert "Actor11 (pid 4711) can't be restarted yet and waits: no descriptor left" in told.text
    node.processes.full = False
    node.timers.run()
    assert (node.worker(11).restarts, len(node.processes.started)) == (1, 2)


# names


def test_an_actor_whose_first_connection_was_lost_never_starts() -> None:
    node = NodeParts(CPU=1)
    node.supervisor.never_started(11, ExitRecord(reason="lost on the way"))
    assert exit_of(node, 11)[0].reason == "lost on the way"


def test_a_connection_lost_on_the_way_to_a_living_worker_is_no_end() -> None:
    node = NodeParts(11, CPU=1)
    node.worker(11).pid = os.getpid()
    (answer,) = exit_of(node, 11)
    assert isinstance(answer, ObjectLostError)
