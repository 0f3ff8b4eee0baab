"""A recipe as a user runs it: from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_recipe(name: str, *options: str) -> str:
    """What `python -m recipes.<name>` prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-m", f"recipes.{name}", *options],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout
