"""`trainkit submit`, `jobs`, `logs`, `cancel` and `why` on a real Slurm of three nodes."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
        self.python, self.user = sys.executable, ""

    def trainkit(self, *words: str, fails: bool = False) -> str:
        """Run a command of trainkit; return its output, or its errors if it fails."""
        command = [self.python, "-m", "trainkit", *words]
        who: dict[str, Any] = {"user": self.user, "group": self.user, "extra_groups": []} if self.user else {}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            **who,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def submit(self, *words: str) -> str:
        """Submit a job; return its id."""
        return self.trainkit("submit", *words).split()[1].rstrip(":")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    # Other users can't reach the folders of pytest.
    folder = Path(tempfile.mkdtemp(prefix="trainkit-slurm-", dir="/tmp"))
    try:
        with Slurm(folder, 3, kill_wait_s=3) as started:
            yield started
    finally:
        shutil.rmtree(folder)


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
    assert "the program ended early: the job is submitted again" in output
    assert "8 trials" in output
    results = tune.ResultGrid.from_path(login.folder / "results" / "search")
    assert sorted(result.metrics["loss"] for result in results) == [x + 2 for x in range(8)]


def test_a_search_survives_a_requeue_and_the_death_of_its_node_and_its_keeper(tmp_path: Path) -> None:
    with Slurm(tmp_path / "slurm", 2, kill_wait_s=3) as slurm:
        _requeue_and_kill(Login(slurm, tmp_path))


def _requeue_and_kill(login: Login) -> None:
    (login.folder / "search.py").write_text(TUNER.format(pause=0.8, trials=10))
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
    slurm.wait(lambda: slurm.job(job)["Restarts"] == "2", "it is submitted again", 180)
    before = _reports(results)
    slurm.wait(lambda: _reports(results) > before, "trials report again", 180)
    slurm.kill_keepers(slurm.job(job)["NodeList"])
    state = slurm.wait_for(job, "COMPLETED", "FAILED", seconds=240)
    assert state["JobState"] == "COMPLETED", login.trainkit("logs", job)
    found = tune.ResultGrid.from_path(results)
    assert sorted(result.metrics["loss"] for result in found) == [x + 2 for x in range(10)]
    assert login.trainkit("why", job).startswith(f"job {job} (search) has ended with exit code 0 (attempt 4)")


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
    assert "trainkit run --nnodes 2 --workers 4 train.py)" in text
    assert not (login.folder / "home").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("absent.py",), "absent.py is not a file in"),
        (("--time", "3", "train.py"), "leaves too little time"),
        (("--time", "soon", "train.py"), "give minutes"),
        (("--cluster", "lab", "train.py"), "cluster 'lab' has no settings"),
        (("--partition", "none", "train.py"), "sbatch failed: sbatch: error: invalid partition"),
        (("--option", "array=1-3", "train.py"), "option array of sbatch belongs to trainkit: use --array"),
        (("data.txt",), "data.txt is not executable: chmod +x data.txt"),
    ],
)
def test_a_mistake_is_told_at_submission(login: Login, words: tuple[str, ...], message: str) -> None:
    (login.folder / "train.py").write_text("")
    (login.folder / "data.txt").write_text("")
    assert message in login.trainkit("submit", *words, fails=True)
    assert not list(login.folder.glob("home/jobs/*"))


def test_arguments_and_names_stay_as_they_are(login: Login) -> None:
    folder = login.folder / "it's %j"
    (folder / "my code").mkdir(parents=True)
    (folder / "my code" / "tr ain.py").write_text("import sys\nprint(sys.argv[1:])\n")
    login.folder, login.env["TRAINKIT_RESULTS_DIR"] = folder, str(folder / "home")
    words = ["--lr", '0.1 "$HOME" `id`', "it's", "", "*", "--", "--mem", "$SLURM_JOB_NUM_NODES", "%a"]
    job = login.submit("--job-name", "a/b c", "my code/tr ain.py", *words)
    output = login.trainkit("logs", "-f", job)
    assert f"{words!r}\n" in output
    assert f"job {job} has ended with exit code 0" in output
    assert f"{job}  a/b c  has ended" in login.trainkit("jobs", "--all")


def test_a_module_runs_as_it_was_at_submission(login: Login) -> None:
    package, ignored = login.folder / "src" / "package", "ignored*\nhome\n"
    package.mkdir(parents=True)
    (login.folder / ".gitignore").write_text(ignored)
    (package / "ignored_version.py").write_text("VERSION = 'first'\n")
    (package / "main.py").write_text(
        "from package import ignored_version, shared\nprint(ignored_version.VERSION)"
    )
    (login.folder / "shared.py").write_text("")
    (package / "shared.py").symlink_to("../../shared.py")
    subprocess.run("git init -q; git add .", shell=True, cwd=login.folder, check=True)
    login.slurm.run("scontrol", "update", "partitionname=main", "state=down")
    job = login.submit("-m", "package.main")
    (package / "ignored_version.py").write_text("VERSION = 'second'\n")
    assert f"job {job} (main) waits: the partition is down" in login.trainkit("why", job)
    login.slurm.run("scontrol", "update", "partitionname=main", "state=up")
    assert "first\n" in login.trainkit("logs", "-f", job)


def test_a_task_of_an_array_resumes_alone(login: Login) -> None:
    (login.folder / "task.py").write_text(
        "import os, sys, time\n"
        "task, again = os.environ['SLURM_ARRAY_TASK_ID'], 'SLURM_RESTART_COUNT' in os.environ\n"
        "print('task', task, again, flush=True)\ntime.sleep(600 if task == '1' else 0)\n"
        "sys.exit(143 if task == '2' and not again else 0)\n"
    )
    job = login.submit("--array", "0-2", "--mem", "300", "task.py")
    login.slurm.wait(lambda: "task 1" in login.trainkit("logs", f"{job}_1"), "task 1 runs")
    login.slurm.wait(lambda: "task 2 True" in login.trainkit("logs", f"{job}_2"), "task 2 runs again", 200)
    assert login.slurm.job(f"{job}_1")["Restarts"] == "0"
    assert f"{job}_1: runs on n" in login.trainkit("why", job)
    login.trainkit("cancel", f"{job}_1")
    output = login.trainkit("logs", "-f", job)
    assert output.count("task 1") == 1
    assert f"{job}_0: has ended with exit code 0\n" in output
    assert f"{job}_2: has ended with exit code 0 (attempt 2)\n" in output
    assert f"job {job}_1 (task) was cancelled by {getpass.getuser()}" in login.trainkit("why", f"{job}_1")
    assert f"job {job}_0 has ended already" in login.trainkit("cancel", f"{job}_0")
    assert "has ended with exit code 0" in login.trainkit("why", f"{job}_0")


def test_a_limit_below_the_notice_is_told(login: Login) -> None:
    (login.folder / "train.py").write_text("print('runs')\n")
    login.env["SBATCH_TIMELIMIT"] = "1"
    output = login.trainkit("logs", "-f", login.submit("train.py"))
    assert "the time limit of this job leaves too little time" in output
    assert "runs\n" not in output
    assert "runs\n" in login.trainkit("logs", "-f", login.submit("--time", "10", "train.py"))


def test_a_damaged_record_hides_no_other_job(login: Login) -> None:
    (login.folder / "train.py").write_text("")
    first, second = login.submit("train.py"), login.submit("train.py")
    record = next(
        each for each in login.folder.glob("home/jobs/*/job.json") if f'"{first}"' in each.read_text()
    )
    record.write_text(record.read_text()[:20])
    assert f"job {second} has ended" in login.trainkit("logs", "-f", second)
    assert login.trainkit("jobs", "--all").startswith(second)


def test_users_neither_see_nor_disturb_each_other(login: Login) -> None:
    folder = Path(tempfile.mkdtemp(prefix="trainkit-slurm-", dir="/tmp"))
    try:
        _two_users(login, Login(login.slurm, folder))
    finally:
        shutil.rmtree(folder)


def _two_users(login: Login, other: Login) -> None:
    other.folder.chmod(0o777)
    other.user, other.python = "games", "/usr/bin/python3"
    other.env["PYTHONPATH"] = ":".join([os.getcwd(), *filter(os.path.isdir, sys.path)])
    other.env |= {"HOME": str(other.folder), "TMPDIR": "/tmp", "TRAINKIT_RUNTIME_DIR": "/tmp"}
    shared = other.folder / "shared"  # a group may share its results
    shared.mkdir()
    shared.chmod(0o777)
    try:
        other.slurm.run(other.python, "-c", "import trainkit.tune", user=other.user, env=other.env, cwd="/")
    except (OSError, RuntimeError) as error:
        pytest.skip(f"another user can't import trainkit: {error}")
    jobs = {}
    for each in (login, other):
        each.env["TRAINKIT_RESULTS_DIR"] = str(shared)
        (shared / "jobs").mkdir(exist_ok=True)
        (shared / "jobs").chmod(0o777)
        own = each.folder / "own"
        own.mkdir()
        each.folder = own
        if each.user:
            shutil.chown(own, each.user, each.user)
        (own / "search.py").write_text(TUNER.format(pause=0.3, trials=6))
        jobs[each] = each.submit("--mem", "1500", "search.py")
    for each, stranger in ((login, other), (other, login)):
        assert re.findall(r"^\d+", each.trainkit("jobs", "--all"), re.M) == [jobs[each]]
        for command in ("cancel", "logs", "why"):
            assert f"{jobs[stranger]!r}" in each.trainkit(command, jobs[stranger], fails=True)
    for each, job in jobs.items():
        output = each.trainkit("logs", "-f", job)
        assert "6 trials" in output
        assert f"job {job} has ended with exit code 0" in output
    folder = next(path for path in (shared / "jobs").iterdir() if path.owner() != other.user)
    with pytest.raises(RuntimeError, match="Permission denied"):
        other.slurm.run("ls", folder, user=other.user, env=other.env, cwd="/")
