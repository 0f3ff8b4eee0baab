"""Programs as Ray's documentation teaches them print the same under Ray and here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.patterns import PROGRAMS
from tests.runtime.patterns import run as _collected  # noqa: F401

pytest.importorskip("ray", reason="Ray's side needs Ray: pip install 'trainkit-ml[ray]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIMIT_S = 30
RAY_LIMIT_S = 120  # it starts a process for each actor, and the machine may be busy
ALL_S = 900

Told = Mapping[str, Mapping[str, Any]]


def told_by(module: str, limit_s: int) -> Told:
    """Return what each program printed in a process of its own, without those behind one that hangs hard."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.patterns.run", module, str(limit_s)],
        cwd=ROOT,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=ALL_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert rows, err[-4000:]
    return {row["name"]: row for row in rows}


@pytest.fixture(scope="module")
def both() -> tuple[Told, Told]:
    """Of Ray, and of trainkit."""
    return told_by("ray", RAY_LIMIT_S), told_by("trainkit", LIMIT_S)


@pytest.mark.timeout(2 * ALL_S + 180)
@pytest.mark.parametrize("name", PROGRAMS)
def test_prints_the_same_as_under_ray(name: str, both: tuple[Told, Told]) -> None:
    theirs, ours = (told.get(name) for told in both)
    assert theirs is not None, "Ray did not get so far"
    assert ours is not None, "trainkit did not get so far"
    assert not theirs["error"], theirs["error"]
    assert not ours["error"], ours["error"]
    assert theirs["printed"]
    assert ours["printed"] == theirs["printed"]
