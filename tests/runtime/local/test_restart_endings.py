"""How actors end that can be made anew, and that nothing of them is left."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import trainkit
from tests.conftest import eventually, session_fixture
from tests.runtime.local.restartable import Borrower, Doomed, Leaver, born
from tests.runtime.local.restarting import kill, pid_of, restartable
from trainkit.errors import ActorDiedError
from trainkit.runtime.local.system import process

session = session_fixture("function", num_cpus=4)


def test_kill_ends_it_for_good_unless_told_otherwise() -> None:
    actor = restartable(max_task_retries=-1)
    old = pid_of(actor)
    trainkit.kill(actor, no_restart=False)
    assert not process.exists(old)
    new = pid_of(actor)
    assert new != old
    waiting = actor.sleep.remote(60)
    trainkit.kill(actor)
    with pytest.raises(ActorDiedError, match=r"killed by trainkit.kill\(\)$"):
        trainkit.get(waiting, timeout=60)
    with pytest.raises(ActorDiedError, match=r"killed by trainkit.kill\(\)$"):
        pid_of(actor)


def test_kill_while_it_is_made_anew(tmp_path: Path) -> None:
    actor = restartable(tmp_path / "log")
    kill(actor)
    trainkit.kill(actor)
    with pytest.raises(ActorDiedError):
        pid_of(actor)
    assert eventually(lambda: not any(map(process.exists, born(tmp_path / "log"))))


def test_who_asks_for_one_that_ends_before_the_node_knows_is_told() -> None:
    owing, waiting = restartable(), restartable()
    pids = [pid_of(actor) for actor in (owing, waiting)]
    leaver = trainkit.remote(max_restarts=1)(Leaver).remote()
    node = trainkit.util.state.list_nodes()[0]["pid"]
    with pytest.raises(ActorDiedError, match="exit_actor"):
        trainkit.get(leaver.leave.remote(owing, waiting, node), timeout=60)
    assert [pid_of(actor) for actor in (owing, waiting)] == pids


def test_one_that_dies_in_its_constructor_ends_after_its_restarts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = trainkit.remote(max_restarts=3, max_task_retries=-1)(Doomed).remote(log, 0)
    with pytest.raises(ActorDiedError, match="exit code 9"):
        pid_of(actor)
    assert len(log.read_text().split()) == 4
    later = tmp_path / "later"
    actor = trainkit.remote(max_restarts=1)(Doomed).remote(later, 1)
    kill(actor)
    with pytest.raises(ActorDiedError, match=r"exit code 9|SIGKILL"):
        pid_of(actor)
    assert eventually(lambda: len(later.read_text().split()) == 2)


def test_dropping_all_handles_during_a_restart_ends_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    actor = restartable(log)
    kill(actor)
    del actor
    assert eventually(lambda: not any(map(process.exists, born(log))))
    assert len(born(log)) <= 2
    assert eventually(lambda: trainkit.available_resources().get("CPU") == 4)


def test_the_owners_death_ends_it_for_good(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = trainkit.remote(Borrower).remote()
    owned = trainkit.get(owner.start.remote(log), timeout=60)
    kill(owned)
    trainkit.kill(owner)
    assert eventually(lambda: not any(map(process.exists, born(log))))
    time.sleep(0.3)
    assert not any(map(process.exists, born(log)))
