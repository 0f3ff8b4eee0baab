"""The recipe for scikit-learn estimators, in short form: all four searches, and what is kept of ours."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recipes.programs import run_recipe
from trainkit.cli.main import main


@pytest.mark.parametrize("data", ["digits", "cancer"])
def test_its_table_has_the_four_searches(data: str) -> None:
    said = run_recipe("scikit_digits", "--data", data, "--trials", "4", "--epochs", "9", "--folds", "2")
    rows = {
        title: [float(number) for number in re.findall(r"\d\.\d+", line.rpartition("│ 0.")[0])]
        for line in said.splitlines()
        if (title := line.strip("│ ").partition("  ")[0])
    }
    assert rows
