"""Files and folders that the pages on the design name are there."""

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


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    assert missing((ROOT / page).read_text()) == set()


def test_what_is_not_there_is_found() -> None:
    text = "`node/scheduler.py`, `node/nothing.py`, `tune/nowhere`, `tune/core`, (quartermaster.py)"
    assert missing(text) == {"node/nothing.py", "tune/nowhere", "quartermaster.py"}
