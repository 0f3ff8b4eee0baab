"""A pool of jobs on a real Slurm of three nodes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.plugins.slurm.ground import Slurm, missing
from trainkit.errors import ConfigError

pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit-ml[ray]'")

from tests.plugins.ray.ray_session import ray_processes
from trainkit.plugins.job_pool.pool import JobPool

needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is there")


class Driver:
    """Program with a session on a pool, in a process of its own."""

    def __init__(
        self, slurm: Slurm, folder: Path, program: str, address: str, commands: dict[str, str] | None = None
    ) -> None:
        self.folder, self.slurm = folder, slurm
        self.home, self.others = folder / "home", ray_processes()
        (folder / "driver.py").write_text(program)
        self.errors = folder / "errors.txt"
        (folder / "bin").mkdir()
        for name, text in (commands or {}).items():  # in place of Slurm's commands
            path = folder / "bin" / name
            path.write_text(text.format(folder=folder, real=shutil.which(name, path=slurm.env["PATH"])))
            path.chmod(0o755)
        variables = {
            **slurm.env,
            "PATH": f"{folder / 'bin'}:{slurm.env['PATH']}",
            "TRAINKIT_RESULTS_DIR": f"{self.home}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, folder / "driver.py", f"{address}&python={sys.executable}"],
                cwd=folder,
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def said(self, word: str) -> list[str]:
        """Wait for a line that begins with `word`, and return the rest of its words."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(f"{word} "):
                return line.split()[1:]
        raise AssertionError(f"{word} is missing: {self.errors.read_text()}")

    def go_on(self) -> None:
        """Let the program continue after its `input()`."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill the program, and close its pipes."""
        with self.process:
            self.process.kill()

    def queue(self) -> list[str]:
        """Return the ids of the jobs that Slurm still has."""
        return self.slurm.run("squeue", "--noheader", "--format=%i").split()

    def processes(self) -> set[int]:
        """Return the processes of Ray, of the jobs and of the program that still run."""
        return ray_processes() - self.others

    def leaves_nothing(self) -> None:
        """Check that no job, process or file of the pool is left."""
        self.slurm.wait(lambda: not self.queue(), "no job is left", 60)
        assert eventually(lambda: not self.processes(), 90), f"left: {self.processes()}"
        assert eventually(lambda: not list((self.home / "jobs").iterdir())), "the pool's folder is removed"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm"), 3) as started:
        yield started


@pytest.fixture
def drivers(slurm: Slurm, tmp_path: Path) -> Iterator[Any]:
    started: list[Driver] = []

    def start(program: str, address: str, **commands: str) -> Driver:
        started.append(Driver(slurm, tmp_path, program, address, commands))
        return started[-1]

    yield start
    for driver in started:
        driver.kill()
        driver.leaves_nothing()


def most_at_once(slurm: Slurm, jobs: list[str]) -> int:
    """Return the largest number of these jobs that existed at one time."""
    fields = [slurm.job(job) for job in jobs]
    return max(
        sum(other["SubmitTime"] <= job["SubmitTime"] < other["EndTime"] for other in fields) for job in fields
    )


SEARCH = """
import os, sys, time
import trainkit
from trainkit import tune
from trainkit.util.placement_group import placement_group, remove_placement_group

def trial(config):
    time.sleep(0.5)
    tune.report({"x": config["x"], "on": os.environ["SLURM_JOB_ID"]})

trainkit.init(sys.argv[1])
print("CPUS", trainkit.cluster_resources()["CPU"], flush=True)
tuner = tune.Tuner(
    trial,
    param_space={"x": tune.grid_search(list(range(24)))},
    tune_config=tune.TuneConfig(reuse_actors=True),
    run_config=tune.RunConfig(storage_path="results", verbose=0),
)
grid = tuner.fit()
print("SUM", sum(result.metrics["x"] for result in grid), flush=True)
print("JOBS", *sorted({result.metrics["on"] for result in grid}), flush=True)
input()
group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
trainkit.get(group.ready())
print("SPREAD", 1, flush=True)
remove_placement_group(group)
where = trainkit.remote(lambda: os.environ["SLURM_JOB_ID"])
print("AGAIN", trainkit.get(where.remote()), flush=True)
input()
"""


