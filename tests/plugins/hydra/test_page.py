"""The commands of docs/hydra.md, run on the programs of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.pages import BLOCK, ROOT

PAGE = (ROOT / "docs" / "hydra.md").read_text()
NAMES = re.findall(r"`(\w+\.py)`:\n\n```python", PAGE)
COMMANDS = re.findall(r"^\$ python (.+)$", PAGE, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_runs(command: str, tmp_path: Path):
    for name, code in zip(NAMES, BLOCK.findall(PAGE), strict=True):
        head = "" if name == "train.py" else BLOCK.findall(PAGE)[0].partition("@hydra.main")[0]
        (tmp_path / name).write_text(head + code)
    done = subprocess.run(
        [sys.executable, *shlex.split(command)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (saved,) = tmp_path.glob("*/multirun.yaml")
    count = OmegaConf.load(saved).hydra.sweeper.get("num_samples") or 4
    assert sorted(path.name for path in saved.parent.glob("[0-9]*")) == [str(job) for job in range(count)]
