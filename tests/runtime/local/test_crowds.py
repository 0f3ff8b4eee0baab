"""More than there is room for: many actors, many calls, and a driver that stands still meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually, session_processes
from tests.runtime.local.victims import Victim
from trainkit.errors import InfeasibleError


@pytest.fixture(autouse=True)
def session() -> Iterator[None]:
    before = set(session_processes())
    trainkit.init(num_cpus=2)
    yield
    trainkit.shutdown()
    assert eventually(lambda: not set(session_processes()) - before)


def states() -> list[str]:
    return [row["state"] for row in trainkit.list_actors()]


def test_500_actors_asked_on_2_cpus_all_get_their_turn() -> None:
    class Member:
        def __init__(self, number: int) -> None:
            self.number = number

        def who(self) -> tuple[int, int]:
            return self.number, os.getpid()

    remote = trainkit.remote(num_cpus=1)(Member)
    crowd = [remote.remote(number) for number in range(500)]
    calls = [member.who.remote() for member in crowd]
    assert trainkit.get(calls[1], timeout=60)[0] == 1
    # A process may answer before the node has heard of its number.
    assert eventually(lambda: (states().count("ALIVE"), states().count("PENDING")) == (2, 498))
    assert trainkit.wait([calls[2]], timeout=0.2)[0] == [], "the first two hold both CPUs"
    pids, most = set(), 0
    crowd.reverse()
    calls.reverse()
    for number in range(500):
        found, pid = trainkit.get(calls.pop(), timeout=60)
        assert found == number, "in the order in which they were asked for"
        pids.add(pid)
        if number % 50 == 0:
            most = max(most, states().count("ALIVE"))
        crowd.pop()
    assert most <= 2
    assert len(pids) == 500
    assert eventually(lambda: trainkit.available_resources().get("CPU") == 2)
    assert states() == ["DEAD"] * 500


def test_a_crowd_of_actors_that_ask_for_nothing_lives_at_once() -> None:
    crowd = [trainkit.remote(Victim).remote() for _ in range(60)]
    assert len(set(trainkit.get([member.pid.remote() for member in crowd], timeout=60))) == 60
    assert eventually(lambda: states().count("ALIVE") == 60)
    for member in crowd[::2]:
        trainkit.kill(member)
    assert states().count("ALIVE") == 30
    assert trainkit.get([member.same.remote(7) for member in crowd[1::2]], timeout=60) == [7] * 30


def test_100_000_unread_calls_to_one_actor_are_all_answered() -> None:
    actor = trainkit.remote(Victim).remote()
    refs = [actor.same.remote(number) for number in range(100_000)]
    assert trainkit.get(refs, timeout=120) == list(range(100_000))


def test_what_can_never_be_is_refused_at_once_though_many_wait() -> None:
    holder = trainkit.remote(Victim).options(num_cpus=2).remote()
    trainkit.get(holder.pid.remote())
    groups = [trainkit.placement_group([{"CPU": 1}] * 2) for _ in range(50)]
    with pytest.raises(InfeasibleError, match="not enough CPU"):
        trainkit.placement_group([{"CPU": 1}] * 3)
    with pytest.raises(InfeasibleError, match="2 CPU can never be met in this placement group"):
        trainkit.remote(Victim).options(num_cpus=2, placement_group=groups[0])
    with pytest.raises(InfeasibleError, match="bundle 1 not large enough"):
        trainkit.remote(Victim).options(num_gpus=1, placement_group=groups[0], placement_group_bundle_index=1)
    with pytest.raises(InfeasibleError, match="STRICT_SPREAD"):
        trainkit.placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    del holder
    for group in groups:  # each in its turn, as the one before it is removed
        assert group.wait(60)
        trainkit.remove_placement_group(group)
    assert trainkit.available_resources()["CPU"] == 2


def test_a_group_of_many_members_is_removed_with_all_that_wait_for_it() -> None:
    group = trainkit.placement_group([{"CPU": 1}] * 2)
    members = [
        trainkit.remote(Victim).options(num_cpus=1, placement_group=group).remote() for _ in range(100)
    ]
    assert trainkit.get(members[1].same.remote(1), timeout=60) == 1
    calls: list[Any] = [member.same.remote(1) for member in members]
    trainkit.remove_placement_group(group)
    assert trainkit.available_resources()["CPU"] == 2
    failed = 0
    for call in calls:
        try:
            trainkit.get(call, timeout=60)
        except trainkit.errors.ActorDiedError as error:
            assert "its placement group was removed" in str(error)
            failed += 1
    assert failed >= 98, "the two that ran may have answered before"


STOPPED = """
import sys, trainkit
from tests.runtime.local.printing_caller import PrintingCaller

trainkit.init(num_cpus=2)
caller = trainkit.remote(PrintingCaller).remote()
ref = caller.chat.remote(int(sys.argv[1]), sys.argv[2])
refs = [caller.same.remote(number) for number in range(1000)]
answers = f"answers {trainkit.get(ref)} {sum(trainkit.get(refs))}\\n"
sys.stdout.write(answers)  # in one piece: what the worker printed is written beside it
sys.stdout.flush()
sys.stdin.read()  # what was printed may still be on its way
trainkit.shutdown()
"""


@pytest.mark.external
def test_a_driver_that_is_stopped_and_continued_misses_nothing(tmp_path: Path) -> None:
    count = 3000  # lines of 1 KB: far more than the pipes and sockets between can hold
    driver = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(count), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    impatient = threading.Timer(60, driver.kill)
    impatient.start()
    try:
        assert eventually((tmp_path / "begun").exists)
        driver.send_signal(signal.SIGSTOP)
        assert eventually(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED)
        (tmp_path / "go").touch()
        # The worker goes on, prints and calls, though nobody reads what it says.
        assert eventually((tmp_path / "done").exists)
        driver.send_signal(signal.SIGCONT)
        told: list[int] = []
        answers = ""
        while len(told) < count or not answers:
            line = driver.stdout.readline()
            assert line, f"the driver ended after {len(told)} lines: {answers}"
            if line.startswith("answers"):
                answers = line.strip()
            else:
                told.append(int(line.split("line ")[1].split()[0]))
        assert told == list(range(count)), "every line, in order"
        assert answers == f"answers {count} {sum(range(1000))}"
        driver.stdin.close()
        assert driver.wait(60) == 0
    finally:
        impatient.cancel()
        driver.kill()
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
