"""Packages that other people ship, built from the pages that tell how to write them."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.pages import BLOCK, ROOT

TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]


def install_from_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the package of a page for this process: its first Python block, and the metadata of its row."""
    text = (ROOT / page).read_text()
    row, code = TOML.search(text), BLOCK.search(text)
    assert row is not None and code is not None, page
    metadata = tomllib.loads(row[1])
    project = metadata["project"]
    ((group, entries),) = project["entry-points"].items()
    ((name, target),) = entries.items()
    module = target.partition(":")[0]
    # As `pip install` needs them: a module beside the folder of its tests, and what it needs.
    assert metadata["tool"]["setuptools"]["py-modules"] == [module], page
    assert project["dependencies"] == [OURS], page
    (folder / f"{module}.py").write_text(code[1])
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    monkeypatch.delitem(sys.modules, module, raising=False)  # and again when the test has ended
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()
