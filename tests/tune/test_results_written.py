"""Values that stoppers, callbacks and trials write into a result stay in it: metrics, tables and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.errors import TuneError

pytestmark = pytest.mark.usefixtures("inline")


class Budget(tune.Stopper):
    def __init__(self, end=3):
        self.spent, self.end = 0, end

    def __call__(self, trial_id, result):
        self.spent += 1
        result["spent"] = self.spent
        return self.spent >= self.end


class Adds(tune.Callback):
    def on_trial_result(self, result, **info):
        result["twice"] = 2 * result["x"]


def counting(config):
    for x in range(9):
        tune.report({"x": x})


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_added_to_a_result_stays_in_it(fit, kept):
    run = {"stop": Budget(), "callbacks": [Adds()]}
    if not kept:
        run |= {"storage_path": None, "name": None}
    (result,) = fit(counting, run=run)
    assert (result.metrics["spent"], result.metrics["twice"]) == (3, 4)
    assert [(each["spent"], each["twice"]) for each in result.history] == [(1, 0), (2, 2), (3, 4)]
    assert list(result.metrics_dataframe["spent"]) == [1, 2, 3]
    if kept:
        lines = Path(result.path, "result.json").read_text().splitlines()
        assert [(json.loads(line)["spent"], json.loads(line)["twice"]) for line in lines][-1] == (3, 4)
        again = tune.Result.from_path(result.path)
        assert (again.metrics["spent"], again.metrics["twice"]) == (3, 4)


def endless_list():
    cyclic = []
    cyclic.append(cyclic)
    return cyclic


@pytest.mark.parametrize(
    ("by", "value"),
    [("stop", object()), ("callbacks", endless_list()), ("stop", 1 << 2000)],
    ids=["object", "cycle", "large"],
)
def test_an_added_value_that_cannot_be_kept_is_left_out_and_told_once(fit, caplog, by, value):
    class Odd(tune.Stopper, tune.Callback):
        def __call__(self, trial_id, result):
            result |= {"odd": value, "even": 2}
            return False

        def on_trial_result(self, trial, result, **info):
            self(trial.trial_id, result)

    (result,) = fit(counting, run={by: [Odd()]})
    assert (result.status, result.metrics["x"], result.metrics["even"]) == ("TERMINATED", 8, 2)
    assert all("odd" not in each and each["even"] == 2 for each in result.history)
    assert [record.getMessage()[:5] for record in caplog.records].count("'odd'") == 1


def test_should_checkpoint_stays_in_the_result(fit):
    class Saves(tune.Trainable):
        def step(self):
            return {
                "x": self.iteration,
                "should_checkpoint": self.iteration == 1,
                "done": self.iteration == 2,
            }

        def save_checkpoint(self, folder):
            Path(folder, "state").write_text("1")

    (result,) = fit(Saves)
    assert [each["should_checkpoint"] for each in result.history] == [False, True, False]
    assert next(report["x"] for _, report in result.best_checkpoints) == 1


def test_a_search_without_end_ends_where_all_fail_at_once(fit):
    def fails(config):
        raise KeyError("data")

    with pytest.raises(
        TuneError, match=r"12 of 1\d trials have failed, and no trial has reported: (.|\n)*KeyError"
    ):
        fit(fails, {"x": tune.uniform(0, 1)}, num_samples=-1)


def test_a_search_without_end_goes_on_beside_a_trial_that_is_slow_to_report():
    play = Play(num_samples=-1, cpus=2, started=1)
    for index in range(1, 30):
        play.started(index)
        play.failed(index)
    assert not play.controller.ending
    play.failed(0)
    assert play.controller.ending == "too many failed trials"
