"""Actors that outlive the program that made them: real programs, one after the other and side by side."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from tests.conftest import eventually
from tests.runtime.local.programs import FINDER, MAKER, Programs
from trainkit.runtime.local.system import process


def test_another_program_finds_it_and_calls_it(programs: Programs) -> None:
    pid = int(programs.make("    print(trainkit.get(counter.pid.remote()))"))
    assert process.exists(pid)
    told = programs.find(
        """
    @trainkit.remote
    def add_in_a_task(handle):
        return trainkit.get(handle.add.remote(10))

    @trainkit.remote
    def find_in_a_task():
        return trainkit.get(trainkit.get_actor("counter").add.remote(100))

    first = trainkit.get(counter.add.remote())
    second = trainkit.get(add_in_a_task.remote(counter))
    print([first, second, trainkit.get(find_in_a_task.remote()), trainkit.get(counter.pid.remote())])
    """
    )
    assert json.loads(told) == [2, 12, 112, pid]
    killed = programs.find(
        """
    trainkit.kill(counter)
    for _ in range(2):
        print_error(lambda: trainkit.get(counter.add.remote()))
    print_error(trainkit.get_actor, "counter")
    """
    )
    assert killed.count("it was killed by trainkit.kill()") == 2
    assert "no actor named 'counter'" in killed
    assert programs.nothing_is_left()


def test_everything_else_ends_with_the_program(programs: Programs) -> None:
    """`run` returns, so nobody holds the program's output open."""
    others = programs.make(
        """
    plain, named = make(num_cpus=0).remote(), make(name="named", num_cpus=0).remote()
    @trainkit.remote
    def task():
        return os.getpid()
    print(trainkit.get([plain.pid.remote(), named.pid.remote(), task.remote()]))
    """
    )
    assert eventually(lambda: not any(map(process.exists, json.loads(others))))
    assert len(programs.processes()) == 3, "the node, its template, the actor"
    programs.stop()


def test_shutdown_returns_and_the_same_program_finds_it_again(programs: Programs) -> None:
    told = programs.make(
        """
    kept = counter
    trainkit.shutdown()
    trainkit.init(num_cpus=1)
    print(trainkit.get(trainkit.get_actor("counter").add.remote()))
    print(trainkit.get(kept.add.remote()))
    trainkit.kill(kept)
    """,
        flags=("-W", "error"),
    ).split()
    assert told == ["2", "3"]
    assert programs.nothing_is_left()


def test_a_killed_program_leaves_only_what_is_detached(programs: Programs) -> None:
    program = programs.begin(
        MAKER
        + """
    plain = make(num_cpus=1).remote()
    print(trainkit.get(counter.pid.remote()), trainkit.get(plain.pid.remote()), flush=True)
    busy = plain.wait.remote()
    sys.stdin.read()
    """
    )
    assert program.stdout is not None
    detached, plain = map(int, program.stdout.readline().split())
    program.kill()
    assert eventually(lambda: not process.exists(plain))
    assert process.exists(detached)
    assert programs.find("    print(trainkit.get(counter.add.remote()))") == "2"
    programs.stop()


