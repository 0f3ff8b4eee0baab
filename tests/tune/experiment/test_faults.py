"""Real signals to a real driver: nothing acknowledged is lost, nothing comes twice, nobody is left."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.conftest import eventually
from tests.tune import programs
from trainkit import tune
from trainkit.errors import ConfigError, StoreError
from trainkit.tune.store.reader import ExperimentReader

SCRIPT = """
import json, os, sys, time
from pathlib import Path
import trainkit
from trainkit import tune

STEPS = {steps}

def held(experiment):
    # Whether it is to go no further than it is, so that it is surely not over when a signal comes.
    try:
        limit = int((experiment.parent / "limit").read_text())
    except (FileNotFoundError, ValueError):  # ValueError: it is just being written
        return False
    return sum(path.read_text().count("\\n") for path in experiment.glob("*/acknowledged")) >= limit

def trainable(config):
    checkpoint = tune.get_checkpoint()
    start = int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
    trial_dir = Path(tune.get_context().get_trial_dir())
    scratch = trial_dir / "scratch"
    scratch.mkdir(exist_ok=True)
    try:
        for step in range(start + 1, STEPS + 1):
            time.sleep({pause})
            while held(trial_dir.parent):
                time.sleep(0.002)
            saved = None
            if step % 3 == 0:
                (scratch / "step").write_text(str(step))
                saved = tune.Checkpoint(scratch)
            tune.report({{"loss": config["x"] / step, "step": step}}, checkpoint=saved)
            with open(trial_dir / "acknowledged", "a") as file:  # report() has returned: this is a promise
                file.write(f"{{step}} {{config['x'] / step!r}}\\n")
    finally:
        (trial_dir / "cleaned").touch()

def tuner(folder):
    return tune.Tuner(
        trainable,
        param_space={{"x": tune.uniform(0, 1), "kind": tune.choice([dict, list])}},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples={samples}, seed=5, max_concurrent_trials={at_once},
            scheduler=tune.schedulers.ASHAScheduler(max_t=STEPS, reduction_factor=2, brackets=2),
        ),
        run_config=tune.RunConfig(storage_path=folder, name="e", verbose={verbose}),
    )

if __name__ == "__main__":
    trainkit.init(num_cpus=2)
    folder = sys.argv[1]
    if (Path(folder) / "e").exists():
        space = {{"x": tune.uniform(0, 1), "kind": tune.choice([dict, list])}}
        grid = tune.Tuner.restore(Path(folder) / "e", trainable, param_space=space).fit()
    else:
        grid = tuner(folder).fit()
    rows = [[r.trial_id, r.config["x"], r.config["kind"].__name__, str(r.status), r.reason] for r in grid]
    print("ENDED", json.dumps(rows))
