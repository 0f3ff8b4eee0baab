"""A hundred kills of the campaign `benchmarks.kills`; docs/benchmarks.md has the command for more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kills import processes
from benchmarks.kills.parts import PARTS
from benchmarks.rows import rows_of

ROOT = Path(__file__).resolve().parents[1]
KILLS = 7
"""Number of kills of each program: more than a hundred in all."""


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_killed_at_random_moments_everything_acknowledged_is_there(part: str, tmp_path: Path) -> None:
    options = ["--kills", str(KILLS), "--parts", part, "--seed", "8", "--folder", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kills", *options],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = rows_of(done.stdout)
    assert rows["kills"].value >= KILLS
    assert rows["results there"].value == rows["results acknowledged"].value > 0


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
