"""The scheduler's decisions, without a process: turns, idle workers, lending, groups, and giving up."""

from __future__ import annotations

import pytest

from tests.runtime.local.node.parts import NodeParts
from trainkit.runtime.local.wire.messages import Reclaim
from trainkit.runtime.placement import Ledger


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
