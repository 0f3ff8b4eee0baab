"""What follows when workers end, without a process: orders, restarts, names, and what becomes of others."""

from __future__ import annotations

import os
import socket
from typing import Any

from tests.runtime.local.node.parts import NodeParts, actor, first
from trainkit.errors import ConfigError, ObjectLostError
from trainkit.runtime.local.wire import messages
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.restart_policy import ExitRecord


def exit_of(node: NodeParts, worker_id: int) -> list[Any]:
    """Ask how a worker ended; returns the answers to come."""
    answers: list[Any] = []
    node.supervisor.query_exit(messages.QueryExit(worker_id), answers.append)
    return answers


def test_a_killed_worker_is_dead_when_its_process_is() -> None:
    node = NodeParts(11, CPU=1)
    dead: list[ExitRecord] = []
    node.supervisor.kill(11, "it was killed", dead.append)
    assert (node.processes.killed, dead) == ([11], [])
    node.exits(11)
    assert [exit_.reason for exit_ in dead] == ["it was killed"]
    assert exit_of(node, 11) == dead


def test_a_worker_killed_before_its_turn_is_never_started() -> None:
    node = NodeParts(11, 12, CPU=1)
    answers = exit_of(node, 12)
    node.supervisor.kill(12, "no more", lambda _: None)
    assert [answer.reason for answer in answers] == ["it was killed before it was started"]
    node.exits(11)
    assert node.living() == []


def test_a_cancellation_finds_its_worker_started_or_not() -> None:
    node = NodeParts(11, 12, CPU=1)
    for worker_id in (11, 12, 99):
        node.supervisor.cancel(messages.Cancel(worker_id, 1, False))
    assert node.processes.cancelled == [11, -12]


def test_workers_end_with_the_worker_that_asked_for_them() -> None:
    node = NodeParts(11, CPU=3)
    serial = node.worker(11).serial
    node.ask_actor(12, client=serial)
    node.ask_actor(13, client=serial, detached=True)
    node.exits(11)
    assert node.processes.killed == [12]
    assert node.worker(12).ending == "its owner Actor11 (pid None) ended"
    node.exits(13)


def test_a_lease_of_a_worker_that_ends_in_order_is_returned() -> None:
    node = NodeParts(11, CPU=2)
    serial = node.worker(11).serial
    node.ask_lease(21, client=serial)
    node.supervisor.departs(serial, stays=False, reason="it ended itself")
    node.exits(11, code=0)
    assert (node.processes.killed, node.machine.amounts()) == ([], {"CPU": 2.0})


def test_an_actor_that_stays_for_its_results_is_over_all_the_same() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, name="clerk")
    serial = node.worker(11).serial
    node.supervisor.departs(serial, stays=True, reason="it ended itself")
    assert (node.machine.amounts(), exit_of(node, 11)[0].code) == ({"CPU": 1.0}, 0)
    assert [worker.serial for worker in node.table.all()] == [serial]
    node.exits(-serial, code=0)
    assert node.living() == []


def test_an_actor_stays_that_a_connection_is_on_its_way_to() -> None:
    node = NodeParts(11, CPU=1)
    serial = node.worker(11).serial
    assert not node.supervisor.may_leave(serial, introduced=-1)
    assert node.supervisor.may_leave(serial, introduced=0)
    assert node.worker(11).ending == "its last handle is gone"


# restarts


def test_an_actor_is_restarted_with_what_it_holds_and_no_oftener_than_it_may_be() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, max_restarts=1)
    first_serial = node.worker(11).serial
    node.exits(11)
    assert node.worker(11).serial != first_serial
    assert (node.worker(11).restarts, node.machine.amounts()) == (1, {"CPU": 0.0})
    record = node.restarts.record(11)
    assert record is not None
    lost = record.last_exit
    assert (lost.code, lost.requested) == (-9, False)
    node.exits(11)
    assert (node.living(), node.machine.amounts()) == ([], {"CPU": 1.0})


def test_an_actor_that_dies_early_again_and_again_is_restarted_later() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, max_restarts=-1)
    for _ in range(3):
        node.exits(11)
    assert node.processes.delays == sorted(node.processes.delays)
    assert node.processes.delays[-1] > 0


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


def test_a_client_is_connected_to_the_next_process_of_its_actor() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, max_restarts=1)
    answers: list[Any] = []
    ours, theirs = socket.socketpair()
    node.supervisor.reconnect(1, messages.Reconnect(11, 0), Descriptor(theirs.detach()), answers.append)
    assert answers == []
    node.exits(11)
    assert [type(answer) for answer in answers] == [messages.Reconnected]
    assert answers[0].life == 1
    ours.close()


def test_a_client_of_an_actor_that_is_never_restarted_is_told_how_it_ended() -> None:
    node = NodeParts(11, CPU=1)
    node.exits(11)
    answers: list[Any] = []
    node.supervisor.reconnect(1, messages.Reconnect(11, 0), first(), answers.append)
    assert [answer.code for answer in answers] == [-9]


# names


def find(node: NodeParts, name: str) -> Any:
    """Return the answer to the question for the actor of a name."""
    answers: list[Any] = []
    node.named.find(messages.FindActor(name, None, False), [], answers.append)
    return answers[0]


def test_a_name_is_free_when_its_actor_has_ended_for_good() -> None:
    node = NodeParts(CPU=2)
    node.ask_actor(11, name="clerk", max_restarts=1)
    assert isinstance(find(node, "clerk"), messages.Found)
    node.exits(11)
    assert find(node, "clerk").life == 1
    answers: list[Any] = []
    assert not node.named.register(actor(12, name="clerk"), answers.append)
    assert isinstance(answers[0], ConfigError)
    node.exits(11)
    assert isinstance(find(node, "clerk"), messages.NotFound)


def test_an_actor_that_is_being_killed_is_not_found() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, name="clerk")
    node.supervisor.kill(11, "no more", lambda _: None)
    assert isinstance(find(node, "clerk"), messages.NotFound)


def test_the_end_of_the_last_detached_actor_is_told() -> None:
    node = NodeParts(CPU=2)
    node.ask_actor(11, name="one", detached=True)
    node.ask_actor(12, name="two", detached=True)
    node.exits(11)
    assert (node.emptied, node.named.has_detached()) == (0, True)
    node.exits(12)
    assert (node.emptied, node.named.has_detached()) == (1, False)


def test_an_actor_whose_first_connection_was_lost_never_starts() -> None:
    node = NodeParts(CPU=1)
    node.supervisor.never_started(11, ExitRecord(reason="lost on the way"))
    assert exit_of(node, 11)[0].reason == "lost on the way"


def test_a_connection_lost_on_the_way_to_a_living_worker_is_no_end() -> None:
    node = NodeParts(11, CPU=1)
    node.worker(11).pid = os.getpid()
    (answer,) = exit_of(node, 11)
    assert isinstance(answer, ObjectLostError)
