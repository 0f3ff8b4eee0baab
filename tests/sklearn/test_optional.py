"""Without scikit-learn, its door says how to get it."""

from __future__ import annotations

from tests.conftest import run_python

CODE = """
import sys
sys.modules["sklearn"] = None  # as if it were not installed
from trainkit.errors import MissingDependencyError
import trainkit.sklearn
try:
    from trainkit.sklearn import TuneGridSearchCV
except MissingDependencyError as error:
    print(error)
"""


def test_what_is_missing_is_named_with_what_installs_it() -> None:
    done = run_python("-c", CODE)
    assert "searches over estimators need sklearn: pip install 'trainkit-ml[sklearn]'" in done.stdout