"""


class Driver:
    """A program that tunes, in a process of its own."""

    def __init__(self, tmp_path: Path, *, steps=9, samples=8, at_once=2, pause=0.005, verbose=0) -> None:
        self.folder = tmp_path
        self.script = tmp_path / "driver.py"
        self.script.write_text(
            SCRIPT.format(steps=steps, samples=samples, at_once=at_once, pause=pause, verbose=verbose)
        )
        self.process: subprocess.Popen[str] | None = None

    @property
    def experiment(self) -> Path:
        return self.folder / "e"

    def start(self) -> subprocess.Popen[str]:
        self.process = programs.begin(self.script, self.folder)
        return self.process

    def limit(self, reports: int) -> None:
        """Let the trials go on until so many reports are acknowledged, and no further."""
        (self.folder / "limit").write_text(str(reports))

    def free(self) -> None:
        """Let them go on to their end."""
        (self.folder / "limit").unlink(missing_ok=True)

    def finish(self) -> list[list]:
        self.free()
        out, err = self.start().communicate(timeout=300)
        assert self.process.returncode == 0, err
        return outcome(out)

    def acknowledged(self) -> int:
        return sum(path.read_text().count("\n") for path in self.experiment.glob("*/acknowledged"))


def outcome(out: str) -> list[list]:
    return json.loads(
        next(line for line in out.splitlines() if line.startswith("ENDED")).removeprefix("ENDED ")
    )


@pytest.fixture
def driver(tmp_path):
    drivers = []

    def make(**settings) -> Driver:
        drivers.append(Driver(tmp_path, **settings))
        return drivers[-1]

    yield make
    for each in drivers:
        if each.process is not None and each.process.poll() is None:
            each.process.kill()
            each.process.communicate()


def check_nothing_lost_nothing_twice(driver: Driver) -> None:
    with ExperimentReader(driver.experiment) as reader:
        for trial in reader.trials():
            folder = driver.experiment / trial.dirname
            history = reader.history(trial.trial_id)
            iterations = [row["training_iteration"] for row in history]
            assert iterations == list(range(1, len(iterations) + 1))
            assert all(row["step"] == row["training_iteration"] for row in history)
            if (folder / "acknowledged").exists():
                for line in (folder / "acknowledged").read_text().splitlines():
                    step, loss = line.split()
                    assert history[int(step) - 1]["loss"] == float(loss)
            lines = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
            assert [row["training_iteration"] for row in lines] == iterations
            assert len((folder / "progress.csv").read_text().splitlines()) == len(history) + 1


@pytest.mark.external
def test_a_killed_driver_leaves_nobody_and_is_gone_on_with(driver):
    killed = driver(steps=9, samples=6)
    killed.limit(7)
    process = killed.start()
    assert eventually(lambda: killed.acknowledged() >= 6)
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    assert eventually(lambda: not any(child.is_running() for child in family)), family
    before = killed.acknowledged()
    with ExperimentReader(killed.experiment) as reader:
        assert sum(len(results) for _, results in reader.histories()) >= before
    ended = killed.finish()
    assert [row[3] for row in ended] == ["TERMINATED"] * 6
    check_nothing_lost_nothing_twice(killed)
    assert killed.finish() == ended  # nothing is left to do


@pytest.mark.external
def test_ctrl_c_once_ends_in_order_and_says_how_to_go_on(driver, monkeypatch):
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "300")  # to end in order, on a busy machine too
    interrupted = driver(steps=2000, samples=4, pause=0.02)  # nothing ends before
    process = interrupted.start()
    assert eventually(lambda: interrupted.acknowledged() >= 5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Tuner.restore" in err
    assert str(interrupted.experiment) in err
    statuses = [row[3] for row in outcome(out)]
    assert "PENDING" in statuses
    assert set(statuses) <= {"PENDING", "TERMINATED"}
    for scratch in interrupted.experiment.glob("trainable_*/scratch"):  # its function had begun
        assert (scratch.parent / "cleaned").exists()  # the user's finally block ran
    check_nothing_lost_nothing_twice(interrupted)


@pytest.mark.external
def test_an_interrupted_experiment_is_gone_on_with(driver):
    interrupted = driver(steps=9, samples=6)
    interrupted.limit(4)
    process = interrupted.start()
    assert eventually(lambda: interrupted.acknowledged() >= 2)
    process.send_signal(signal.SIGINT)
    interrupted.free()
    process.communicate(timeout=300)
    assert process.returncode == 0
    ended = interrupted.finish()
    assert [row[3] for row in ended] == ["TERMINATED"] * 6
    check_nothing_lost_nothing_twice(interrupted)


@pytest.mark.external
def test_ctrl_c_twice_ends_at_once(driver, monkeypatch):
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "600")
    interrupted = driver(steps=200, samples=4, pause=600)
    process = interrupted.start()
    assert eventually(lambda: len(list(interrupted.experiment.glob("*/scratch"))) == 2)
    family = psutil.Process(process.pid).children(recursive=True)
    sent = 0
    while process.poll() is None and sent < 100:  # two that come too fast for it count as one
        process.send_signal(signal.SIGINT)
        sent += 1
        eventually(lambda: process.poll() is not None, seconds=1)
    _, err = process.communicate(timeout=300)  # no trial's step was waited for
    assert sent > 1
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert eventually(lambda: not any(child.is_running() for child in family)), family


# --- what a restore needs and refuses -------------------------------------------------------------


def objective(config):
    for step in range(4):
        if config["x"] == 2 and not Path("/nowhere").exists() and step == 2 and tune.get_checkpoint() is None:
            scratch = Path(tune.get_context().get_trial_dir(), "scratch")
            scratch.mkdir(exist_ok=True)
            tune.report({"step": step}, checkpoint=tune.Checkpoint(scratch))
            raise RuntimeError("fails without a checkpoint")
        tune.report({"step": step})


@pytest.mark.parametrize(
    ("how", "attempts"), [("resume_errored", [1, 2, 3, 4, 5, 6, 7]), ("restart_errored", [1, 2, 3])]
)
def test_failed_trials_are_gone_on_with_or_started_again(inline, fit, restore, how, attempts):
    grid = fit(objective, {"x": tune.grid_search([1, 2])})
    assert [result.status for result in grid] == ["TERMINATED", "ERROR"]
    untouched = restore(objective)
    assert [result.status for result in untouched] == ["TERMINATED", "ERROR"]
    again = restore(objective, **{how: True})
    assert again[1].status == ("TERMINATED" if how == "resume_errored" else "ERROR")
    assert [row["training_iteration"] for row in again[1].history] == attempts
    assert again[0].history == grid[0].history


def test_a_restore_says_what_it_must_be_given_again(inline, fit, tmp_path):
    path = tmp_path / "e"
    fit(lambda c: 1.0, {"a": tune.choice([dict])})
    with pytest.raises(ConfigError, match=r"give the space again.*param_space"):
        tune.Tuner.restore(path, lambda c: 1.0)
    tune.Tuner.restore(path, lambda c: 1.0, param_space={"a": tune.choice([dict])}).fit()
    path = tmp_path / "callbacks"
    fit(lambda c: 1.0, run={"name": "callbacks", "callbacks": [tune.Callback()]})
    with pytest.raises(ConfigError, match=r"callbacks=Callback"):
        tune.Tuner.restore(path, lambda c: 1.0)
    tune.Tuner.restore(path, lambda c: 1.0, run_config=tune.RunConfig(verbose=0)).fit()
    with pytest.raises(StoreError, match=r"has no experiment"):
        tune.Tuner.restore(tmp_path / "nothing", lambda c: 1.0)
    assert tune.Tuner.can_restore(path)
    assert not tune.Tuner.can_restore(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="contradict"):
        tune.Tuner.restore(path, lambda c: 1.0, True, True, True)
