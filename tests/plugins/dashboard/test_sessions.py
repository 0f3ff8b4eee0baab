"""The dashboard's view of sessions: processes, what waits, logs, and the stacks of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually
from tests.plugins.dashboard.conftest import Asker, served, told
from trainkit.runtime.local.system import process
from trainkit.util.metrics import Gauge


@trainkit.remote
class Waiter:
    """Actor that waits in a function whose name its stack has."""

    def pid(self) -> int:
        return os.getpid()

    def hold(self, size: int) -> None:
        self.held = os.urandom(1000) * (size // 1000)

    def wait_in_vain(self, path: str) -> None:
        import time

        print("it waits for", path)
        while not os.path.exists(path):
            time.sleep(0.01)


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[int]:
    """The pid of an actor that waits."""
    actor = Waiter.options(name="waiter", num_cpus=1).remote()
    pid = trainkit.get(actor.pid.remote())
    call = actor.wait_in_vain.remote(str(tmp_path / "go"))
    yield pid
    (tmp_path / "go").touch()
    trainkit.get(call)
    trainkit.kill(actor)


def own(ask: Asker) -> str:
    """Return the path of this process's session."""
    (one,) = [each for each in ask.get("/sessions") if each["driver_pid"] == os.getpid()]
    assert one["age_s"] >= 0 and one["problem"] == "" and one["program"].endswith(f" in {os.getcwd()}")
    return f"/sessions/{one['session_id']}"


def test_what_runs_in_a_session(ask: Asker, waiting: int) -> None:
    path = own(ask)
    session = ask.get(path)
    workers = {each["pid"]: each for each in session["workers"]}
    assert (workers[waiting]["kind"], workers[os.getpid()]["kind"]) == ("WORKER", "DRIVER")
    assert workers[session["node_pid"]]["kind"] == "NODE"
    assert workers[waiting]["threads"] >= 1
    assert workers[waiting]["rss_bytes"] > workers[waiting]["own_bytes"] > 0
    (actor,) = [each for each in session["actors"] if each["pid"] == waiting]
    assert actor["name"] == "waiter" and actor["state"] == "ALIVE"
    assert isinstance(ask.get(path)["workers"][1]["cpu_percent"], float)  # since the look before


def test_calls_of_an_actor_in_flight(ask: Asker, waiting: int, tmp_path: Path) -> None:
    path = own(ask)

    def calls(**wanted: Any) -> int | None:
        (found,) = [
            each["calls"]
            for each in ask.get(path)["actors"]
            if wanted.items() <= each.items() and each["state"] == "ALIVE"
        ]
        return found  # type: ignore[no-any-return]

    assert calls(name="waiter") == 1  # that of the fixture
    actor = trainkit.get_actor("waiter")
    refs = [actor.pid.remote() for _ in range(3)]
    several = actor.pid.options(num_returns=2).remote()
    assert calls(name="waiter") == 5  # one with two results is one
    (tmp_path / "go").touch()
    # Answers are counted though nobody has waited for them.
    assert eventually(lambda: calls(name="waiter") == 0, 60)
    assert set(trainkit.get(refs)) == {waiting}
    del several

    # Who makes an actor's calls knows them: those of a worker are not the program's.
    @trainkit.remote
    class Owner:
        def make(self) -> str:
            self.owned = Waiter.options(num_cpus=0).remote()
            trainkit.get(self.owned.pid.remote())
            return trainkit.get_runtime_context().get_actor_id()  # type: ignore[no-any-return]

    owner = Owner.options(num_cpus=0).remote()
    assert calls(actor_id=trainkit.get(owner.make.remote())) == 0
    assert [each["calls"] for each in ask.get(path)["actors"] if each["class_name"] == "Waiter"].count(
        None
    ) >= 1
    trainkit.kill(owner)


def test_memory_of_a_process_is_told_apart(ask: Asker) -> None:
    actor = Waiter.remote()
    pid = trainkit.get(actor.pid.remote())
    trainkit.get(actor.hold.remote(50_000_000))
    shared = trainkit.put(b"x" * 30_000_000)
    session = ask.get(own(ask))
    (held,) = [each for each in session["workers"] if each["pid"] == pid]
    assert held["own_bytes"] > 50_000_000 > held["shared_bytes"]
    assert any(each["size_bytes"] >= 30_000_000 for each in session["objects"])
    del shared
    trainkit.kill(actor)


def test_what_waits_and_why(ask: Asker, waiting: int) -> None:
    group = trainkit.placement_group([{"CPU": 2}], name="large")
    try:
        assert eventually(lambda: ask.get(own(ask))["requests"] != [], 60)
        session = ask.get(own(ask))
        (request,) = session["requests"]
        assert request["asked"] == {"CPU": 2} and request["reasons"]
        (found,) = session["placement_groups"]
        assert found["name"] == "large" and found["state"] == "PENDING"
    finally:
        trainkit.remove_placement_group(group)


def test_logs_of_a_session(ask: Asker, waiting: int) -> None:
    path = own(ask)

    def lines(query: str) -> list[str]:
        return [line for each in ask.get(f"{path}/logs{query}")["files"] for line in each["lines"]]

    assert eventually(lambda: any("it waits for" in line for line in lines("?search=IT+WAITS")), 60)
    assert lines("?search=no+such+line+at+all") == []
    (log,) = [name for name in ask.get(path)["logs"] if str(waiting) in name and name.endswith(".out")]
    assert any("it waits for" in line for line in lines(f"?worker={log}"))
    for name in ("none", "..%2Fnode.json", "%2Fetc%2Fpasswd"):
        ask.get(f"{path}/logs?worker={name}", 404)


def test_metrics_of_a_session(ask: Asker, waiting: int) -> None:
    path = f"/api{own(ask)}/metrics"
    Gauge("of_dashboard", "A \u00b5-level").set(4)
    reply = ask("GET", path)
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "of_dashboard 4.0" in reply.body.decode()
    assert ask("GET", path, headers={}).status in (401, 403)
    assert ask("GET", "/api/sessions/none/metrics").status == 404


def test_stacks_of_a_worker(ask: Asker, waiting: int) -> None:
    path = own(ask)

    def stacks() -> Any:
        return ask.checked("POST", f"{path}/workers/{waiting}/stacks")

    assert eventually(lambda: "wait_in_vain" in stacks()["text"], 60)
    with served(ask.server.root, read_only=True) as reader:
        assert "wait_in_vain" in reader.checked("POST", f"{path}/workers/{waiting}/stacks")["text"]
    again = stacks()
    assert again["pid"] == waiting and again["text"].count("Current thread") == 1
    # The driver and the node offer none, and others are not of the session: none of them is signalled.
    for other in (os.getpid(), os.getppid(), 1, "x", "%C2%B2", "-1", 9**9):
        assert ask("POST", f"/api{path}/workers/{other}/stacks").status == 404
    assert psutil.pid_exists(waiting)


def test_a_process_that_offers_no_stacks_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert process.stacks(other.pid) is None
        other.communicate(b"\n")
    assert other.returncode == 0
    assert process.stacks(other.pid) is None and process.stacks(1) is None
    assert signal.getsignal(process.STACKS) is signal.SIG_DFL  # the user's own program is as it was


def test_the_stream_tells_of_sessions(ask: Asker) -> None:
    (seen,) = told(ask, "sessions=1", lambda heard: len(heard) == 1)
    assert seen["changed"] == ["sessions"]
    assert os.getpid() in [each["driver_pid"] for each in seen["sessions"]]
    ask.get("/sessions/none", 404)
