"""`trainkit submit`, `jobs`, `logs`, `cancel` and `why` on a real Slurm of three nodes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.slurm.ground import Slurm, missing
from trainkit import tune

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is there")

TUNER = """
import time
from trainkit import tune

def objective(config):
    for step in range(3):
        time.sleep({pause})
        tune.report({{"loss": config["x"] + step}})

tuner = tune.Tuner(
    objective,
    param_space={{"x": tune.grid_search(list(range({trials})))}},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
    run_config=tune.RunConfig(name="search", storage_path="results", verbose=0),
)
if tune.Tuner.can_restore("results/search"):
    tuner = tune.Tuner.restore("results/search", objective)
print(len(tuner.fit()), "trials", flush=True)
"""


class Login:
    """Login node: a folder with scripts, and commands of trainkit that run there."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.env = slurm.env | {"TRAINKIT_RESULTS_DIR": str(folder / "home"), "PYTHONPATH": os.getcwd()}

    def trainkit(self, *words: str, fails: bool = False) -> str:
        """Run a command of trainkit; return its output, or its errors if it fails."""
        command = [sys.executable, "-m", "trainkit", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False, timeout=120
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def submit(self, *words: str) -> str:
        """Submit a job; return its id."""
        return self.trainkit("submit", *words).split()[1].rstrip(":")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), 3, kill_wait_s=3) as started:
        yield started


@pytest.fixture
def login(slurm: Slurm, tmp_path: Path) -> Login:
    return Login(slurm, tmp_path)


def test_a_script_runs_as_it_was_at_submission(login: Login) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=kim", "-c", "user.email=kim@example.org"]
        subprocess.run(["git", *who, *words], cwd=login.folder, check=True, capture_output=True)

    (login.folder / "train.py").write_text("import sys, part\nprint('arguments', sys.argv[1:], part.VALUE)\n")
    (login.folder / "part.py").write_text("VALUE = 'first'\n")
    git("init")
    git("add", "train.py")
    git("commit", "-m", "first")
    begin = time.monotonic()
    printed = login.trainkit("submit", "train.py", "--lr", "0.1 a")
    assert time.monotonic() - begin < 60
    assert "a copy of 2 files, commit " in printed
    (login.folder / "part.py").write_text("VALUE = 'second'\n")
    job = printed.split()[1].rstrip(":")
    output = login.trainkit("logs", "-f", job)
    assert "arguments ['--lr', '0.1 a'] first" in output
    assert f"job {job} has ended with exit code 0" in output
    assert "no job waits or runs" in login.trainkit("jobs")
    assert job in login.trainkit("jobs", "--all")
    assert Path(printed.split()[2]).stat().st_mode & 0o077 == 0


def test_a_search_resumes_after_its_time_limit(login: Login) -> None:
    # Slurm's shortest limit is a minute. The notice comes up to a minute earlier than asked for.
    (login.folder / "search.py").write_text(TUNER.format(pause=2.5, trials=8))
    job = login.submit("--time", "1", "--signal-before", "25", "--mem", "1500", "search.py")
    login.slurm.wait(lambda: login.slurm.job(job)["Restarts"] != "0", "the job is submitted again", 120)
    state = login.slurm.wait_for(job, "COMPLETED", "FAILED", "TIMEOUT", seconds=240)
    output = login.trainkit("logs", job)
    assert state["JobState"] == "COMPLETED", output
    assert "the time is over: the job is submitted again" in output
    assert "8 trials" in output
    results = tune.ResultGrid.from_path(login.folder / "results" / "search")
    assert sorted(result.metrics["loss"] for result in results) == [x + 2 for x in range(8)]


def test_a_search_survives_a_requeue_and_the_death_of_its_node(tmp_path: Path) -> None:
    with Slurm(tmp_path / "slurm", 2, kill_wait_s=3) as slurm:
        _requeue_and_kill(Login(slurm, tmp_path))


def _requeue_and_kill(login: Login) -> None:
    (login.folder / "search.py").write_text(TUNER.format(pause=0.6, trials=10))
    job = login.submit("--mem", "1500", "search.py")
    slurm, results = login.slurm, login.folder / "results" / "search"
    slurm.wait(lambda: _reports(results) > 2, "trials report")
    slurm.run("scontrol", "requeue", job)
    slurm.wait(
        lambda: slurm.job(job)["JobState"] == "RUNNING" and slurm.job(job)["Restarts"] == "1", "it runs", 180
    )
    before = _reports(results)
    slurm.wait(lambda: _reports(results) > before, "trials report again")
    node = slurm.job(job)["NodeList"]
    slurm.kill_node(node)
    slurm.mark_down(node)
    slurm.start_node(node)
    state = slurm.wait_for(job, "COMPLETED", "FAILED", seconds=240)
    assert state["JobState"] == "COMPLETED", login.trainkit("logs", job)
    found = tune.ResultGrid.from_path(results)
    assert sorted(result.metrics["loss"] for result in found) == [x + 2 for x in range(10)]
    assert login.trainkit("why", job).startswith(f"job {job} (search) has ended with exit code 0 (attempt 3)")


