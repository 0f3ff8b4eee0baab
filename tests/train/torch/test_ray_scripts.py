"""Scripts in the form of Ray Train's guides: they print the same under Ray and, with other imports, here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted(Path(__file__).parent.glob("ray_scripts/*.py"))


def printed(script: Path, folder: Path) -> set[str]:
    """Run a script; return the lines that it prints for this test, of which Ray may show some twice."""
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        env=os.environ | {"RAY_TRAIN_V2_ENABLED": "1", "RAY_DEDUP_LOGS": "0", "TRAINKIT_DEDUP_LOGS": "0"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return set(re.findall(r"LINE (.+)$", done.stdout + done.stderr, re.MULTILINE))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_for_ray_moves_by_its_imports(script: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the other side, Ray Train, needs it: pip install 'ray[train]'")
    moved = tmp_path / script.name
    text = script.read_text()
    text = re.sub(r"^from ray\b", "from trainkit", text, flags=re.MULTILINE)
    text = re.sub(r"^import ray$", "import trainkit as ray", text, flags=re.MULTILINE)
    text = re.sub(r"^import ray\.(.+)$", r"import trainkit.\1", text, flags=re.MULTILINE)
    moved.write_text(text)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    ours, theirs = printed(moved, tmp_path / "here"), printed(script, tmp_path / "there")
    assert len(ours) > 2
    assert ours == theirs
