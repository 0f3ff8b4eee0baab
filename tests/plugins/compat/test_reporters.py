"""Reporters in place of the console: Ray's two, with their arguments, and a user's own."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.compat import reporters
from trainkit.tune.core.trial import Failure, Trial, TrialStatus

pytestmark = pytest.mark.usefixtures("inline")


def trainable(config):
    if config.get("bad"):
        raise ValueError("bad luck")
    for step in range(2):
        tune.report({"loss": config["x"] / (step + 1), "extra": 7, "note": "text"})


SPACE = {"x": tune.grid_search([4.0, 2.0, 8.0]), "opt": {"lr": 0.5}}


def printed(capsys) -> str:
    return capsys.readouterr().out


def report(fit, reporter, space=SPACE, metric="loss", **settings):
    return fit(trainable, space, metric=metric, run={"verbose": 1, "progress_reporter": reporter}, **settings)


def test_a_users_own_reporter_is_asked_and_told(fit, capsys):
    class Mine(tune.ProgressReporter):
        def __init__(self):
            self.asked, self.told, self.info = 0, [], {}

        def setup(self, start_time=None, total_samples=None, metric=None, mode=None, **info):
            self.info = {"total": total_samples, "metric": metric, "mode": mode, **info}

        def should_report(self, trials, done=False):
            self.asked += 1
            return done or len(trials) == 3

        def report(self, trials, done, *sys_info):
            print([trial.status for trial in trials], *sys_info)
            self.told.append((len(trials), done))

    mine = Mine()
    report(fit, mine)
    assert mine.info["total"] == 3
    assert (mine.info["metric"], mine.info["mode"]) == ("loss", "min")
    assert mine.told[-1] == (3, True)
    assert len(mine.told) < mine.asked
    assert "In use: " in printed(capsys)


def test_it_shows_the_trials_the_best_and_where(fit, capsys, tmp_path):
    report(fit, tune.CLIReporter())
    last = printed(capsys).split("== Status ==")[-1]
    assert "Number of trials: 3/3 (3 TERMINATED)" in last
    assert re.search(
        r"Current best trial by last report: \w+_00001 with loss=1 and parameters={'x': 2.0, 'opt/lr': 0.5}",
        last,
    )
    assert f"Result folder: {tmp_path}/e" in last
    header = next(line for line in last.splitlines() if line.startswith("Trial name"))
    # Parameters, then usual metrics, then those found; no texts.
    assert header.split() == "Trial name status x lr iter total time (s) loss extra".split()
    assert sum("TERMINATED" in line for line in last.splitlines()) == 4


@pytest.mark.parametrize("form", ["list", "dictionary"])
def test_columns_are_chosen(fit, capsys, form):
    chosen = {
        "list": {"metric_columns": ["loss"], "parameter_columns": ["opt/lr"]},
        "dictionary": {"metric_columns": {"loss": "LOSS"}, "parameter_columns": {"opt/lr": "rate"}},
    }[form]
    report(fit, tune.CLIReporter(**chosen))
    header = [line for line in printed(capsys).splitlines() if line.startswith("Trial name")][-1]
    assert (
        header.split()
        == ("Trial name status opt/lr loss" if form == "list" else "Trial name status rate LOSS").split()
    )


@pytest.mark.parametrize(("seconds", "least", "most"), [(3600, 2, 2), (0, 5, 99)])
def test_reports_come_no_more_often_than_asked(fit, capsys, seconds, least, most):
    report(fit, tune.CLIReporter(max_report_frequency=seconds))
    assert least <= printed(capsys).count("== Status ==") <= most  # always the first, and the last


def test_without_intermediate_tables_there_is_one_at_the_end(fit, capsys):
    report(fit, tune.CLIReporter(print_intermediate_tables=False, max_report_frequency=0))
    out = printed(capsys)
    assert out.count("Number of trials") > 3
    assert out.count("Trial name") == 1


# --- tables of trials made by hand ----------------------------------------------------------------


def made(count: int) -> list[Trial]:
    trials = [
        Trial(f"t_{n}", n, {"width": n}, f"f_{n}", f"f_{n}", status=TrialStatus.TERMINATED)
        for n in range(count)
    ]
    for trial in trials:
        trial.last_result = {"loss": abs(trial.index - 5.2), "training_iteration": 1}
    return trials


def table(trials, folder="/e", **arguments) -> list[str]:
    reporter = tune.CLIReporter(metric="loss", mode="min", **arguments)
    reporter.setup(total_samples=len(trials), experiment_path=folder)
    return "\n".join(each.text() for each in reporter._tables(trials, True)).splitlines()


def test_rows_are_limited_also_at_the_end():
    lines = table(made(100), max_progress_rows=7)
    assert sum(line.startswith("f_") for line in lines) == 7
    assert lines[-1] == "... 93 more trials not shown"


def test_the_best_are_first_where_asked():
    lines = table(made(30), sort_by_metric=True, max_progress_rows=3)
    assert [line.split()[0] for line in lines if line.startswith("f_")] == ["f_5", "f_6", "f_4"]


def test_failed_trials_have_a_progress_table_their_own():
    trials = made(6)
    for trial in trials[:4]:
        trial.status, trial.failures, trial.failure = TrialStatus.ERROR, 2, Failure("ValueError", "no")
    lines = table(trials, max_error_rows=3)
    start = lines.index("Number of errored trials: 4")
    assert [line.split() for line in lines[start + 2 : start + 5]] == [
        [f"f_{n}", "2", f"/e/f_{n}/error.txt"] for n in range(3)
    ]
    assert lines[-1] == "... 1 more failed trials not shown"


@pytest.mark.parametrize(
    "wrong",
    [{"max_progress_rows": -1}, {"max_column_length": 1}, {"max_report_frequency": "5"}, {"mode": "best"}],
)
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        tune.CLIReporter(**wrong)


# --- notebooks ------------------------------------------------------------------------------------


def test_the_notebooks_reporter_updates_one_output(fit, capsys, monkeypatch):
    shown, updates, cleared = [], [], []

    def display(output, *, raw, display_id):
        shown.append(output)
        return SimpleNamespace(update=lambda output, raw: updates.append(output))

    monkeypatch.setattr(reporters, "notebook_display", lambda: display)
    front_end = SimpleNamespace(clear_output=lambda wait: cleared.append(wait))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(display=front_end))
    monkeypatch.setitem(sys.modules, "IPython.display", front_end)
    report(fit, tune.JupyterNotebookReporter(overwrite=True, max_report_frequency=0))
    assert (len(shown), cleared) == (1, [True])
    assert "Number of trials: 3/3 (3 TERMINATED)" in updates[-1]["text/html"]
    assert "<table>" in updates[-1]["text/html"]
    assert "3 TERMINATED" in updates[-1]["text/plain"]
    assert printed(capsys) == ""
