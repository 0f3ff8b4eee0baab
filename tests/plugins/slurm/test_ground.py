"""The Slurm of tests: its nodes run jobs, a dead node's job is queued again, nothing is left behind."""

import os

import psutil
import pytest

from tests.conftest import children
from tests.plugins.slurm.ground import Slurm, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is there")


def test_nodes_run_jobs_die_and_leave_nothing(tmp_path):
    before = children()
    sleep = f"sleep 600.{os.getpid()}"
    with Slurm(tmp_path, nodes=2) as slurm:
        each = slurm.run("srun", "-N2", "-n2", "printenv", "SLURMD_NODENAME")
        assert sorted(each.split()) == ["n1", "n2"]
        job = slurm.run("sbatch", "--parsable", "--requeue", "-o", tmp_path / "out", "--wrap", sleep)
        node = slurm.wait_for(job, "RUNNING")["NodeList"]
        slurm.kill_node(node)
        slurm.mark_down(node)
        # Slurm starts the job again on another node, after the life of its credential.
        slurm.wait(lambda: slurm.job(job)["Restarts"] == "1", "the job is requeued")
        assert slurm.wait_for(job, "RUNNING")["NodeList"] != node
        # A process whose keeper is dead ends with the ground, too.
        slurm.wait(lambda: _running(sleep), "the program runs")
        slurm.kill_keepers(slurm.job(job)["NodeList"])
    assert children() <= before
    assert not _running(sleep)


def _running(command):
    return command.split() in [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
