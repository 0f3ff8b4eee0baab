"""Engines of other packages: the one of the page runs, and passes the suite."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import trainkit
from tests.conftest import run_python
from tests.packages import install_from_page
from tests.pages import EXPECTED, ROOT
from trainkit.errors import ConfigError

PAGE = "docs/extending/add-an-engine.md"
SNIPPET = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    install_from_page(PAGE, tmp_path, monkeypatch)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


def test_the_engine_of_the_page_runs_by_its_name(counting: dict[str, str], tmp_path: Path) -> None:
    use, _ = SNIPPET.findall((ROOT / PAGE).read_text())
    script = tmp_path / "use.py"
    script.write_text(use)
    done = run_python(script, env=counting)
    assert done.stdout.splitlines() == EXPECTED.findall(use)


def test_the_engine_of_the_page_passes_the_suite(counting: dict[str, str], tmp_path: Path) -> None:
    _, suite = SNIPPET.findall((ROOT / PAGE).read_text())
    (tmp_path / "test_counting.py").write_text(suite)
    run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path / "test_counting.py", env=counting)


def test_an_unknown_engine_lists_those_that_there_are(counting: dict[str, str]) -> None:
    with pytest.raises(
        ConfigError, match=r"engine='count' is not one of counting, inline, local, ray\. Did you"
    ):
        trainkit.init(engine="count")
