"""What a user sees while it runs: a block in a terminal, lines in a pipe, one output in a notebook."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import trainkit
from trainkit import tune
from trainkit.cli.main import main
from trainkit.plugins.dashboard.experiments.board import Board
from trainkit.tune.callbacks import console
from trainkit.tune.core.trial import Trial, TrialStatus, state_of
from trainkit.tune.display import (
    ExperimentProgress,
    NotebookDisplay,
    Table,
    notebook_display,
    progress_table,
)
from trainkit.tune.results.overview import Overview

PACKAGE = f"{Path(trainkit.__file__).parent}/"
"""Beginning of the path of each of the package's files."""

pytestmark = pytest.mark.usefixtures("inline")

SPACE = {"x": tune.uniform(0, 1)}


def three(config):
    for step in range(3):
        tune.report({"loss": 1.0 / (step + 1), "nested": {"acc": 0.5}})


def once(config):
    return {"loss": config["x"]}


def shown_in_a_terminal(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(console, "REFRESH_S", 0.0)
    monkeypatch.setattr(console.ConsoleCallback, "_open", lambda self: console.TerminalDisplay())


def fails(config):
    tune.report({"loss": 1.0})
    raise ValueError("no luck\nand a second line")


# --- what comes out -------------------------------------------------------------------------------


def test_verbose_0_prints_nothing(fit, capsys):  # row 1.22
    def says_nothing_fails(config):
        if config["x"] > 0.5:
            raise ValueError
        return {"loss": 1.0}

    space = {"x": tune.grid_search([0.1, 0.9])}
    fit(says_nothing_fails, space, metric="loss", run={"progress_reporter": tune.CLIReporter()})
    assert capsys.readouterr() == ("", "")


def test_in_a_pipe_there_are_at_most_two_lines_a_trial(fit, capsys):  # row 1.22
    fit(three, metric="loss", num_samples=20, run={"verbose": 1})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 2 * 20
    assert all(len(line) <= console.MAX_WIDTH for line in lines[1:])
    assert "20 finished" in lines[-2]
    assert "best by last report: loss=0.333333 at iteration 3" in lines[-1]


def test_best_means_the_same_wherever_it_is_told(fit, capsys, tmp_path):
    def trainable(config):
        yield from ({"eval": {"loss": value}} for value in config["net"]["values"])

    values = tune.grid_search([(0.1, 0.9), (0.5, 0.4), (0.6, 0.5), (0.2, float("nan"))])
    reporter = tune.CLIReporter()
    for name, run in (("lines", {}), ("table", {"progress_reporter": reporter})):
        grid = fit(
            trainable,
            {"net": {"values": values}},
            metric="eval/loss",
            run={"verbose": 1, "name": name, **run},
        )
        best = grid.get_best_result().trial_id
        assert best == grid[1].trial_id
        out = capsys.readouterr().out
        if name == "lines":
            words = f"best by last report: eval/loss=0.4 at iteration 2 of {best}: net/values=(0.5, 0.4)"
            assert out.splitlines()[-1] == words
        else:
            assert f"Current best trial by last report: {best} with eval/loss=0.4" in out
        assert Overview.of(tmp_path / name, 0.0).best[0] == best  # of `trainkit ls`, `show`, `clean`
        assert Board(tmp_path).summary(tmp_path / name)["best"]["trial_id"] == best  # of the dashboard


def test_where_all_trials_have_failed_none_is_called_the_best(fit, capsys, tmp_path, monkeypatch):
    def run(name, **settings):
        fit(fails, num_samples=2, metric="loss", run={"verbose": 1, "name": name, **settings})
        return capsys.readouterr().out

    none = "best by last report: none, all trials have failed"
    assert none in run("lines").splitlines()
    assert "Current best trial" not in run("table", progress_reporter=tune.CLIReporter())
    shown_in_a_terminal(monkeypatch)
    last = run("block").rpartition("ended after ")[2]
    assert none in last and "best last loss" not in last
    assert main(["show", str(tmp_path / "lines")]) == 0
    assert none in capsys.readouterr().out
    assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("2 failed  none, all trials have failed") == 3
    assert Board(tmp_path).summary(tmp_path / "lines")["best"] is None  # of the dashboard


def test_a_failed_trials_line_names_the_place_and_the_traceback_stands_below_once_for_each_error(fit, capsys):
    fit(fails, num_samples=3, run={"verbose": 1})
    lines = capsys.readouterr().out.splitlines()
    number = fails.__code__.co_firstlineno + 2
    failed = [line for line in lines if " failed after 1 report: " in line]
    assert len(failed) == 3
    assert all(line.endswith(f"ValueError: no luck (test_console.py:{number} in fails)") for line in failed)
    begins = [place for place, line in enumerate(lines) if line == "  Traceback (most recent call last):"]
    assert len(begins) == 1
    assert lines[begins[0] + 1] == f'    File "{__file__}", line {number}, in fails'
    assert "  ValueError: no luck" in lines and "  and a second line" in lines
    assert not [line for line in lines if PACKAGE in line], "frames of trainkit"
    command = shlex.split(lines[-1].partition("traceback of the latest failed trial: trainkit ")[2])
    assert main(command) == 0
    assert "and a second line" in capsys.readouterr().out


def test_in_a_pipe_a_failure_that_is_retried_has_a_line(fit, capsys, tmp_path):
    def trainable(config):
        if tune.get_checkpoint() is not None:
            return {"loss": 0.5}
        if config["saves"]:
            tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint(tmp_path / "state"))
        raise ValueError("no luck\nand a second line")

    (tmp_path / "state").mkdir()
    run = {"verbose": 1, "name": "retried", "failure_config": tune.FailureConfig(max_failures=1)}
    fit(trainable, {"saves": tune.grid_search([True, False])}, metric="loss", run=run)
    lines = capsys.readouterr().out.splitlines()
    error = f"ValueError: no luck (test_console.py:{trainable.__code__.co_firstlineno + 5} in trainable)"
    retry = "retry 1 of 1 after ValueError, from"
    assert sorted(line.partition(" ")[2] for line in lines if re.match(r"\w+_0000[01] ", line)) == [
        f"failed after 0 reports: {error}",
        f"failed after 0 reports: {error}; {retry} the beginning",
        f"failed after 1 report loss=1: {error}; {retry} iteration 1",
        "finished after 2 reports loss=0.5",
    ]


