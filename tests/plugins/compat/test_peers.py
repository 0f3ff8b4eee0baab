"""The examples of other systems run with other imports, as docs/compatibility.md says; row by row."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from tests.plugins.compat.peers import SYSTEMS
from tests.plugins.compat.peers.base import Example, System, mistake
from tests.plugins.compat.table import PAGE, page

ROWS = [
    pytest.param(system, example, id=f"{system.title}: {example.name}")
    for system in SYSTEMS
    if system.files is not None
    for example in system.examples
    if not example.needs
]


def test_the_page_says_what_these_tests_show() -> None:
    assert PAGE.read_text() == page(), "write the page again: python -m tests.plugins.compat.table"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("system", "example"), ROWS)
def test_an_example_does_as_its_row_says(system: System, example: Example, tmp_path: Path) -> None:
    assert system.files is not None
    try:
        theirs = system.files()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the examples are those of a package that is not installed")
    assert not mistake(system, example, theirs, tmp_path)
