"""The pages are true: their Python runs and prints what it says, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import BLOCK, PAGES, README, check_that_it_runs, name, running

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^ *```.*?^ *```\s*$", re.MULTILINE | re.DOTALL)
PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*(?:- |\|))")


def slugs(page: Path) -> set[str]:
    """What a link may name after '#': the headings, as the usual renderers write them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", running("others"), ids=name)
def test_python_runs(page: Path, tmp_path: Path):
    check_that_it_runs(page, tmp_path)


@pytest.mark.parametrize("code", BLOCK.findall(README.read_text()), ids=lambda code: code.split("\n")[0])
def test_each_block_of_the_readme_runs_alone(code: str, tmp_path: Path):
    check_that_it_runs(README, tmp_path, code)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_backticks_are_in_pairs(page: Path):
    text = FENCED.sub("", page.read_text()).replace("``", "")
    assert not [part for part in PARAGRAPHS.split(text) if part.count("`") % 2]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path):
    broken = []
    for link in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in slugs(path)):
            broken.append(link)
    assert not broken, broken