def test_in_a_pipe_long_trials_are_told_of_now_and_then(capsys):  # row 1.22
    seen = console.ConsoleCallback(live=False)
    info = {"resources": {"CPU": 2.0}, "resources_used": {}, "total_samples": 3}
    trials = [trial(index, TrialStatus.RUNNING) for index in range(3)]
    fixed = {"metric": None, "mode": None, "experiment_path": "/somewhere", "past": tuple, "trials": trials}
    seen.setup(time=0.0, **fixed, **info)
    for second in range(1, 36_000):
        seen.on_step_end(second, trials, time=float(second), **info)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(";")[0] for line in lines] == ["30 s gone", "1 min 30 s gone", "3 min 30 s gone"]
    assert "3 of 3 trials: 3 running" in lines[0]


@pytest.mark.parametrize(("verbose", "per_trial"), [(2, "report 2: loss=0.5"), (3, "nested/acc=0.5")])
def test_more_verbose_tells_of_each_report(fit, capsys, verbose, per_trial):
    fit(three, metric="loss", num_samples=2, run={"verbose": verbose})
    lines = capsys.readouterr().out.splitlines()
    assert sum(" report " in line for line in lines) == 6
    assert any(per_trial in line for line in lines)


def test_in_a_terminal_one_block_is_updated(fit, capsys, monkeypatch):  # row 1.22
    shown_in_a_terminal(monkeypatch)
    grid = fit(once, SPACE, metric="loss", num_samples=30, search_alg="random", run={"verbose": 1})
    out = capsys.readouterr().out
    last = out[out.rindex("30 of 30 trials") :]
    assert "30 finished" in last
    assert "16 of 30 trials, best last loss (min) first" in last
    assert "best by last report: loss=" in last
    assert ": x=0." in last
    assert last.count("\n") < 30
    shown = [float(value) for value in re.findall(r"finished +1 +(0\.\d+)", last)]
    everyone = sorted(result.metrics["loss"] for result in grid)
    assert shown == pytest.approx(everyone[:16], rel=1e-4)
    assert "ended after " in out


