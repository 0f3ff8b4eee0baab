"""`trainkit status`, `why` and `stop`, as a user types them."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from subprocess import Popen

import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.cli.main import main
from trainkit.runtime.local.system import process
from trainkit.tune.display import duration

PROGRAM = """
    import os, sys, subprocess, trainkit

    class Model:
        def __init__(self):
            # a session of its own, and nothing in its environment to be known by
            self.child = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})

        def pids(self):
            return os.getpid(), self.child.pid

    trainkit.init(num_cpus=2, resources={"licence": 1})
    make = trainkit.remote(Model).options
    model = make(name="model", num_cpus=1, lifetime=LIFETIME).remote()
    print(*trainkit.get(model.pids.remote()), flush=True)
    waiting = make(name="patient", num_cpus=2).remote()
    sys.stdin.readline()
"""


def begin(programs: Programs, lifetime: str = "None") -> tuple[Popen[str], list[int]]:
    """A program with an actor that runs, and one that waits; and the pids of the first and its child."""
    program = programs.begin(PROGRAM.replace("LIFETIME", lifetime))
    assert program.stdout is not None
    pids = [int(word) for word in program.stdout.readline().split()]
    assert len(pids) == 2, program.communicate()
    return program, pids


def finish(program: Popen[str]) -> None:
    program.communicate("\n", timeout=60)


def ended(pids: list[int]) -> bool:
    return eventually(lambda: not any(map(process.exists, pids)))


@pytest.mark.external
def test_nothing_runs(programs: Programs) -> None:
    assert programs.command("status") == "no session is running\n"
    assert programs.command("status", "--json") == "[]\n"
    assert programs.command("stop", "--all", "--yes") == "no session is running\n"
    assert "Nothing in your sessions has that name" in programs.command("why", "x", code=1)
    assert "no session has an id" in programs.command("stop", "--session", "x", code=1)


@pytest.mark.external
def test_status_shows_what_runs_and_what_waits(programs: Programs) -> None:
    before = time.monotonic()
    program, pids = begin(programs)
    assert eventually(lambda: "waits: patient" in programs.command("status"))
    shown = programs.command("status")
    assert re.match(rf"program1.py in {programs.folder}, session \w+: driver pid {program.pid},", shown)
    assert "1 of 2 CPU free" in shown
    assert "1 of 1 licence free" in shown
    assert f"{pids[0]}" in shown
    assert "1 CPU" in shown
    assert "waiting" in shown
    (session,) = json.loads(programs.command("status", "--json"))
    assert session["driver_pid"] == program.pid
    assert shown.startswith(f"{session['program']}, session {session['session_id']}: ")
    assert 0 <= session["age_s"] <= time.monotonic() - before
    actors = {actor["name"]: actor for actor in session["actors"]}
    assert actors["model"]["state"] == "ALIVE"
    assert actors["model"]["pid"] == pids[0]
    assert actors["patient"]["state"] == "PENDING"
    assert [request["id"] for request in session["requests"]] == [actors["patient"]["actor_id"]]
    finish(program)
    assert programs.nothing_is_left()


@pytest.mark.external
def test_why_tells_what_lacks_and_who_holds_it(programs: Programs) -> None:
    program, pids = begin(programs)
    assert eventually(lambda: "waits: patient" in programs.command("status"))
    told = programs.command("why", "patient")
    assert "for 2 CPU" in told
    assert "CPU missing" in told
    assert f"pid {pids[0]}" in told
    assert "free: 1 CPU" in told
    (session,) = json.loads(programs.command("status", "--json"))
    assert programs.command("why", session["requests"][0]["id"]).splitlines()[1:] == told.splitlines()[1:]
    assert f"model (pid {pids[0]}) waits for nothing: it is alive" in programs.command("why", "model")
    finish(program)
    assert programs.nothing_is_left()


@pytest.mark.external
def test_a_program_that_has_gone_is_shown_so(programs: Programs) -> None:
    program, pids = begin(programs, "'detached'")
    finish(program)
    assert eventually(lambda: "driver gone" in programs.command("status"))
    assert "model (detached)" in programs.command("status")
    assert process.exists(pids[0])
    assert "4 processes in all" in programs.command("stop", "--all", "--yes"), (
        "node, template, actor, its child"
    )
    assert ended(pids)
    assert programs.nothing_is_left()


@pytest.mark.external
def test_stop_ends_one_session_of_several(programs: Programs) -> None:
    first, first_pids = begin(programs, "'detached'")
    (session,) = json.loads(programs.command("status", "--json"))
    second, second_pids = begin(programs)
    listed = [found["session_id"] for found in json.loads(programs.command("status", "--json"))]
    assert listed[1] == session["session_id"], "the newest first"
    assert "several sessions" in programs.command("stop", "--session", "", code=1)
    assert session["session_id"] in programs.command("stop", "--session", session["session_id"][:8])
    assert ended(first_pids)
    assert process.exists(second_pids[0])
    finish(first)
    finish(second)
    assert programs.nothing_is_left()


@pytest.mark.external
def test_stop_ends_a_node_that_does_not_answer(programs: Programs) -> None:
    program, pids = begin(programs)
    (session,) = json.loads(programs.command("status", "--json"))
    os.kill(session["node_pid"], signal.SIGSTOP)
    assert "killed" in programs.command("stop", "--all", "--yes")
    assert ended(pids)
    finish(program)
    assert programs.nothing_is_left()


@pytest.mark.external
def test_stop_cleans_up_behind_a_killed_node(programs: Programs) -> None:
    script = """
    import os, subprocess, sys, trainkit

    @trainkit.remote
    class Parent:
        def spawn(self):
            return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

    trainkit.init(num_cpus=1)
    parent = Parent.options(name="parent", lifetime="detached").remote()
    print(trainkit.get(parent.spawn.remote()))
    """
    orphan = int(programs.run(script))
    (session,) = json.loads(programs.command("status", "--json"))
    os.kill(session["node_pid"], signal.SIGKILL)
    assert eventually(lambda: not process.exists(session["node_pid"]))
    assert process.exists(orphan)
    assert programs.command("status") == "no session is running\n"
    assert "whose node had died, was cleaned up" in programs.command("stop", "--all", "--yes")
    assert ended([orphan])
    assert programs.nothing_is_left()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59, "59 s"),
        (5400, "1 h 30 min"),
        (9e6, "104 d 4 h"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_version_and_without_a_command_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"trainkit {trainkit.__version__}\n"
    for words in ([], ["help"]):
        assert main(words) == 0
        shown = capsys.readouterr().out
        assert shown.startswith("usage: trainkit") and "dashboard" in shown