def _reports(experiment: Path) -> int:
    if not tune.Tuner.can_restore(experiment):
        return 0
    return sum(
        (result.metrics or {}).get("training_iteration", 0)
        for result in tune.ResultGrid.from_path(experiment)
    )


def test_the_reason_of_an_end_is_named(login: Login) -> None:
    (login.folder / "wait.py").write_text("import time\nprint('begins', flush=True)\ntime.sleep(600)\n")
    (login.folder / "fails.py").write_text("print('no data', flush=True)\nraise SystemExit(3)\n")
    (login.folder / "large.py").write_text("import time\nx = bytearray(600 << 20)\ntime.sleep(60)\n")
    waits = login.submit("--nodes", "3", "--cpus", "2", "wait.py")
    behind, fails = login.submit("wait.py"), login.submit("fails.py")
    large = login.submit("--mem", "300", "large.py")
    login.slurm.wait_for(waits, "RUNNING")
    assert f"job {waits} (wait) runs on n[1-3]" in login.trainkit("why", waits)
    assert "waits" in login.trainkit("why", behind)
    login.trainkit("cancel", waits, behind)
    login.slurm.wait_for(waits, "CANCELLED")
    assert f"{waits} (wait) was cancelled" in login.trainkit("why", waits)
    login.slurm.wait_for(fails, "FAILED")
    why = login.trainkit("why", fails)
    assert "has failed with exit code 3" in why
    assert "| no data" in why
    login.slurm.wait_for(large, "OUT_OF_MEMORY", "CANCELLED", "FAILED")
    assert "more memory" in login.trainkit("why", large)


def test_a_cancelled_job_does_not_come_back(login: Login) -> None:
    # The program ends with the code of the notice before a time limit.
    (login.folder / "ends.py").write_text(
        "import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(138))\n"
        "print('runs', flush=True)\ntime.sleep(600)\n"
    )
    job = login.submit("ends.py")
    login.slurm.wait(lambda: "runs" in login.trainkit("logs", job), "the program runs")
    login.slurm.run("scancel", job)
    login.slurm.wait_for(job, "CANCELLED")
    assert login.slurm.job(job)["Restarts"] == "0"
    assert "submitted again" not in login.trainkit("logs", job)


def test_a_wrong_python_is_told_before_the_program_runs(login: Login) -> None:
    (login.folder / "train.py").write_text("print('runs')\n")
    job = login.submit("--python", "/bin/true-python", "train.py")
    output = login.trainkit("logs", "-f", job)
    assert "can't import trainkit" in output
    assert "runs\n" not in output


def test_settings_of_a_cluster_make_the_batch_script(login: Login) -> None:
    (login.folder / "train.py").write_text("")
    (login.folder / "pyproject.toml").write_text(
        '[tool.trainkit.cluster.lab]\npartition = "gpu"\nmodules = ["cuda/12"]\nbefore = ["ulimit -n 9"]\n'
        'time = "4:00:00"\noptions = {constraint = "a100"}\n'
    )
    text = login.trainkit(
        "submit", "--dry-run", "--nodes", "2", "--workers", "4", "--option", "qos=high", "train.py"
    )
    for line in (
        "#SBATCH --partition=gpu", "#SBATCH --nodes=2", "#SBATCH --time=4:00:00", "#SBATCH --constraint=a100",
        "#SBATCH --qos=high", "#SBATCH --signal=B:USR1@120", "module load cuda/12", "ulimit -n 9",
    ):  # fmt: skip
        assert line in text
    assert 'trainkit run --nnodes "$SLURM_JOB_NUM_NODES" --workers 4 train.py &' in text
    assert not (login.folder / "home").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("absent.py",), "absent.py is not a file in"),
        (("--time", "3", "train.py"), "leaves too little time"),
        (("--time", "soon", "train.py"), "give minutes"),
        (("--cluster", "lab", "train.py"), "cluster 'lab' has no settings"),
        (("--partition", "none", "train.py"), "sbatch failed: sbatch: error: invalid partition"),
    ],
)
def test_a_mistake_is_told_at_submission(login: Login, words: tuple[str, ...], message: str) -> None:
    (login.folder / "train.py").write_text("")
    assert message in login.trainkit("submit", *words, fails=True)
    assert not list(login.folder.glob("home/jobs/*/job.json"))
