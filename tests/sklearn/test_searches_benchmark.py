"""The benchmark of searches over estimators: that all of it runs; nobody looks at its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.rows import rows_of
from benchmarks.sklearn_searches import ROWS
from tests.conftest import run_python

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a busy machine may take long for it
def test_every_section_has_its_lines_and_its_figures() -> None:
    done = run_python("-m", "benchmarks.sklearn_searches", "--small", cwd=ROOT, timeout=1000)
    rows = rows_of(done.stdout)
    assert list(rows) == [row.name for row in ROWS.values()]
    for name, row in rows.items():
        assert f"\n{name}" in done.stdout
        if row.unit == "s":
            assert row.value > 0 and row.times is not None