@needs_slurm
@pytest.mark.slow
def test_jobs_come_with_the_trials_and_end_when_idle_or_with_the_program(drivers: Any, slurm: Slurm) -> None:
    driver = drivers(SEARCH, "slurm://?max_jobs=2&cpus=2&mem=1200&idle_s=4&time=20&job_name=search")
    assert driver.said("CPUS") == ["4.0"]
    assert driver.said("SUM") == [f"{sum(range(24))}"]
    first = driver.said("JOBS")
    assert 1 <= len(first) <= 2
    folder = next((driver.home / "jobs").iterdir())
    assert (folder / "token").stat().st_mode & 0o777 == 0o600
    token = (folder / "token").read_text()
    assert token not in (folder / "script.sh").read_text()
    slurm.wait(lambda: not driver.queue(), "idle jobs end", 90)
    driver.go_on()
    driver.said("SPREAD")
    second = driver.queue()
    assert len(second) == 2
    assert driver.said("AGAIN")[0] in second
    driver.process.send_signal(signal.SIGKILL)
    driver.leaves_nothing()
    assert most_at_once(slurm, sorted({*first, *second})) <= 2


LOST = """
import os, sys, time
import trainkit
from trainkit import tune

def trial(config):
    for step in range(8):
        time.sleep(0.5)
        tune.report({"x": config["x"], "on": os.environ["SLURM_JOB_ID"]})

class Tell(tune.Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        print("ON", result["on"], result["pid"], flush=True)

trainkit.init(sys.argv[1])
settings = tune.RunConfig(storage_path="results", verbose=0, callbacks=[Tell()])
space = {"x": tune.grid_search(list(range(8)))}
grid = tune.Tuner(trial, param_space=space, run_config=settings).fit()
print(*grid.errors, sep="\\n", file=sys.stderr, flush=True)
print("ENDED", *sorted(result.config["x"] for result in grid if result.error is None), flush=True)
"""


@needs_slurm
@pytest.mark.slow
def test_a_lost_node_fails_no_trial(drivers: Any, slurm: Slurm) -> None:
    driver = drivers(LOST, "slurm://?max_jobs=2&cpus=2&mem=1200&idle_s=60")
    node = slurm.job(driver.said("ON")[0])["NodeList"]
    slurm.kill_node(node)
    slurm.mark_down(node)
    assert driver.said("ENDED") == list("01234567"), driver.errors.read_text()


MOVES = """
import os, sys, time
from pathlib import Path
import trainkit
from trainkit import tune

class Steps(tune.Trainable):
    def setup(self, config):
        self.done = 0

    def step(self):
        time.sleep(2)
        self.done += 1
        with open("steps.txt", "a") as file:
            file.write(f"{self.done} {os.environ['SLURM_JOB_ID']}\\n")
        return {"x": self.done, "on": os.environ["SLURM_JOB_ID"]}

    def save_checkpoint(self, folder):
        Path(folder, "done.txt").write_text(str(self.done))

    def load_checkpoint(self, folder):
        self.done = int(Path(folder, "done.txt").read_text())

trainkit.init(sys.argv[1])
settings = tune.RunConfig(storage_path="results", verbose=0, stop={"training_iteration": 25})
result = tune.Tuner(Steps, run_config=settings).fit()[0]
print(result.error, file=sys.stderr, flush=True)
print("STEPS", *[line for line in Path(result.path, "steps.txt").read_text().split()], flush=True)
"""


@needs_slurm
@pytest.mark.slow
def test_a_trial_moves_to_another_job_before_the_time_limit_and_repeats_nothing(drivers: Any) -> None:
    driver = drivers(MOVES, "slurm://?max_jobs=2&cpus=2&mem=1200&idle_s=60&time=1&signal_before=20")
    words = driver.said("STEPS")
    assert words[::2] == [str(step) for step in range(1, 26)], driver.errors.read_text()
    assert len(set(words[1::2])) >= 2


@needs_slurm
@pytest.mark.slow
def test_a_job_that_slurm_ends_fails_no_trial(drivers: Any, slurm: Slurm) -> None:
    driver = drivers(LOST, "slurm://?max_jobs=2&cpus=2&mem=1200&idle_s=60")
    job, pid = driver.said("ON")
    # Slurm sends SIGTERM to all processes; here, the trial's process is the first that ends.
    os.kill(int(pid), signal.SIGTERM)
    slurm.run("scancel", job)
    assert driver.said("ENDED") == list("01234567"), driver.errors.read_text()


