"""A recipe as a user runs it: from the command line, or with what was typed there, in this process."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_recipe(name: str, *options: str) -> str:
    """What `python -m recipes.<name>` prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-m", f"recipes.{name}", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def run_here(name: str, *options: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the recipe prints in this process, which has its libraries and a session already."""
    recipe = import_module(f"recipes.{name}")
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *options])
        recipe.main()
    return capsys.readouterr().out