def test_markup_in_a_configuration_is_shown_as_it_is(fit, capsys, monkeypatch):
    shown_in_a_terminal(monkeypatch)
    fit(lambda config: 1.0, {"s": tune.choice(["[bold]x[/bold] [/]"])}, metric="_metric", run={"verbose": 1})
    assert "[/bold]" in capsys.readouterr().out


SCRIPT = """
import os, signal, sys, trainkit
from trainkit import tune
trainkit.init(engine="inline", num_cpus=1)
def trainable(config):
    print("a line of a trial's")
    for step in range(3):
        tune.report({"loss": config["n"]})
    if config["n"] == 2:
        os.kill(os.getpid(), signal.SIGINT)
        tune.report({"loss": config["n"]})
space, best = {"n": tune.grid_search([1, 2, 3])}, tune.TuneConfig(metric="loss", mode="min")
run = tune.RunConfig(storage_path=sys.argv[1], name="e")
tune.Tuner(trainable, param_space=space, tune_config=best, run_config=run).fit()
"""


@pytest.mark.external
def test_in_a_real_terminal(tmp_path):  # row 1.22
    """Interrupted too: the cursor is there again, the block says why it ended, a warning how to go on."""
    ours, theirs = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "LINES": "50", "NO_COLOR": "1"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            printed += part
            if not part:
                break
        os.close(ours)
        assert process.wait(300) == 0
    out = printed.decode()
    assert out.count("a line of a trial's") == 2
    last = out[out.rindex("ended after ") :]
    assert ": interrupted" in last.splitlines()[0]
    assert "best by last report: loss=1 at iteration 3 of" in last
    assert "\x1b[?25h" in last
    assert "resume by Tuner.restore(" in last
    assert last.count("finished") >= 1
    assert "Ended early" not in last


WAITS = """
import os, sys, threading, time, trainkit
from fsspec.implementations.local import LocalFileSystem
from trainkit import tune
from trainkit.plugins.integrations.tracking import TrackerCallback
trainkit.init(engine="inline", num_cpus=1)
folder, what = sys.argv[1:]
def waits():
    while not os.path.exists(folder + "/go"):
        time.sleep(0.01)
class Service(TrackerCallback):
    def connect(self): pass
    def open_run(self, told): return True
    def write(self, told, results): pass
    def close_run(self, told, status): waits()
class Far(LocalFileSystem):
    def put_file(self, *args, **kwargs):
        waits()
        super().put_file(*args, **kwargs)
where = {"callbacks": [Service("the service", 60)], "storage_path": folder}
if what == "copy":
    where = {"storage_filesystem": Far(), "storage_path": folder + "/far"}
run = tune.RunConfig(name="e", **where)
tune.Tuner(lambda config: {"loss": 1.0}, run_config=run).fit()
"""


