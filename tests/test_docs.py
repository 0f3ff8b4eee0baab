"""The pages are true: their Python runs and prints what it says, and their links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
EXPECTED = re.compile(r"# -> (.+)$", re.MULTILINE)


def program(page: Path) -> str:
    """The page's Python blocks as one program, each on the lines where the page has it."""
    text = page.read_text()
    lines = [""] * len(text.splitlines())
    for block in BLOCK.finditer(text):
        start = text.count("\n", 0, block.start(1))
        code = block[1].splitlines()
        lines[start : start + len(code)] = code
    return "\n".join(lines).rstrip() + "\n"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slugs(page: Path) -> set[str]:
    """What a link may name after '#': the headings, as the usual renderers write them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name)
def test_python_runs(page: Path, tmp_path: Path):
    code = program(page)
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=tmp_path,
        env=os.environ | {"TRAINKIT_RESULTS_DIR": str(tmp_path / "results")},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    printed = iter(done.stdout.splitlines())
    for expected in EXPECTED.findall(code):
        assert any(expected.strip() == line.strip() for line in printed), (
            f"{name(page)} promises {expected!r}, after what came before; it printed\n{done.stdout}"
        )


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
