"""scikit-learn's own tests, with the searches of trainkit in place of its own; a program.

    python -m tests.sklearn.sklearn_suite test_search test_successive_halving

Writes the name of each test that fails to the file that SUITE_FAILED names, a line each.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import _search, _search_successive_halving

import trainkit
from trainkit.sklearn import (
    TuneGridSearchCV,
    TuneHalvingGridSearchCV,
    TuneHalvingRandomSearchCV,
    TuneSearchCV,
)
from trainkit.sklearn.base import TuneBaseSearchCV

IN_PLACE_OF = {
    "BaseSearchCV": TuneBaseSearchCV,
    "GridSearchCV": TuneGridSearchCV,
    "HalvingGridSearchCV": TuneHalvingGridSearchCV,
    "HalvingRandomSearchCV": TuneHalvingRandomSearchCV,
    "RandomizedSearchCV": TuneSearchCV,
}
MODULES = (model_selection, _search, _search_successive_halving)


class Exchange:
    """Plugin of pytest: the tests import other searches, and what fails is written down."""

    def __init__(self, failed: Path) -> None:
        self._failed = failed
        self._before: list[tuple[Any, str, Any]] = []

    def pytest_collection(self) -> None:
        for module in MODULES:
            for name, cls in IN_PLACE_OF.items():
                if hasattr(module, name):
                    self._before.append((module, name, getattr(module, name)))
                    setattr(module, name, cls)

    def pytest_collection_finish(self) -> None:
        # From here on they are as they were, for scikit-learn itself.
        for module, name, before in self._before:
            setattr(module, name, before)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._failed.open("a") as file:
                print(report.nodeid.rpartition("::")[2], file=file)


def main(names: list[str]) -> int:
    """Run these test modules of `sklearn.model_selection`; return pytest's exit status."""
    folder = Path(model_selection.__file__).parent / "tests"
    trainkit.init(num_cpus=2)
    files = [str(folder / f"{name}.py") for name in names]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-c", os.devnull, "--tb=short"]
    return int(pytest.main([*files, *options], plugins=[Exchange(Path(os.environ["SUITE_FAILED"]))]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
