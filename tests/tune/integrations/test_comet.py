"""Comet's own client in its offline mode: what it writes is read back from its archives."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from pathlib import Path

import comet_ml
import pytest

from trainkit import tune
from trainkit.air.integrations.comet import CometLoggerCallback

pytestmark = pytest.mark.usefixtures("inline", "quiet")


@pytest.fixture
def quiet(monkeypatch, tmp_path):
    """What Comet keeps of its own lies in the test's folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COMET_LOGGING_CONSOLE", "ERROR")


def offline(**more):
    return CometLoggerCallback(online=False, project_name="p", **more)


def runs_in(folder: Path) -> dict[str, list[dict]]:
    """By key, the messages in all archives, as `comet upload` would send them."""
    runs = defaultdict(list)
    for path in sorted(folder.glob("*.zip"), key=lambda each: each.stat().st_mtime_ns):
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read("experiment.json"))
            lines = archive.read("messages.json").decode().splitlines()
        runs[facts["offline_id"]] += [facts, *(json.loads(line)["payload"] for line in lines)]
    return runs


def losses(messages: list[dict]) -> list[tuple[int, float]]:
    found = [each["metric"] for each in messages if "metric" in each]
    return [(each["step"], each["metricValue"]) for each in found if each["metricName"] == "loss"]


def test_an_experiment_per_trial_which_goes_on_with_the_trial(fit, fails_once, tmp_path):
    space = {"lr": tune.grid_search([1.0, 2.0])}
    grid = fit(fails_once, space, run={"callbacks": [offline(tags=["t"], save_checkpoints=True)]})
    assert grid.num_errors == 2
    assert comet_ml.get_running_experiment() is None
    again = tune.RunConfig(callbacks=[offline()], verbose=0)
    tune.Tuner.restore(str(tmp_path / "e"), fails_once, resume_errored=True, run_config=again).fit()
    runs = runs_in(tmp_path / "e" / "comet")
    assert len(runs) == 2
    assert sorted(losses(each) for each in runs.values()) == [
        [(1, 1.0), (2, 2.0), (3, 3.0)],
        [(1, 2.0), (2, 4.0), (3, 6.0)],
    ]
    for messages in runs.values():
        text = json.dumps(messages)
        assert messages[0]["project_name"] == "p" and '"lr"' in text
        assert '"FAILED"' in text and '"FINISHED"' in text


def test_the_programs_own_experiment_is_left_alone(fit, tmp_path):
    mine = comet_ml.OfflineExperiment(offline_directory=str(tmp_path / "mine"), display_summary_level=0)
    fit(lambda config: {"loss": 1.0}, run={"callbacks": [offline()]})
    assert comet_ml.get_running_experiment() is mine
    mine.end()
