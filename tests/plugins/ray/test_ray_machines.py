"""Ray that a session starts on several machines, its tokens, and Ray's own `symmetric-run`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually
from tests.plugins.cluster import ground as hosts
from tests.plugins.slurm import ground
from trainkit.errors import ConfigError

ray = pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit-ml[ray]'")

from tests.plugins.ray.ray_session import clean_ray, ray_processes  # noqa: E402
from trainkit.plugins.ray import has_several_nodes  # noqa: E402
from trainkit.plugins.ray.node import words_of  # noqa: E402

JOB = """
import json, os, socket, sys, time
import torch
import trainkit
from tests.train.operators import Digits
from trainkit import tune
from trainkit.train import TorchTrainer

def trial(config):
    time.sleep(0.2)
    tune.report({"x": config["x"], "on": os.environ["SLURMD_NODENAME"]})

def weights():
    arguments = {"use_gpu": False, "num_workers": 2, "num_cpus_per_worker": 2}
    with TorchTrainer(training_operator_cls=Digits, config={"dtype": torch.float64}, **arguments) as trainer:
        nodes = trainer.apply_all_workers(lambda: os.environ["SLURMD_NODENAME"])
        trainer.train()
        return nodes, [value.tolist() for value in trainer.state_dict()["models"][0].values()]

