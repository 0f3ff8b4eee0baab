"""The benchmark of searches over estimators: that all of it runs; nobody looks at its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.sklearn_searches import ROWS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine may take long for it
def test_every_section_has_its_lines_and_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.sklearn_searches", "--small"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    head, *table, last = done.stdout.splitlines()
    assert head.split()[0] == "work"
    assert len(table) == len(ROWS)
    figures = json.loads(last)
    assert figures["benchmark"] == "sklearn_searches"
    for row, line in zip(ROWS, table, strict=True):
        assert line.startswith(row.label)
        assert float(line.split()[-1]) == pytest.approx(figures[row.key], rel=0.01, abs=1e-3)
        for part in row.parts or ():
            assert figures[part] > 0 or part.endswith("_mb"), "memory may shrink, times don't"
