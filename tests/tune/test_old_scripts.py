"""Scripts written for Ray run with nothing changed but their imports; row 1.40."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.compat.peers.base import with_our_imports
from tests.tune import programs

SCRIPTS = sorted(Path(__file__).with_name("old_scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_runs_with_other_imports(script: Path, tmp_path: Path):  # row 1.40
    (tmp_path / script.name).write_text(with_our_imports(script.read_text()))
    results = {"TRAINKIT_RESULTS_DIR": str(tmp_path / "results")}
    done = programs.run(script.name, cwd=tmp_path, env=results)
    assert done.stdout.splitlines()[-1].startswith("best:")
    # What Ray has left in the working directory is in the trials' folders here.
    assert {path.name for path in tmp_path.iterdir()} == {script.name, "results"}
