"""`hydra/launcher=trainkit`: Hydra's own suite for launchers, and jobs in parallel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra.test_utils.launcher_common_tests import IntegrationTestSuite, LauncherTestSuite


@pytest.mark.parametrize(("launcher_name", "overrides"), [("trainkit", [])])
class TestLauncher(LauncherTestSuite):
    """Hydra's suite in this process."""


@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"),
    [({}, ["-m", "hydra/job_logging=hydra_debug", "hydra/job_logging=disabled", "hydra/launcher=trainkit"])],
)
class TestLauncherIntegration(IntegrationTestSuite):
    """Hydra's suite with programs."""


PROGRAM = """
import os
import signal
import time
from pathlib import Path

import hydra


@hydra.main(version_base=None, config_path=None)
def main(cfg):
    if cfg.job == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if cfg.job == "raises":
        raise RuntimeError("the job raises")
    Path(f"{cfg.job}.here").touch()
    while cfg.other and not Path(f"{cfg.other}.here").exists():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
"""


def run(folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "train.py", "--multirun", "hydra/launcher=trainkit", "hydra.sweep.dir=out"]
    return subprocess.run(
        [*command, *overrides], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def test_jobs_run_at_the_same_time(tmp_path: Path):
    # Each job waits for the other job.
    done = run(tmp_path, "+job=a,b", "+other=a,b", "hydra.launcher.cpus=0.5")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "out").glob("[0-9]*")) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("job", "message"), [("dies", "was killed by SIGKILL"), ("raises", "the job raises")]
)
def test_a_failed_job_leaves_the_other_jobs(job: str, message: str, tmp_path: Path):
    done = run(tmp_path, f"+job={job},b", "+other=''", "hydra.launcher.n_jobs=1")
    assert done.returncode == 1
    assert f"Error executing job with overrides: ['+job={job}'" in done.stderr and message in done.stderr
    assert (tmp_path / "b.here").exists()


def test_a_wrong_setting_is_refused(tmp_path: Path):
    assert (
        "hydra.launcher.n_jobs=0: give 1 or more" in run(tmp_path, "+job=a", "hydra.launcher.n_jobs=0").stderr
    )
