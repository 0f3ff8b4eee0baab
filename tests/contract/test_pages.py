"""Files, folders and tests that the documentation names are there."""

from __future__ import annotations

import re

import pytest

from tests.contract.test_contract import ROOT

PAGES = ["docs/design.md", "docs/local-engine.md", "CONTRIBUTING.md"]
FILE = re.compile(r"(?<![\w/.])(?:\.?[\w-]+/)*\w+\.(?:pyi|py|txt)\b")
FOLDER = re.compile(
    r"`((?:trainkit|runtime|train|tune|sklearn|cli|dashboard|compat|testing|tests)(?:/\w+)+)/?`"
)


def missing(text: str) -> set[str]:
    """Return the paths in `text` that end no path of a file or folder of the package or the tests."""
    known = [
        path for folder in ("trainkit", "tests", "recipes", ".ci") for path in (ROOT / folder).rglob("*")
    ]
    tails = [
        f"/{path.relative_to(ROOT)}" for path in [*known, *ROOT.iterdir()] if "__pycache__" not in path.parts
    ]
    named = {*FILE.findall(text), *FOLDER.findall(text)}
    return {name for name in named if not any(tail.endswith(f"/{name}") for tail in tails)}


def missing_tests(text: str) -> set[str]:
    """Return the tests `file.py::test` in `text` that no file of this name defines."""
    named = set(re.findall(r"(\w+\.py)::(test_\w+)", text))
    files = {file for file, _ in named}
    sources = [(path.name, path.read_text()) for path in (ROOT / "tests").rglob("*.py") if path.name in files]
    return {
        f"{file}::{test}"
        for file, test in named
        if not any(name == file and f"def {test}(" in source for name, source in sources)
    }


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text()) == set()


def test_what_is_not_there_is_found() -> None:
    text = "`node/scheduler.py`, `node/nothing.py`, `tune/nowhere`, `tune/core`, (quartermaster.py)"
    assert missing(text) == {"node/nothing.py", "tune/nowhere", "quartermaster.py"}


def test_each_cell_of_what_survives_what_has_its_test() -> None:
    table, tests = (ROOT / "docs/survives.md").read_text().split("## Tests")
    shown = {number for group in re.findall(r"\(([\d, ]+)\)", table) for number in group.split(", ")}
    assert shown == set(re.findall(r"^\| (\d+) \|", tests, re.MULTILINE))
    assert missing_tests(tests) == set()
    assert missing_tests("`test_kills.py::test_of_nothing`") == {"test_kills.py::test_of_nothing"}