FAILS = """
import sys, trainkit
trainkit.init(sys.argv[1].replace(sys.executable, "/bin/false"))
print("BEGUN", 1, flush=True)
trainkit.get(trainkit.remote(lambda: 1).remote())
"""


@needs_slurm
def test_jobs_that_can_not_start_are_reported_and_tried_again_later(drivers: Any) -> None:
    driver = drivers(FAILS, "slurm://?idle_s=4")
    driver.said("BEGUN")
    assert eventually(lambda: "is submitted for 10 s" in driver.errors.read_text(), 120), (
        driver.errors.read_text()
    )
    assert "of the pool has ended before Ray has started on it" in driver.errors.read_text()


FORKS = """
import multiprocessing, sys, time, trainkit
trainkit.init(sys.argv[1])
child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
child.start()
trainkit.shutdown()
print("ALIVE", child.is_alive(), flush=True)
child.kill()
"""


@needs_slurm
def test_a_forked_child_does_not_hold_up_the_end(drivers: Any) -> None:
    assert drivers(FORKS, "slurm://?mem=1200").said("ALIVE") == ["True"]


LOSES_AN_ANSWER = """#!/bin/sh
case "$*" in *--test-only*) exec {real} "$@";; esac
[ -e {folder}/lost ] && exec {real} "$@"
{real} "$@" >{folder}/lost
echo "Socket timed out on send/recv operation" >&2
exit 1
"""
ONE_CALL = """
import os, sys, trainkit
trainkit.init(sys.argv[1])
print("ON", trainkit.get(trainkit.remote(lambda: os.environ["SLURM_JOB_ID"]).remote()), flush=True)
input()
"""


@needs_slurm
@pytest.mark.slow
def test_a_job_whose_submission_was_not_answered_belongs_to_the_pool(drivers: Any, slurm: Slurm) -> None:
    driver = drivers(ONE_CALL, "slurm://?mem=1200&idle_s=4", sbatch=LOSES_AN_ANSWER)
    assert driver.said("ON") == (driver.folder / "lost").read_text().split()
    slurm.wait(lambda: not driver.queue(), "the job ends when it is idle", 90)


FAILS_OFTEN = """#!/bin/sh
echo >>{folder}/asked
[ $(wc -l <{folder}/asked) -gt 1 ] || echo "Notice: maintenance on Monday"
[ $(wc -l <{folder}/asked) -gt 8 ] && exec {real} "$@"
[ $(wc -l <{folder}/asked) -gt 1 ] && exit 1
exec {real} "$@"
"""


@needs_slurm
@pytest.mark.slow
def test_a_pool_survives_that_slurm_does_not_answer(drivers: Any) -> None:
    driver = drivers(ONE_CALL, "slurm://?mem=1200&idle_s=4", squeue=FAILS_OFTEN)
    asked = driver.folder / "asked"
    assert eventually(lambda: asked.exists() and len(asked.read_text()) >= 9, 120), driver.errors.read_text()
    words = driver.errors.read_text()
    assert "the pool of jobs can't go on now: squeue failed" in words
    assert "submitted for 80 s" not in words  # eight failures within 40 s


@needs_slurm
def test_what_slurm_would_never_run_is_refused_at_the_start(drivers: Any) -> None:
    program = "import sys, trainkit\ntrainkit.init(sys.argv[1])\n"
    driver = drivers(program, "slurm://?partition=nowhere")
    assert driver.process.wait(120) == 1
    assert "invalid partition specified: nowhere" in driver.errors.read_text()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("max_job=3", "no setting 'max_job'. Did you mean 'max_jobs'"),
        ("cpus=two", "cpus must be a whole number, not 'two'"),
        ("time=3&signal_before=90", "time=3 leaves too little time"),
        ("max_hours=5", "max_hours=5 is less than the time=None"),
        ("max_hours=1&time=2:00:00", "less than the time=2:00:00 of one job"),
        ("mem=all", "mem=all: give MB"),
        ("mem=0", "mem=0: give MB"),
        ("gpus=a100", "gpus=a100: give a number, or a kind and a number"),
        ("max_jobs=0", "max_jobs must be at least 1"),
        ("cpus=0", "cpus must be at least 1"),
    ],
)
def test_settings_that_are_wrong(query: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        JobPool(f"slurm://?{query}", {})
    assert words in str(raised.value)
