"""The shipped suites as other packages run them: the page's pass, and what breaks a promise fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import BLOCK, CONFORMANCE, ROOT

SEARCHER, SCHEDULER, STRATEGY = BLOCK.findall(CONFORMANCE.read_text())
PLUGIN = (
    re.sub(r"    covers = .*\n", "", SEARCHER)
    .replace("lab_climb", "lab_plugin")
    .replace("ClimbSearch", "DrawSearch")
)
PAGES = {"add-a-searcher": "lab_climb", "add-a-scheduler": "lab_limits", "add-a-plugin": "lab_plugin"}
"""Module that each page writes."""


def run(folder: Path, test_file: str, *arguments: str) -> str:
    """Run a test file of a package that has the classes of the pages; return what pytest prints."""
    for page, module in PAGES.items():
        code = BLOCK.search((ROOT / "docs" / "extending" / f"{page}.md").read_text())
        assert code is not None
        (folder / f"{module}.py").write_text(code[1])
    (folder / "test_mine.py").write_text(test_file)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("test_file", [SEARCHER, SCHEDULER, PLUGIN], ids=["searcher", "scheduler", "plugin"])
def test_what_the_pages_add_passes(tmp_path: Path, test_file: str):
    told = run(tmp_path, test_file)
    assert "passed" in told and "failed" not in told, told


def test_a_strategy_passes(tmp_path: Path):
    told = run(tmp_path, STRATEGY, "-k", "float64")
    assert "1 passed" in told, told


def test_a_searcher_that_draws_by_chance_fails(tmp_path: Path):
    by_chance = (
        SEARCHER.replace("ClimbSearch(**arguments)", "ByChance(**arguments)")
        + """

import random


class ByChance(ClimbSearch):
    def suggest(self, trial_id):
        self.seed = random.randrange(2**32)
        return super().suggest(trial_id)
"""
    )
    told = run(tmp_path, by_chance)
    assert "FAILED test_mine.py::TestClimbSearch::test_one_seed_gives_one_history" in told
    assert "search.configs" in told or "Search(row" in told, "pytest explains the suite's own assertions"


def test_a_scheduler_that_decides_by_the_clock_fails(tmp_path: Path):
    by_clock = (
        SCHEDULER.replace("LimitScheduler(0.2, grace_period=2)", "ByClock(0.2, grace_period=2)")
        + """

import time


class ByClock(LimitScheduler):
    def decide(self, trial_id, at, score):
        self.limit = 0.2 + time.perf_counter_ns() % 3 / 10
        return super().decide(trial_id, at, score)
"""
    )
    told = run(tmp_path, by_clock)
    assert "FAILED test_mine.py::TestLimitScheduler::test_the_same_seed_gives_the_same_log" in told
