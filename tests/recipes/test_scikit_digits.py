"""The recipe for scikit-learn estimators, in short form."""

from __future__ import annotations

from pathlib import Path

import pytest

from recipes import scikit_digits
from tests.recipes.programs import run_recipe


def test_the_grids_agree_and_stopping_early_finds_a_good_one() -> None:
    options = {"jobs": 1, "folds": 2, "trials": 6, "epochs": 9, "seed": 0, "output": None}
    grid, our_grid, drawn, stopped = scikit_digits.compare("cancer", **options)
    assert (our_grid.best, our_grid.score, our_grid.held_out) == (grid.best, grid.score, grid.held_out)
    assert set(stopped.best) == set(drawn.best)
    assert stopped.score == pytest.approx(drawn.score, abs=0.03)


@pytest.mark.slow
def test_it_runs_from_the_command_line_and_keeps_experiments(tmp_path: Path) -> None:
    options = "--trials 3 --epochs 3 --folds 2".split()
    said = run_recipe("scikit_digits", *options, "--output", str(tmp_path))
    for name in ("GridSearchCV", "TuneGridSearchCV", "RandomizedSearchCV", "TuneSearchCV"):
        assert f" {name} " in said
    assert len(list(tmp_path.iterdir())) == 2
