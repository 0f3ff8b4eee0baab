"""What the tests of the pages share: which there are, what is code in them, and how it is run."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.conftest import run_python

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
README = ROOT / "README.md"
CONFORMANCE = ROOT / "docs" / "extending" / "conformance.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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


def running(group: str) -> list[Path]:
    """The pages of a group that have code; in groups, as test files run side by side."""
    found = [page for page in PAGES if BLOCK.search(page.read_text()) and _group(page) == group]
    return [page for page in found if page not in (README, CONFORMANCE)]  # their blocks are run one by one


def _group(page: Path) -> str:
    if page.parent.name == "tuning":
        return "tuning"
    if page.parent.name == "sklearn" or page.stem in ("migrating-gridsearchcv", "migrating-tune-sklearn"):
        return "sklearn"
    beside = page.parent.name == "strategies" or page.name.startswith("migrating-")
    return "strategies" if beside else "others"


def check_that_it_runs(page: Path, tmp_path: Path, code: str | None = None) -> None:
    """Run the page's program, or this part of it, and look for what it promises to print."""
    code = program(page) if code is None else code
    script = tmp_path / f"{page.stem}_page.py"  # a page may have the name of the library that it is about
    script.write_text(code)
    environment = os.environ | {"TRAINKIT_RESULTS_DIR": str(tmp_path / "results")}
    done = run_python(script, cwd=tmp_path, env=environment, timeout=600)  # a busy machine may take minutes
    printed = iter(done.stdout.splitlines())
    for expected in EXPECTED.findall(code):
        assert any(expected.strip() == line.strip() for line in printed), (
            f"{name(page)} promises {expected!r}, after what came before; it printed\n{done.stdout}"
        )
