"""The examples of other systems run with other imports, as docs/compatibility.md says; row by row."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.compat.peers import SYSTEMS
from tests.compat.peers.base import Example, System, run
from tests.compat.table import PAGE, page

ROWS = [(system, example) for system in SYSTEMS for example in system.examples]


def test_the_page_says_what_these_tests_show() -> None:
    assert PAGE.read_text() == page(), "write the page again: python -m tests.compat.table"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("system", "example"), ROWS, ids=[example.name for _, example in ROWS])
def test_an_example_does_as_its_row_says(system: System, example: Example, tmp_path: Path) -> None:
    installed = system.installed()
    if installed is None:
        pytest.skip(f"the examples are those of the package {system.package}, which is not installed")
    assert installed == system.version, "the page is about another version"
    if "tensorflow" in example.error and sys.version_info >= (3, 12):
        pytest.skip("it ends by itself, as TensorFlow is not for this Python")
    status, printed = run(system, example, tmp_path)
    if example.runs:
        assert status == 0, printed[-5000:]
    else:
        assert status != 0, "it runs now: let its row say so"
        assert re.search(example.error, printed), printed[-5000:]
