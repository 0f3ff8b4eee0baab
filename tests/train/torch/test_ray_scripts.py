"""Scripts in the form of Ray Train's guides: they print the same under Ray and, with other imports, here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import run_python
from tests.plugins.compat.peers.base import with_our_imports
from tests.plugins.ray.ray_session import clean_ray

SCRIPTS = sorted(Path(__file__).parent.glob("ray_scripts/*.py"))
SLOWLY = {
    # Ray gives up what a busy machine has not started in a minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "900",
    "RAY_raylet_start_wait_time_s": "600",
    "RAY_worker_register_timeout_seconds": "600",
}


def printed(script: Path, folder: Path) -> list[str]:
    """Run a script; return the lines that it prints for this test."""
    folder.mkdir()
    own = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    own |= SLOWLY | {"RAY_TRAIN_V2_ENABLED": "1", "HF_HUB_OFFLINE": "1"}
    done = run_python(script, cwd=folder, timeout=900, env=own)
    return re.findall(r"^LINE (.+)$", done.stdout, re.MULTILINE)


@pytest.mark.timeout(2000)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_for_ray_moves_by_its_imports(script: Path, tmp_path: Path) -> None:
    for package in ("ray", "pyarrow"):
        pytest.importorskip(package, reason="the other side is Ray Train: pip install 'ray[train]'")
    moved = tmp_path / script.name
    moved.write_text(with_our_imports(script.read_text()))
    with clean_ray(lambda: lambda: None):
        theirs = printed(script, tmp_path / "there")
    ours = printed(moved, tmp_path / "here")
    assert len(ours) > 2
    assert ours == theirs
