"""Every benchmark that is a command runs in its small form; its figures are not looked at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from benchmarks.interleaved import Served, output_of

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "decisions": ["--seeds", "1"],
    "pbt_digits": ["--small"],
    "runtime": ["--rounds", "1", "--scale", "0.002"],
    "simulator": ["--small", "--only", "toy", "scaling", "cost", "large"],
    "soak": ["--minutes", "0.03"],
    "training": ["--small"],
}
ELSEWHERE = {
    "decision_cost": "tune/test_search_benchmarks.py",
    "gpu": "train/test_benchmarks.py",
    "search": "tune/test_search_benchmarks.py",
    "sklearn_searches": "scikit/test_searches_benchmark.py",
    "tuning": "tune/test_speed.py",
}
PARTS = {"runtime_work", "sklearn_work", "training_torchrun", "training_trainer", "tuning_work"}
"""Programs that a command starts."""


def test_every_command_has_a_small_form_that_is_run():
    found = {
        path.stem if path.stem != "__main__" else path.parent.name
        for path in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks").glob("*/__main__.py")]
        if '__name__ == "__main__"' in path.read_text()
    }
    assert found == {*SMALL, *ELSEWHERE, *PARTS}
    for name, file in ELSEWHERE.items():
        assert re.search(rf'"benchmarks\.{name}", *"--(small|quick|device)', _text(file)), name


def _text(file: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / "tests" / file).read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_it_runs(name: str, tmp_path: Path):
    pytest.importorskip("ray" if name == "decisions" else "torch")
    more = ["--folder", str(tmp_path)] if name == "simulator" else []
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *SMALL[name], *more],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout


def test_no_benchmark_hides_a_package():
    # torchrun puts the folder of the file that it is given before all others.
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__"}
    assert not names & (set(packages_distributions()) | sys.stdlib_module_names)


DEAD = [sys.executable, "-c", "import sys; print('begun', flush=True); sys.exit('no such thing as data')"]


def test_the_other_sides_error_is_shown_when_that_side_dies():
    with Served(DEAD) as dead, pytest.raises(RuntimeError, match="ended with code 1:\nno such thing as data"):
        dead.line("begun")
        while True:  # the first line may still find the pipe open
            dead.steps(1)
    with pytest.raises(RuntimeError, match="ended with code 1:\nno such thing as data"):
        output_of(DEAD)