@pytest.mark.external
@pytest.mark.parametrize("what", ["the service to receive the remaining data", "the copy at "])
def test_what_the_end_waits_for_is_said_and_counts_in_the_total(tmp_path, what):
    command = [sys.executable, "-c", WAITS, str(tmp_path), what.split()[1]]
    environment = {**os.environ, "TRAINKIT_RESULTS_DIR": str(tmp_path / "here")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "waiting for" in line:
                (tmp_path / "go").touch()
        assert process.wait(300) == 0
    assert [f"waiting for {what}" in line for line in lines] == [False, False, True, False], lines
    assert float(re.fullmatch(r"1 finished in ([\d.]+) s\n", lines[-1])[1]) >= 1.0
    (file,) = tmp_path.glob("**/here/e/experiment.sqlite*" if "copy" in what else "e/experiment.sqlite*")
    assert file.name == "experiment.sqlite"
    assert tune.ResultGrid.from_path(file.parent).num_terminated == 1
    assert len(list(file.parent.glob("experiment.sqlite*"))) == 1  # to read it leaves nothing either


class Displayed:
    """Stands for what a notebook's front end keeps: one output and its updates."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.shown = 0

    def __call__(self, output, *, raw, display_id):
        assert raw
        assert display_id
        self.shown += 1
        self.outputs.append(output)
        return SimpleNamespace(update=lambda output, raw: self.outputs.append(output))


def test_in_a_notebook_one_output_is_updated(fit, capsys, monkeypatch):  # row 1.22
    displayed = Displayed()
    monkeypatch.setattr(console, "notebook_display", lambda: displayed)
    monkeypatch.setattr(console, "REFRESH_S", 0.0)
    fit(once, SPACE, metric="loss", num_samples=4, run={"verbose": 1})
    assert displayed.shown == 1
    assert len(displayed.outputs) > 2
    last = displayed.outputs[-1]
    assert "<table>" in last["text/html"]
    assert "4 of 4 trials: 4 finished" in last["text/html"]
    assert "4 of 4 trials: 4 finished" in last["text/plain"]  # for other front ends
    assert "<" not in last["text/plain"]
    assert capsys.readouterr().out == ""


def test_a_real_kernels_display_is_found_and_updated(monkeypatch):
    ipython = pytest.importorskip("IPython", reason="needs IPython, which notebooks bring")
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    try:
        assert notebook_display() is None  # a terminal's IPython
        monkeypatch.setattr(type(shell), "kernel", object(), raising=False)
        display = notebook_display()
        assert display is ipython.display.display
        with capture_output() as captured:
            notebook = NotebookDisplay(display)
            notebook.show(Table(lines=["one"]))
            notebook.show(Table(lines=["two"]))
        first, second = captured.outputs
        assert first.data == {"text/html": "<div>one</div>", "text/plain": "one"}
        assert second.data["text/plain"] == "two"
        assert second.update
    finally:
        InteractiveShell.clear_instance()


# --- what is counted ------------------------------------------------------------------------------


def trial(index: int, status: TrialStatus) -> Trial:
    return Trial(f"t_{index}", index, {}, f"f_{index}", f"f_{index}", status=status)


def test_a_trial_that_runs_again_is_counted_once():
    again = trial(0, TrialStatus.RUNNING)
    seen = ExperimentProgress(None, None, 0.0)
    for status in (TrialStatus.RUNNING, TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.TERMINATED):
        again.status = status
        seen.look([again])
        assert seen.counts() == f"1 {state_of(status, again.reason)}"


def test_the_time_left_is_told_where_it_is_known():
    info = {"time": 1.0, "total_samples": 9, "resources": {"CPU": 2.0}, "resources_used": {"CPU": 1.0}}
    picture = progress_table(ExperimentProgress(None, None, 0.0), {**info, "remaining_s": 90.0}, "/somewhere")
    assert picture.lines[0] == "1.0 s gone, about 1 min 30 s left"
    for unknown in (info, {**info, "remaining_s": None}):
        assert (
            progress_table(ExperimentProgress(None, None, 0.0), unknown, "/somewhere").lines[0]
            == "1.0 s gone"
        )


def test_a_terminal_that_has_few_letters_gets_lines_that_spell_out_the_others(fit, monkeypatch):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    data = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(data, encoding="ascii"))
    monkeypatch.setenv("TERM", "xterm")

    def fails(config):
        raise ValueError("größe")

    fit(fails, run={"verbose": 1})
    assert b"ValueError: gr\\xf6\\xdfe (test_console.py:" in data.getvalue()


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_be_drawn_anew_gets_lines(fit, capsys, monkeypatch, term):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", term)

    def fails(config):
        raise ValueError("two\nlines")

    fit(fails, num_samples=2, run={"verbose": 1})
    out = capsys.readouterr().out
    assert out.count("failed after 0 reports: ValueError: two (test_console.py:") == 2
    assert out.count("Traceback (most recent call last)") == 1
    assert "\x1b" not in out
