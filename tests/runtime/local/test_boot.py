"""The node's process that a program begins before it can tell its settings."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.conftest import eventually
from tests.runtime.local.programs import Programs

BEGINS = """
    import os, signal
    import trainkit
    from trainkit.runtime.local.system import boot

    def answer():
        return trainkit.get(trainkit.remote(os.environ.get).remote("TRAINKIT_TEST_COLOUR"))

    ahead = boot.begun()
    ahead.__enter__()
    begun = boot._begun
"""


def printed(programs: Programs, script: str) -> list[str]:
    """Return the words that a program prints, which begins a node's process first of all."""
    programs.sessions.mkdir()
    program = programs.begin(f"{BEGINS}\n{script}")
    out, err = program.communicate(timeout=300)
    assert program.returncode == 0, err
    assert not err
    return out.split()


def test_the_session_takes_the_process_that_was_begun(programs: Programs) -> None:
    script = """
    trainkit.init(num_cpus=1)
    answer()
    print(os.path.basename(begun.mark), *os.listdir(os.path.dirname(begun.mark)), begun.child.poll())
    """
    begun, used, ended = printed(programs, script)
    assert (begun, ended) == (used, "None")
    assert programs.nothing_is_left()


def test_a_process_that_is_told_nothing_ends_with_its_program(programs: Programs) -> None:
    (pid,) = printed(programs, "    print(begun.child.pid)")
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert programs.nothing_is_left()


def test_a_process_that_nobody_takes_is_ended(programs: Programs) -> None:
    script = """
    ahead.__exit__(None, None, None)
    print(begun.child.returncode, boot._begun)
    """
    assert printed(programs, script) == ["-9", "None"]


def test_a_process_with_a_former_environment_is_replaced(programs: Programs) -> None:
    script = """
    os.environ["TRAINKIT_TEST_COLOUR"] = "green"
    trainkit.init(num_cpus=1)
    print(answer(), begun.child.poll(), os.path.exists(begun.mark))
    """
    assert printed(programs, script) == ["green", "-9", "False"]
    assert programs.nothing_is_left()


def test_a_fork_leaves_the_process_to_the_program_that_began_it(programs: Programs) -> None:
    script = """
    pid = os.fork()
    if not pid:
        other = boot.take()
        other.end()
        os._exit(other.child.pid == begun.child.pid)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    trainkit.init(num_cpus=1)
    print(answer(), os.path.exists(begun.mark), begun.child.poll())
    """
    assert printed(programs, script) == ["0", "None", "True", "None"]
    assert programs.nothing_is_left()


def test_a_process_that_outlives_its_program_before_the_session_leaves_nothing(programs: Programs) -> None:
    script = """
    from pathlib import Path
    from trainkit.runtime import signals
    from trainkit.runtime.local.client import launch
    from trainkit.runtime.specs import SessionSpec

    os.kill(begun.child.pid, signal.SIGSTOP)
    node = launch.start_node(SessionSpec(totals={"CPU": 1.0}, namespace="default"))
    folder = Path(node.mark)
    folder.mkdir()
    signals.tell_session(folder)
    print(begun.child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    programs.sessions.mkdir()
    program = programs.begin(f"{BEGINS}\n{script}")
    assert program.stdout is not None
    pid = int(program.stdout.readline())
    assert program.wait(timeout=60) == -signal.SIGKILL
    os.kill(pid, signal.SIGCONT)
    assert not program.stdout.read()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert programs.nothing_is_left()
