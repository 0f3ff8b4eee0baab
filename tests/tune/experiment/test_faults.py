"""Ctrl-C to a real driver, and what a restore needs: nothing is lost, nothing comes twice, nobody is left."""

from __future__ import annotations

import ast
import signal
from pathlib import Path

import psutil
import pytest

from tests.conftest import eventually
from tests.tune.experiment.steered import Driver
from trainkit import tune
from trainkit.errors import ConfigError, StoreError
from trainkit.tune.store.reader import ExperimentReader


@pytest.fixture
def driver(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "600")  # to end in order, on a busy machine too
    made = Driver(tmp_path)
    made.start()
    assert eventually(lambda: made.has_begun)
    yield made
    made.kill()


@pytest.mark.external
def test_an_interrupted_experiment_is_gone_on_with(driver):
    """One Ctrl-C ends it in order, with word of how to go on."""
    driver.process.send_signal(signal.SIGINT)
    out, err = driver.process.communicate(timeout=300)
    assert driver.process.returncode == 0, err
    assert {status for status, _ in ast.literal_eval(out)} == {"PENDING"}
    assert "Tuner.restore" in err
    assert str(driver.folder) in err
    before = [trial.iteration for trial in driver.trials()]
    driver.start("restore")
    assert driver.finish() == [("TERMINATED", True)] * 3
    with ExperimentReader(driver.folder) as reader:
        histories = [reader.history(trial.trial_id) for trial in reader.trials()]
    for history in histories:  # each counts on from its checkpoint
        assert [row["n"] for row in history] == list(range(1, len(history) + 1))
    assert all(len(history) >= count for history, count in zip(histories, before, strict=False))


@pytest.mark.external
def test_ctrl_c_twice_ends_at_once(driver):
    (driver.root / "hang").touch()
    assert eventually(lambda: len(list(driver.root.glob("hangs *"))) == 2)
    family = psutil.Process(driver.process.pid).children(recursive=True)
    sent = 0
    while driver.process.poll() is None and sent < 100:  # two that come too fast for it count as one
        driver.process.send_signal(signal.SIGINT)
        sent += 1
        eventually(lambda: driver.process.poll() is not None, seconds=1)
    _, err = driver.process.communicate(timeout=300)  # no trial's step was waited for
    assert sent > 1
    assert driver.process.returncode != 0
    assert "KeyboardInterrupt" in err
    assert eventually(lambda: not any(child.is_running() for child in family)), family


# --- what a restore needs and refuses -------------------------------------------------------------


def objective(config):
    for step in range(4):
        if config["x"] == 2 and not Path("/nowhere").exists() and step == 2 and tune.get_checkpoint() is None:
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_dict({}))
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
