"""Sessions side by side: names that all of a user's programs share, and who may come in at whose door."""

from __future__ import annotations

import json
import os
import signal
import socket

import pytest

from tests.conftest import run_python
from tests.runtime.local.programs import MAKER, Programs


def test_a_name_is_one_for_all_programs_of_a_user(programs: Programs) -> None:
    programs.make()
    told = programs.make(
        again=True,
        script="""
    print(trainkit.get(counter.add.remote()))
    print_error(make(name="counter", lifetime="detached").remote)
    mine = make(name="counter").remote()
    print(trainkit.get(trainkit.get_actor("counter").add.remote()))
    """,
    )
    assert told.splitlines()[0] == "3"
    assert "'counter' is taken in the namespace 'default' by a detached actor of session" in told
    assert told.splitlines()[-1] == "1", "its own comes first"
    programs.stop()


def test_only_detached_actors_are_for_others(programs: Programs) -> None:
    owner = programs.begin(
        MAKER + "    solo = make(name='solo').remote(); print(flush=True); sys.stdin.readline()"
    )
    assert owner.stdout is not None
    owner.stdout.readline()
    told = programs.find(
        """
    for name in ("solo", "kounter"):
        print_error(trainkit.get_actor, name)
    trainkit.remote(type("Other", (), {})).options(name="solo").remote()
    """
    ).splitlines()
    assert f"(pid {owner.pid}), whose actor of that name is not detached" in told[0]
    assert "Did you mean 'counter'?" in told[1]
    owner.communicate("\n", timeout=60)
    programs.stop()


def test_a_session_that_is_stopped_does_not_hold_others_up(programs: Programs) -> None:
    programs.make()
    (session,) = json.loads(programs.command("status", "--json"))
    os.kill(session["node_pid"], signal.SIGSTOP)
    told = programs.run(
        """
    import trainkit
    trainkit.init(num_cpus=1)
    try:
        trainkit.get_actor("counter")
    except ValueError as error:
        print(error)
    """
    )
    assert "which did not answer" in told
    assert "is it stopped?" in told
    os.kill(session["node_pid"], signal.SIGCONT)
    assert programs.find("    print(trainkit.get(counter.add.remote()))") == "2"
    programs.stop()


def test_programs_that_start_at_once_agree_on_one(programs: Programs) -> None:
    script = MAKER.replace('lifetime="detached"', 'lifetime="detached", get_if_exists=True')
    running = [programs.begin(script + "    print(trainkit.get(counter.pid.remote()))") for _ in range(3)]
    told = [program.communicate(timeout=60) for program in running]
    assert len({out for out, _ in told}) == 1, told
    programs.stop()


def test_visitors_that_may_not_come_in_do_no_harm(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.make()
    (folder,) = programs.folders()
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.chdir(folder)
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect("node.sock")
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
    stranger.close()
    if os.getuid() == 0:  # another user finds the way only if this one opens the folder for all
        folder.chmod(0o755)
        (folder / "node.sock").chmod(0o777)
        knock = (
            "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
            "s.settimeout(60); s.connect('node.sock'); print(s.recv(1))"
        )
        done = run_python("-c", knock, cwd=folder)
        assert done.stdout == "b''\n", done.stderr
    assert programs.find("    print(trainkit.get(counter.add.remote()))") == "2"
    programs.stop()
