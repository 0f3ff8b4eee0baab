"""Programs in processes of their own, which find the package in whatever folder they run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trainkit

ROOT = Path(trainkit.__file__).parents[1]


def begin(*arguments: Any) -> subprocess.Popen[str]:
    """Start a Python program; what it prints is kept."""
    words, env = [sys.executable, *map(str, arguments)], {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def run(
    *arguments: Any, env: Mapping[str, str] | None = None, check: bool = True, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end, which is to be a good one unless it is said otherwise."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    words = [sys.executable, *map(str, arguments)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=500, check=False, **how)
    assert done.returncode == 0 or not check, done.stdout[-2000:] + done.stderr[-4000:]
    return done
