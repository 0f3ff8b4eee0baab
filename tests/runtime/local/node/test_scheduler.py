"""The scheduler's decisions, without a process: turns, idle workers, lending, groups, and giving up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.local.node.parts import NodeParts
from trainkit.errors import WorkerDiedError
from trainkit.runtime.local.wire.messages import Reclaim, Waits
from trainkit.runtime.placement import Ledger


def test_an_actor_whose_arguments_are_to_come_lets_others_go_first() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, ready=False)
    node.ask_actor(12)
    assert node.living() == [12]
    node.queue.arguments_there(11)
    node.exits(12)
    assert node.living() == [11]


def test_a_returned_worker_runs_the_next_task_of_its_make() -> None:
    node = NodeParts(CPU=1)
    assert node.ask_lease(21) == [False]
    node.scheduler.return_lease(21, retire=False)
    assert node.ask_lease(22) == [False]
    assert (len(node.processes.started), node.processes.reused, node.living()) == (1, [22], [22])


def test_a_worker_of_another_make_is_not_reused() -> None:
    node = NodeParts(CPU=2)
    node.ask_lease(21, CPU=1)
    node.scheduler.return_lease(21, retire=False)
    node.ask_lease(22, CPU=2)
    assert (len(node.processes.started), node.processes.reused) == (2, [])


def test_a_retired_worker_ends() -> None:
    node = NodeParts(CPU=1)
    node.ask_lease(21)
    node.scheduler.return_lease(21, retire=True)
    assert node.processes.unneeded == [21]


def test_idle_workers_beyond_one_for_each_cpu_end() -> None:
    node = NodeParts(CPU=1)
    for worker_id in (21, 22):
        node.ask_lease(worker_id, CPU=0.5)
    for worker_id in (21, 22):
        node.scheduler.return_lease(worker_id, retire=False)
    node.timers.run()
    assert node.processes.unneeded == [21]


def test_a_worker_that_waits_lends_its_cpus_and_takes_them_back() -> None:
    node = NodeParts(11, 12, CPU=1)
    node.scheduler.blocked(node.worker(11).serial, True)
    node.scheduler.serve()
    assert node.living() == [11, 12]
    node.scheduler.blocked(node.worker(11).serial, False)
    assert node.machine.amounts() == {"CPU": -1.0}
    node.exits(12)
    assert node.machine.amounts() == {"CPU": 0.0}


def test_a_worker_of_a_group_lends_its_cpus_to_what_it_starts_outside() -> None:
    node = NodeParts(CPU=1)
    node.ask_group(31, [{"CPU": 1}])
    node.ask_actor(11, group=31)
    serial = node.worker(11).serial
    assert node.ask_lease(21, client=serial) == []
    node.scheduler.blocked(serial, True)
    node.scheduler.serve()
    assert node.living() == [11, 21]
    node.groups.release(31, lambda _: None)
    node.exits(11)
    node.scheduler.return_lease(21, retire=False)
    assert node.machine.amounts() == {"CPU": 1.0}


@pytest.mark.parametrize("inside_first", [False, True])
def test_the_cpus_that_a_worker_of_a_group_lends_are_lent_once(inside_first: bool) -> None:
    node = NodeParts(CPU=1)
    node.ask_group(31, [{"CPU": 1}])
    node.ask_actor(11, group=31)
    serial = node.worker(11).serial
    node.scheduler.blocked(serial, True)
    node.ask_lease(20)
    assert node.living() == [11], "the machine's own requests have nothing of it"

    def ask(worker_id: int) -> None:
        if worker_id == 21:
            node.ask_actor(21, client=serial, group=31)
        else:
            node.ask_lease(22, client=serial)

    first = 21 if inside_first else 22
    ask(first)
    assert node.living() == [11, first]
    ask(43 - first)
    assert node.living() == [11, first]
    node.exits(first)
    assert node.living() == [11, 43 - first]
    node.scheduler.blocked(serial, False)
    node.exits(43 - first)
    node.exits(11)
    node.groups.release(31, lambda _: None)
    node.scheduler.serve()
    assert node.living() == [20]
    assert node.machine.amounts() == {"CPU": 0.0}


def test_no_lease_is_asked_for_that_would_help_nobody() -> None:
    node = NodeParts(11, CPU=2)
    node.ask_actor(12, cpus=2)
    assert node.ask_lease(21) == [False], "it may be kept: the one that waits needs the end of an actor"
    node.timers.run()
    assert not [message for _, message in node.notices if isinstance(message, Reclaim)]
    node.exits(11)
    assert (1, Reclaim(0)) in node.notices


@pytest.mark.parametrize("waiting", [1, 40])
def test_requests_that_are_alike_are_judged_as_one(waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node = NodeParts(11, CPU=3)
    for index in range(waiting):
        node.ask_actor(12 + index, cpus=3)
    assert node.ask_lease(71) == [False]
    judged: list[int] = []
    judge = Ledger.lacking_for_all
    monkeypatch.setattr(Ledger, "lacking_for_all", lambda *asked: judged.append(1) or judge(*asked))
    assert node.ask_lease(72) == [False]
    node.timers.run()
    assert len(judged) == 4, "a turn, a lease that may be kept, and two looks for leases that are not needed"


def test_a_worker_that_waits_is_granted_one_process_for_what_it_lends() -> None:
    node = NodeParts(11, CPU=1)
    serial = node.worker(11).serial
    node.ask_actor(12)
    node.scheduler.blocked(serial, True)
    node.scheduler.serve()  # 12 has what 11 lends
    assert node.ask_lease(21, client=serial) != []
    assert node.ask_lease(22, client=serial) == []


def test_leases_are_asked_back_when_another_process_waits() -> None:
    node = NodeParts(CPU=1)
    node.ask_lease(21)
    node.ask_actor(11)
    assert (1, Reclaim(0)) in node.notices


def test_a_long_wait_is_explained() -> None:
    node = NodeParts(11, 12, CPU=1)
    for request in node.queue.all():
        request.since -= 60
    node.timers.run()
    texts = [message.text for _, message in node.notices if isinstance(message, Waits)]
    assert len(texts) == 1
    assert "Actor12 has been waiting 60 s for 1 CPU" in texts[0]
    assert "Actor11" in texts[0]


def test_a_worker_that_can_t_be_started_gives_back_what_it_was_given() -> None:
    node = NodeParts(CPU=1)
    node.processes.full = True
    (answer,) = node.ask_lease(21)
    assert isinstance(answer, WorkerDiedError)
    assert "no descriptor left" in str(answer)
    assert node.machine.amounts() == {"CPU": 1.0}
    node.processes.full = False
    node.ask_actor(11)
    assert node.living() == [11]


def test_a_removed_group_ends_its_workers_before_its_bundles_are_free() -> None:
    node = NodeParts(CPU=1)
    node.ask_group(31, [{"CPU": 1}])
    node.ask_actor(11, group=31)
    node.ask_actor(12, group=31)
    removed: list[Any] = []
    node.groups.release(31, removed.append)
    assert (node.processes.killed, removed, node.machine.amounts()) == ([11], [], {"CPU": 0.0})
    assert node.table.exits[12].reason == "its placement group was removed"
    node.exits(11)
    assert (removed, node.machine.amounts()) == ([None], {"CPU": 1.0})


def test_what_a_process_asked_for_is_given_up_with_it() -> None:
    node = NodeParts(11, CPU=1)
    node.ask_actor(12, client=node.worker(11).serial)
    node.ask_actor(13, client=node.worker(11).serial, detached=True)
    node.exits(11)
    assert node.living() == [13]
    assert "Actor11, which requested it, has ended" in node.table.exits[12].reason
    node.exits(13)


def test_what_a_process_asked_for_that_ends_in_order_goes_to_the_driver() -> None:
    node = NodeParts(11, CPU=1)
    node.ask_actor(12, client=node.worker(11).serial)
    node.supervisor.departs(node.worker(11).serial, stays=False, reason="")
    node.exits(11, code=0)
    assert node.living() == [12]
    assert node.worker(12).owner == 1