def test_all_ends_with_the_node(programs: Programs) -> None:
    pid = int(programs.make("    print(trainkit.get(counter.pid.remote()))"))
    (session,) = json.loads(programs.command("status", "--json"))
    program = programs.begin(
        FINDER
        + """
    print(trainkit.get(counter.add.remote()), flush=True)
    sys.stdin.readline()
    print_error(lambda: trainkit.get(counter.add.remote()))
    """
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "2\n"
    os.kill(session["node_pid"], signal.SIGKILL)
    assert eventually(lambda: not process.exists(pid))
    out, err = program.communicate("\n", timeout=60)
    assert "has ended" in out, err
    assert programs.folders(), "nobody was there to remove it"
    programs.run("import trainkit; trainkit.init(num_cpus=1)")
    assert programs.nothing_is_left()


def test_a_lost_node_takes_its_own_detached_actors_along_and_no_others(programs: Programs) -> None:
    programs.make()
    told = programs.find(
        """
    import os, signal
    from trainkit.errors import ConfigError, NodeDiedError

    class Own:
        def pid(self):
            return os.getpid()

    own = trainkit.remote(Own).options(name="own", lifetime="detached", num_cpus=0)
    first = own.remote()
    pid = trainkit.get(first.pid.remote())
    (node,) = trainkit.nodes()
    os.kill(node["pid"], signal.SIGKILL)
    try:
        while True:
            trainkit.get(first.pid.remote())
    except NodeDiedError:
        print("lost")
    trainkit.init(num_cpus=1)
    try:
        trainkit.get_actor("own")
    except ConfigError:
        print("free")
    again = own.remote()
    print(trainkit.get(again.pid.remote()) != pid)
    print(trainkit.get(trainkit.get_actor("counter").add.remote()), trainkit.get(counter.add.remote()))
    trainkit.kill(again)
    trainkit.kill(counter)
    """
    )
    assert told.split() == ["lost", "free", "True", "2", "3"]
    assert programs.nothing_is_left()


def test_what_it_starts_is_its_own(programs: Programs) -> None:
    child = int(programs.make("    print(trainkit.get(counter.child.remote()))"))
    time.sleep(0.2)
    assert process.exists(child)
    second = int(programs.find("    print(trainkit.get(counter.child.remote()))"))
    assert process.exists(child)
    assert process.exists(second)
    programs.find("    trainkit.kill(counter)")
    assert eventually(lambda: not process.exists(child) and not process.exists(second))
    assert programs.nothing_is_left()


def test_what_it_holds_stays_held_and_it_sees_its_own_folder(programs: Programs) -> None:
    programs.make()
    cwd, free = json.loads(
        programs.find("    import json; print(json.dumps(trainkit.get(counter.place.remote())))")
    )
    assert cwd == str(programs.folder)
    assert free["CPU"] == 1
    programs.stop()


def test_one_that_waits_starts_when_its_program_has_gone(programs: Programs) -> None:
    programs.run(
        """
    import time, trainkit
    trainkit.init(num_cpus=1)

    @trainkit.remote(num_cpus=1)
    class Holder:
        def ping(self): return 1

    holder = Holder.remote()
    trainkit.get(holder.ping.remote())
    Holder.options(name="counter", lifetime="detached").remote()
    """
    )
    assert programs.find("    print(trainkit.get(counter.ping.remote(), timeout=60))") == "1"
    programs.stop()


def test_the_node_ends_when_the_last_one_ends_by_itself(programs: Programs) -> None:
    pid = int(programs.make("    print(trainkit.get(counter.pid.remote()))"))
    os.kill(pid, signal.SIGTERM)
    assert programs.nothing_is_left()


def test_a_deep_folder_is_no_obstacle(tmp_path: Path) -> None:
    """A socket's path may have 107 bytes."""
    deep = tmp_path.joinpath(*["d" * 40] * 4)
    deep.mkdir(parents=True)
    programs = Programs(deep)
    try:
        programs.make()
        assert programs.find("    print(trainkit.get(counter.add.remote()))") == "2"
        programs.stop()
    finally:
        programs.end()


def test_a_handle_of_another_program_follows_one_that_is_made_anew(programs: Programs) -> None:
    programs.make(
        """
    again = make(name="phoenix", lifetime="detached", num_cpus=0, max_restarts=-1).remote()
    trainkit.get(again.add.remote())
    """
    )
    told = programs.find(
        """
    import os, signal, time
    phoenix = trainkit.get_actor("phoenix")
    def pid():
        while True:
            try:
                return trainkit.get(phoenix.pid.remote(), timeout=60)
            except trainkit.errors.ActorDiedError as error:
                assert "is being restarted" in str(error), error
    first = pid()
    assert trainkit.get(phoenix.add.remote()) == 2
    interrupted = phoenix.wait.remote()
    os.kill(first, signal.SIGKILL)
    print(first)
    print_error(lambda: trainkit.get(interrupted, timeout=60))
    second = pid()
    trainkit.kill(phoenix, no_restart=False)
    third = pid()
    assert len({first, second, third}) == 3
    assert trainkit.get(phoenix.add.remote()) == 1
    @trainkit.remote
    def kill_and_call(handle):
        os.kill(trainkit.get(handle.pid.remote()), signal.SIGKILL)
        return trainkit.get(handle.pid.options(max_task_retries=-1).remote())
    assert trainkit.get(kill_and_call.remote(phoenix), timeout=60) not in (first, second, third)
    trainkit.kill(phoenix)
    print_error(lambda: trainkit.get(phoenix.add.remote()))
    """
    )
    first, interrupted, *_, killed = told.splitlines()
    assert f"pid {first}) was killed by SIGKILL" in interrupted
    assert "it was killed by trainkit.kill()" in killed
    programs.stop()


def test_a_card_that_cannot_be_read_is_in_nobodys_way(programs: Programs) -> None:
    programs.sessions.mkdir()
    for number, text in enumerate(["", "[]", "{}", '{"node": 1}']):
        folder = programs.sessions / f"trainkit-session-{number:016x}"
        folder.mkdir()
        (folder / "node.json").write_text(text)
    assert programs.command("status") == "no session is running\n"
    programs.run("import trainkit; trainkit.init(num_cpus=1)")
    assert programs.nothing_is_left()


def test_a_detached_group_keeps_its_session(programs: Programs) -> None:
    """There is no actor beside it."""
    pid = int(
        programs.run(
            """
    import trainkit

    trainkit.init(num_cpus=1)
    group = trainkit.placement_group([{"CPU": 1}], name="kept", lifetime="detached")
    assert group.wait(60)
    from trainkit.runtime.session import engine
    print(engine().state("nodes")[0]["pid"])
    """
        )
    )
    assert process.exists(pid)
