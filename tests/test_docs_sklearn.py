"""The pages on searches over scikit-learn estimators are true: their Python runs and prints what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import check_that_it_runs, name, running


@pytest.mark.parametrize("page", running("sklearn"), ids=name)
def test_python_runs(page: Path, tmp_path: Path):
    check_that_it_runs(page, tmp_path)
