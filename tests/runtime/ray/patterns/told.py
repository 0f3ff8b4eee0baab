"""Output of the programs under Ray and under trainkit.

What a program prints under Ray follows from its text and the versions of Ray and Python. It is kept in
`printed_by_ray.json`, since Ray takes minutes to start all their processes. Where one of these has changed,
Ray runs them again. To keep what it prints then:

    python -m tests.runtime.ray.patterns.told
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = Path(__file__).parents[4]
KEPT = FOLDER / "printed_by_ray.json"
LIMIT_S = {"trainkit": 30, "ray": 120}  # Ray starts a process for each actor, and the machine may be busy
ALL_S = 900

Told = Mapping[str, Mapping[str, Any]]


def told_by(module: str) -> Told:
    """Return what each program printed in a process of its own, without those behind one that hangs hard."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.ray.patterns.run", module, str(LIMIT_S[module])],
        cwd=ROOT,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=ALL_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=60)
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert rows, err[-4000:]
    return {row["name"]: row for row in rows}


def told_by_ray() -> Told:
    """Return what Ray printed, as it is kept or, if that is not of this Ray and these programs, anew."""
    kept = json.loads(KEPT.read_text())
    programs: Told = kept["programs"]
    return programs if kept["made_from"] == _made_from() else told_by("ray")


def _made_from() -> dict[str, str]:
    texts = b"".join(file.read_bytes() for file in sorted(FOLDER.glob("*.py")) if file != Path(__file__))
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "ray": importlib.metadata.version("ray"),
        "programs": hashlib.sha256(texts).hexdigest(),
    }


def keep(programs: Told) -> None:
    """Write what Ray printed, with what it was made from."""
    KEPT.write_text(json.dumps({"made_from": _made_from(), "programs": programs}, indent=1) + "\n")


if __name__ == "__main__":
    keep(told_by("ray"))
