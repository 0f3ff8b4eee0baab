"""Every test file has a tier, and the table of tiers names no file that is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import divide
from tests.tiers import LONGEST, OTHERS, OUTSIDE, PARTS, TIERS, tier_of

TESTS = Path(__file__).parent


def test_every_file_has_a_tier():
    assert {tier_of(file.relative_to(TESTS)) for file in TESTS.rglob("test_*.py")} == set(TIERS) - {"slow"}


def test_every_row_names_a_file_once():
    rows = [file for files in OTHERS.values() for file in files.split()]
    assert len(set(rows)) == len(rows)
    assert [file for file in [*rows, *LONGEST, *OUTSIDE] if not (TESTS / file).is_file()] == []


def test_the_parts_run_every_test_and_meet_each_outside_thing(request: pytest.FixtureRequest):
    items = [item for item in request.session.items if item.path.parent == TESTS]
    runs = [divide(items, part)[0] for part in range(PARTS)]
    assert set().union(*runs) == set(items)
    outside = {item.path for item in items if item.path.name in OUTSIDE}
    assert all({item.path for item in run} >= outside for run in runs)
