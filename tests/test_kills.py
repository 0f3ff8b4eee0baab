"""A hundred kills of the campaign `benchmarks.kills`; docs/benchmarks.md has the command for more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from benchmarks.kills import plan, processes
from benchmarks.kills.cycle import environment_of
from benchmarks.kills.job import Job
from benchmarks.kills.parts import ASKED, KILLED
from benchmarks.kills.warm import WarmParent
from benchmarks.rows import Row, rows_of
from tests.conftest import eventually, run_python
from trainkit.runtime.local.system import process
from trainkit.settings import SESSION_MARK

ROOT = Path(__file__).resolve().parents[1]
KILLS = 6
"""Number of kills of each program: more than a hundred in all."""


COLD = ("calls", "ddp")
"""Programs that are also started as new Python processes."""
REQUESTS = 3
"""Number of requests to end of each program."""


def campaign(*options: object) -> dict[str, Row]:
    # The folder's path is short, because programs bind sockets in it.
    with tempfile.TemporaryDirectory(prefix="kills-", dir="/tmp") as folder:
        arguments = ["--seed", 8, "--folder", folder, *options]
        done = run_python("-m", "benchmarks.kills", *arguments, cwd=ROOT, timeout=580)
    return rows_of(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("part", KILLED)
def test_killed_at_random_moments_everything_acknowledged_is_there(part: str) -> None:
    rows = campaign("--kills", KILLS, "--parts", part, "--jobs", 2)
    assert rows["kills"].value >= KILLS
    assert rows["results there"].value == rows["results acknowledged"].value > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", ASKED)
def test_asked_to_end_in_any_phase_the_same_command_continues(part: str) -> None:
    rows = campaign("--signals", "--kills", REQUESTS, "--parts", part, "--jobs", 1)
    assert rows["kills"].value >= REQUESTS
    assert rows["results there"].value == rows["results acknowledged"].value


@pytest.mark.slow
@pytest.mark.parametrize("part", COLD)
def test_programs_that_start_as_new_processes(part: str) -> None:
    rows = campaign("--kills", 2, "--parts", part, "--jobs", 1, "--cold")
    assert rows["results there"].value == rows["results acknowledged"].value > 0


@pytest.mark.slow
def test_a_forked_program_is_like_a_new_one(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    job.kept.mkdir(parents=True)
    warm = WarmParent(environment_of(None), tmp_path / "log")
    try:
        environment = {
            **environment_of(None),
            processes.MARK: "forked",
            "TRAINKIT_RUNTIME_DIR": str(job.folder),
            "TMPDIR": str(job.folder),
        }
        program = warm.start(["calls", str(job.folder)], environment, job.folder)
        assert eventually(lambda: len(job.lines()) > 3)
        (node,) = processes.candidates(plan.NODE, program.pid, processes.marked("forked"))
        assert os.getsid(program.pid) == os.getpgid(program.pid) == program.pid
        assert os.getsid(node) == node
        assert psutil.Process(node).ppid() == program.pid
        assert Path(f"/proc/{program.pid}/cwd").resolve() == job.folder
        session = process.environment(node)[SESSION_MARK]
        assert Path(session).parent == job.folder
        assert node in process.marked(session)
        assert program.poll() is None
        os.kill(program.pid, signal.SIGKILL)
        assert program.wait() == -signal.SIGKILL
        assert eventually(lambda: not processes.marked("forked"))
        assert program.poll() == program.returncode == -signal.SIGKILL
    finally:
        warm.end()


def test_what_a_program_leaves_behind_is_found(tmp_path: Path) -> None:
    (tmp_path / "scratch").touch()
    (tmp_path / "trainkit-root").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "trainkit-session-1"))
        listener.listen()
        environment = {**os.environ, processes.MARK: "mine"}
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as left:
            assert left.stdout is not None
            left.stdout.readline()
            (name,) = {each.name for each in processes.marked("mine").values()}
            found = processes.leftovers(tmp_path, "mine", [left.pid], [])
            left.send_signal(signal.SIGKILL)
    assert found == [
        "file scratch",
        "file trainkit-session-1",
        f"process {name}",
        f"socket {tmp_path / 'trainkit-session-1'}",
    ]