settings = tune.RunConfig(storage_path=os.environ["STORAGE"], verbose=0)
space = {"x": tune.grid_search(list(range(30)))}
grid = tune.Tuner(trial, param_space=space, run_config=settings).fit()
found = {"x": [result.metrics["x"] for result in grid], "on": [result.metrics["on"] for result in grid]}
found["cpus"] = trainkit.cluster_resources()["CPU"]
found["workers"], several = weights()
found["token"] = len(os.environ["RAY_AUTH_TOKEN"])
trainkit.shutdown()
found["variables"] = [name for name in os.environ if name.startswith("RAY_AUTH")]
trainkit.init("local", num_cpus=4)
found["equal"] = weights()[1] == several
print("FOUND", json.dumps(found), flush=True)
"""


def found_in(text: str) -> dict[str, Any]:
    lines = [line for line in text.splitlines() if line.startswith("FOUND ")]
    assert len(lines) == 1, text
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return found


@pytest.mark.skipif(bool(ground.missing()), reason=ground.missing() or "Slurm is there")
def test_a_job_of_three_nodes_runs_trials_and_workers_on_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE", f"{tmp_path / 'results'}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    # `ray.init` in an earlier test sets this variable for good, and sbatch passes it on to the job.
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    (tmp_path / "job.py").write_text(JOB)
    out = tmp_path / "out"
    with ground.Slurm(tmp_path / "slurm") as slurm:
        options = ("--parsable", "--nodes=3", "--exclusive", "--mem=3900", f"--output={out}")
        job = slurm.run("sbatch", *options, "--wrap", f"{sys.executable} {tmp_path / 'job.py'}")
        slurm.wait_for(job, "COMPLETED", "FAILED", seconds=500)
    assert eventually(lambda: not ray_processes(), 120), f"left: {ray_processes()}"
    found = found_in(out.read_text())
    assert sorted(found["x"]) == list(range(30))
    assert set(found["on"]) == {"n1", "n2", "n3"}
    assert found["cpus"] == 6
    assert len(set(found["workers"])) == 2
    assert found["token"] == 64
    assert found["variables"] == []
    assert found["equal"], "as many ranks on one node have the same weights"


DRIVER = """
import os, sys, time
import trainkit
trainkit.init("ssh://h1,h2", num_cpus=1)
assert sorted(node["hostname"] for node in trainkit.nodes() if node["resources"].get("CPU")) != []
where = trainkit.remote(lambda: (time.sleep(1), os.environ.get("SSH_CONNECTION"))[1])
there = trainkit.get([where.remote() for _ in range(2)])
print("FOUND", len(set(there)), trainkit.cluster_resources()["CPU"], flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(bool(hosts.reason_to_skip()), reason=hosts.reason_to_skip() or "SSH is there")
def test_hosts_of_ssh_run_calls_and_keep_nothing_of_a_killed_program(tmp_path: Path) -> None:
    before = ray_processes()
    (tmp_path / "driver.py").write_text(DRIVER)
    with hosts.Hosts(tmp_path / "hosts", 2) as ssh, tempfile.TemporaryDirectory(dir="/tmp") as short:
        variables = {**ssh.environment(), "PYTHONPATH": os.pathsep.join(sys.path), "RAY_TMPDIR": short}
        command = [sys.executable, tmp_path / "driver.py"]
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            line = next((line for line in driver.stdout if line.startswith("FOUND")), "")
            driver.send_signal(signal.SIGKILL)
            driver.stdout.read()
        assert line.split() == ["FOUND", "2", "2.0"]
        assert eventually(lambda: not ray_processes() - before, 120), f"left: {ray_processes() - before}"
        assert eventually(lambda: not os.listdir(short)), "Ray's files are removed"


def test_a_machine_that_can_not_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: Could not resolve hostname far' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def start() -> Any:
        with pytest.raises(ConfigError, match=r"Ray can't start on far: .*Could not resolve hostname far"):
            trainkit.init("ssh://far")
        return lambda: None

    with clean_ray(start):
        assert not trainkit.is_initialized()
        assert not ray.is_initialized()
        assert "RAY_AUTH_TOKEN" not in os.environ


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The address of a Ray that asks for a token."""
    variables = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}
    folder = Path("/tmp") / f"ray-{os.getpid()}"
    words = ["start", "--head", "--port=0", "--block", "--num-cpus=1", "--include-dashboard=false"]
    command = [sys.executable, "-m", "ray.scripts.scripts", *words, f"--temp-dir={folder}"]
    file = folder / "ray_current_cluster"
    with (tmp_path / "out").open("w") as out:
        head = subprocess.Popen(command, env=variables, stdout=out, stderr=out)
        try:
            assert eventually(lambda: file.exists() and bool(file.read_text())), (
                tmp_path / "out"
            ).read_text()
            yield file.read_text()
        finally:
            head.terminate()
            head.wait()
            shutil.rmtree(folder, ignore_errors=True)


JOIN = """
import sys, trainkit
from trainkit.errors import ConfigError
try:
    trainkit.init(sys.argv[1])
    print("FOUND", trainkit.get(trainkit.remote(lambda: 7).remote()))
except ConfigError as error:
    print("REFUSED", error)
"""


def joined(address: str, **variables: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    done = subprocess.run(
        [sys.executable, "-c", JOIN, address],
        env={**own, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    return done.stdout


def test_a_cluster_with_a_token_is_joined_with_it_and_otherwise_says_what_to_do(
    guarded: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("a" * 64)
    advice = "needs its token: set RAY_AUTH_MODE=token, and set RAY_AUTH_TOKEN"
    home = {"HOME": f"{tmp_path}"}
    assert "FOUND 7" in joined(guarded, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="a" * 64)
    assert "FOUND 7" in joined(
        "auto", RAY_ADDRESS=guarded, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=f"{file}"
    )
    assert advice in joined(guarded, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="b" * 64)
    assert advice in joined(guarded, RAY_AUTH_MODE="token", **home)
    assert advice in joined(guarded, **home)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_program_inside_symmetric_run_joins_its_cluster(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(JOIN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # `ray symmetric-run` ends all Ray that it can see: it sees only its own.
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    words = ["symmetric-run", f"--address=127.0.0.1:{port}", "--num-cpus=1", "--include-dashboard=false"]
    program = [sys.executable, str(tmp_path / "program.py"), "auto"]
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        done = subprocess.run(
            [*alone, sys.executable, "-m", "ray.scripts.scripts", *words, "--", *program],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join(sys.path),
                "RAY_TMPDIR": short,
            },
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            check=True,
        )
    assert "FOUND 7" in done.stdout


def test_only_the_batch_script_of_a_job_with_several_nodes_uses_all_of_them() -> None:
    batch = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3"}
    assert has_several_nodes(batch)
    assert has_several_nodes({**batch, "SLURM_STEP_ID": "4294967291"}), "the batch script's own step"
    assert not has_several_nodes({**batch, "SLURM_STEP_ID": "0"}), "srun may have started it on each node"
    assert not has_several_nodes({**batch, "SLURM_JOB_NUM_NODES": "1"})
    assert not has_several_nodes({})


def test_options_of_ray_for_one_more_machine() -> None:
    asked = {"address": "10.0.0.1:7", "name": "n2", "folder": "/tmp/r", "part": "1"}
    more = {"num_cpus": 4.0, "resources": {"licence": 2}, "labels": {"zone": "a"}, "_memory": 1 << 34}
    assert words_of({**asked, **more}) == [
        *("start", "--block", "--address=10.0.0.1:7", "--node-name=n2"),
        *("--min-worker-port=0", "--max-worker-port=0", "--temp-dir=/tmp/r/1"),
        *("--num-cpus=4", "--memory=17179869184", '--resources={"licence": 2}', "--labels=zone=a"),
    ]
