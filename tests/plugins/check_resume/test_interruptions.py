"""A check that is interrupted leaves no process, no file and no folder behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import eventually, is_running

ENDLESS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.path.join(sys.argv[1], f"{os.getpid()}-{child.pid}"), "w"):
    time.sleep(600)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_check_leaves_nothing_behind(number: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    temporary, started = tmp_path / "temporary", tmp_path / "started"
    temporary.mkdir()
    started.mkdir()
    command = [sys.executable, "-m", "trainkit", "check-resume", str(tmp_path / "train.py"), str(started)]
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"TMPDIR": str(temporary)}, stderr=subprocess.PIPE
    ) as check:
        assert eventually(lambda: len(list(started.iterdir())) == 2)
        check.send_signal(number)
        assert check.wait() == code
    for pid in [pid for file in started.iterdir() for pid in file.name.split("-")]:
        assert not is_running(int(pid))
    assert list(temporary.iterdir()) == []
