"""The recipe with a scheduler, as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recipes.programs import run_recipe


@pytest.mark.slow
def test_it_runs_from_the_command_line(tmp_path: Path) -> None:
    options = ["--scheduler", "pbt-synch", "--trials", "4", "--epochs", "4", "--output", str(tmp_path)]
    said = run_recipe("digits", *options)
    assert "4 TERMINATED; 16 epochs in all" in said
    assert "best: " in said
    assert "4 TERMINATED; 16 epochs in all" in run_recipe("digits", *options, "--resume")
