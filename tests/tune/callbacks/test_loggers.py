"""Loggers write in bulk: a second late at most, and whole whenever a trial or the experiment has ended."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from trainkit import tune
from trainkit.tune.callbacks.dispatcher import CallbackDispatcher
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Trial

pytestmark = pytest.mark.usefixtures("inline")


class Bulk(tune.LoggerCallback):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple] = []

    def log_trial_start(self, trial):
        self.heard.append(("start", trial.index))

    def log_trial_results(self, trial, results):
        self.heard.append(("results", trial.index, [result["training_iteration"] for result in results]))

    def log_trial_save(self, trial):
        self.heard.append(("save", trial.index))

    def log_trial_restore(self, trial):
        self.heard.append(("restore", trial.index))

    def log_trial_end(self, trial, failed=False):
        self.heard.append(("end", trial.index, failed))

    def _rewrite_log(self, trial, results):
        self.heard.append(("rewrite", trial.index, len(results)))


def reporting(config):
    for step in range(3):
        tune.report({"loss": step})
    if config["n"] == 1:
        raise ValueError


def test_all_results_come_before_the_word_on_a_trials_end(fit):
    bulk = Bulk()
    fit(reporting, {"n": tune.grid_search([0, 1])}, run={"callbacks": [bulk]}, max_concurrent_trials=1)
    assert bulk.heard == [
        ("start", 0),
        ("results", 0, [1, 2, 3]),
        ("end", 0, False),
        ("start", 1),
        ("results", 1, [1, 2, 3]),
        ("end", 1, True),
    ]


def test_a_retry_finds_the_log_written_and_rewrites_it(fit):
    bulk = Bulk()
    run = {"callbacks": [bulk], "failure_config": tune.FailureConfig(max_failures=1)}
    fit(reporting, {"n": 1}, run=run)
    first = [("start", 0), ("results", 0, [1, 2, 3])]
    assert bulk.heard == [
        *first,
        ("end", 0, False),
        ("rewrite", 0, 0),
        ("restore", 0),
        *first,
        ("end", 0, True),
        ("rewrite", 0, 3),
    ]


def test_a_logger_whose_other_base_calls_no_constructor_of_ours_keeps_results(fit):
    class Other:
        def __new__(cls, *args):
            return object.__new__(cls)

        def __init__(self, name):
            self.name = name

    class Mine(Other, Bulk):
        def __init__(self, name):
            Other.__init__(self, name)
            self.heard = []

    first, second = Mine("a"), Mine("b")
    fit(reporting, {"n": 0}, run={"callbacks": [first, second]})
    assert first.heard == second.heard == [("start", 0), ("results", 0, [1, 2, 3]), ("end", 0, False)]


def result_of(trial: Trial, iteration: int) -> ev.ResultAdded:
    return ev.ResultAdded(trial, 0, iteration, 0.0, {}, {"training_iteration": iteration})


def hub_with(callback: tune.Callback, trials: list[Trial]) -> CallbackDispatcher:
    hub = CallbackDispatcher([callback], trials, lambda trial_id: [])
    hub.setup({}, experiment_path="/nowhere", past=list, lengths=list)
    return hub


def test_what_is_kept_is_written_after_a_second_and_the_loop_is_asked_for_it():
    bulk, one, two = Bulk(), Trial("t_0", 0, {}, "f", "f"), Trial("t_1", 1, {}, "g", "g")
    hub = hub_with(bulk, [one, two])
    assert bulk._refresh_s is None
    hub.step([result_of(one, 1)], time=10.0)
    hub.step([result_of(two, 1)], time=10.5)
    hub.step([result_of(one, 2)], time=10.9)
    assert bulk.heard == []
    assert bulk._refresh_s == 1.0
    hub.step([], time=11.0)
    assert bulk.heard == [("results", 0, [1, 2]), ("results", 1, [1])]
    assert bulk._refresh_s is None
    hub.step([result_of(one, 3)], time=11.1)
    hub.step([], time=12.0)
    assert len(bulk.heard) == 2
    hub.step([], time=12.1)
    assert bulk.heard[-1] == ("results", 0, [3])


def test_a_log_that_cannot_be_written_keeps_no_other_from_it(caplog):
    class Broken(Bulk):
        def log_trial_results(self, trial, results):
            super().log_trial_results(trial, results)
            if trial.index == 0:
                raise OSError("no space left")

    broken, one, two = Broken(), Trial("t_0", 0, {}, "f", "f"), Trial("t_1", 1, {}, "g", "g")
    hub = hub_with(broken, [one, two])
    hub.step([result_of(one, 1), result_of(two, 1)], time=0.0)
    hub.experiment_end(now=lambda: 0.0)
    assert broken.heard[:2] == [("results", 0, [1]), ("results", 1, [1])]
    assert broken.heard[2:] == [("end", 0, False), ("end", 1, False)]
    assert "no space left" in caplog.text


def test_files_are_whole_though_the_loop_raised(fit, tmp_path):
    def stop(trial_id, result):
        if result["loss"] == 2:
            raise SystemExit("from the driver's own loop")
        return False

    with pytest.raises(SystemExit):
        fit(reporting, {"n": 0}, run={"stop": stop})
    (folder,) = (path for path in Path(tmp_path, "e").iterdir() if path.is_dir())
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["loss"] for row in rows] == [0, 1]
    with open(folder / "progress.csv", newline="") as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["0", "1"]


def test_a_row_that_a_kill_cut_off_is_written_again_beside_texts_of_several_lines(fit, restore):
    def trainable(config):
        for text in ('a\nb "c"', "d", "e"):
            tune.report({"text": text})

    (result,) = fit(trainable)
    path = Path(result.path, "progress.csv")
    whole = path.read_bytes()
    for lost in (1, 4, len(whole) // 2):
        path.write_bytes(whole[: whole.rindex(b"\r\n", 0, -lost) + 2] if lost < 4 else whole[:-lost])
        restore(trainable)
        assert path.read_bytes() == whole


def test_files_hold_what_the_results_hold_though_a_retry_failed_earlier(fit):
    """The first attempt's later reports are in neither, whichever way the trial ends."""

    def trainable(config):
        mark = Path(tune.get_context().get_trial_dir(), "mark")
        last = 2 if mark.exists() else 4
        mark.touch()
        for step in range(last):
            tune.report({"step": step})
        if last == 4 or config["fails"]:
            raise ValueError

    space = {"fails": tune.grid_search([False, True])}
    grid = fit(trainable, space, run={"failure_config": tune.FailureConfig(max_failures=1)})
    assert [result.status for result in grid] == ["TERMINATED", "ERROR"]
    for result in grid:
        steps = [report["step"] for report in result.history]
        lines = Path(result.path, "result.json").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == steps == [0, 1]
        with open(Path(result.path, "progress.csv"), newline="") as file:
            assert [int(row["step"]) for row in csv.DictReader(file)] == steps


def test_a_late_key_widens_a_table_with_very_long_texts(fit, monkeypatch):
    monkeypatch.setattr("trainkit.tune.callbacks.loggers.FLUSH_S", 0.0)

    def trainable(config):
        for _ in range(3):
            tune.report({"text": "x" * 200_000})
        tune.report({"text": "y", "late": 1})

    before = csv.field_size_limit()
    (result,) = fit(trainable)
    assert csv.field_size_limit() == before
    header, *rows, last = Path(result.path, "progress.csv").read_text().splitlines()
    assert header.endswith(",late") and [len(row) > 200_000 for row in rows] == [True] * 3
    assert last.endswith(",y,1")
