"""A running experiment is steered from another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trainkit
from tests.conftest import eventually
from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.cli.main import main
from trainkit.errors import StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Failure
from trainkit.tune.results.overview import LogReader
from trainkit.tune.store import ownership
from trainkit.tune.store.ownership import Inbox, ask_to_stop, asker, owner_of

SCRIPT = """
import sys, time
import trainkit
from trainkit import tune

def trainable(config):
    step = 0
    while config["x"] == 1 or step < 25:
        step += 1
        time.sleep(0.05)
        tune.report({"step": step, "loss": config["x"] / step})

if __name__ == "__main__":
    trainkit.init(num_cpus=4)
    run = tune.RunConfig(storage_path=sys.argv[1], name="e", verbose=0)
    config = tune.TuneConfig(metric="loss", mode="min")
    grid = tune.Tuner(trainable, param_space={"x": tune.grid_search([float(x) for x in sys.argv[2:]])},
        tune_config=config, run_config=run).fit()
    print([str(result.status) for result in grid])
"""


@pytest.fixture
def driver(tmp_path):
    started: list[subprocess.Popen[str]] = []

    def start(*xs: int) -> subprocess.Popen[str]:
        script = tmp_path / "driver.py"
        script.write_text(SCRIPT)
        started.append(
            subprocess.Popen(
                [sys.executable, script, tmp_path, *map(str, xs)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(Path(trainkit.__file__).parents[1])},
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def reports(folder: Path) -> int:
    if not (folder / "experiment.sqlite").exists():
        return 0
    with LogReader(folder) as reader:
        return min((trial.iteration for trial in reader.trials()), default=0)


@pytest.mark.external
def test_one_of_four_trials_is_stopped_from_another_shell(driver, tmp_path, capsys):  # rows 1.32 and 2.11
    process = driver(0, 1, 2, 3)
    folder = tmp_path / "e"
    assert eventually(lambda: reports(folder) >= 1)
    assert owner_of(folder) == process.pid
    assert main(["show", str(folder)]) == 0
    assert f"{folder}: runs in process {process.pid}" in capsys.readouterr().out
    assert main(["stop", str(folder), "1"]) == 0
    said = capsys.readouterr().out
    by = f"{ownership.getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"
    assert f"_00001 is TERMINATED: stopped by {by}" in said
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out == "['TERMINATED', 'TERMINATED', 'TERMINATED', 'TERMINATED']\n"
    with LogReader(folder) as reader:
        trials = reader.trials()
        asked = [event for event in reader.events(trials[1].trial_id) if event.kind == "stop asked"]
    assert [event.detail for event in asked] == [by]
    assert [trial.iteration for trial in trials][::2] == [25, 25], "the others finished"
    assert main(["stop", str(folder)]) == 1
    assert "nobody runs" in capsys.readouterr().err


@pytest.mark.external
def test_an_experiment_is_stopped_as_by_ctrl_c(driver, tmp_path, capsys):
    process = driver(1)
    folder = tmp_path / "e"
    assert eventually(lambda: reports(folder) >= 1)
    assert main(["stop", str(folder), "none"]) == 1
    assert "no trial has an id" in capsys.readouterr().err
    assert main(["stop", str(folder)]) == 0
    assert "has ended: stopped by" in capsys.readouterr().out
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "['PENDING']\n"), err
    assert "Tuner.restore" in err
    assert owner_of(folder) is None


@pytest.mark.external
def test_the_owner_finds_what_was_left_and_only_that(tmp_path):
    start = time.time()
    old = ask_to_stop(tmp_path, "old", "somebody")  # left for an owner that has ended
    os.utime(old, (start - 60, start - 60))
    ask_to_stop(tmp_path, "a", "ann")
    inbox = Inbox(tmp_path, now=start)
    assert inbox.look(start) == [ev.StopAsked(start, "ann", "a")]
    ask_to_stop(tmp_path, None, "bob")
    assert inbox.look(start + 0.1) == [], "it looked just now"
    ask_to_stop(tmp_path, "b", "cid")
    asked = inbox.look(start + 1)
    assert [(each.by, each.trial_id) for each in asked] == [("bob", None), ("cid", "b")]
    assert inbox.look(start + 2) == []
    assert list((tmp_path / "commands").iterdir()) == []
    (tmp_path / "commands" / ".half.partial").write_text("{")
    assert inbox.look(start + 3) == []
    assert asker().endswith(f"(pid {os.getpid()})")


@pytest.mark.external
def test_a_wish_that_leaves_the_date_of_its_folder_as_it_was_is_found(tmp_path):
    """The clock of file systems ticks every few milliseconds: enough for a look and a wish."""
    start = time.time()
    inbox = Inbox(tmp_path, now=start)
    folder = tmp_path / "commands"
    folder.mkdir()
    date = folder.stat().st_mtime_ns
    assert inbox.look(start) == []
    ask_to_stop(tmp_path, "a", "ann")
    os.utime(folder, ns=(date, date))
    assert inbox.look(start + 1) == [ev.StopAsked(start + 1, "ann", "a")]


def test_what_is_no_wish_is_told_of_and_harms_nobody(tmp_path, caplog):
    inbox = Inbox(tmp_path, now=0.0)
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "a.json").write_text("{")
    (tmp_path / "commands" / "b.json").write_text("[1]")
    assert inbox.look(1.0) == []
    assert caplog.text.count("it was removed") == 2
    (tmp_path / "commands").rmdir()
    (tmp_path / "commands").write_text("")
    assert inbox.look(2.0) == []
    assert "cannot be read" in caplog.text


def test_a_wish_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "commands").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        ask_to_stop(tmp_path, None, "ann")


def kinds(actions):
    return [type(action).__name__ for action in actions]


def test_a_trial_is_stopped_where_it_stands():
    play = Play(num_samples=5, cpus=2, metric="loss")
    play.started(0)

    def ask(index: int) -> list[ev.Action]:
        play.time += 0.001
        return play.send(ev.StopAsked(play.time, "ann@box (pid 3)", f"test_{index:05d}"))

    assert ask(0) == []
    assert kinds(play.reported(0, {"loss": 1.0})) == ["Stop"]
    assert kinds(play.finished(0)) == ["Release", "Start"]
    assert play.trial(0).reason == "stopped by ann@box (pid 3)"
    assert ask(1) == [], "before it was set up"
    assert kinds(play.started(1)) == ["Stop"]
    play.finished(1)
    assert play.statuses()[1] == "TERMINATED", "though it never reported the metric"
    play.started(2)
    ask(2)
    assert kinds(play.tick(play.plan.grace_s)) == ["Kill", "Release", "Start"], "it did not report"
    assert "killed" in play.trial(2).reason
    before = len(play.records)
    ask(2)
    assert [record.kind for record in play.records[before:]] == ["stop asked"], "it has ended"
    play.send(ev.StopAsked(play.time, "ann@box (pid 3)"))
    assert play.controller.ending == "stopped by ann@box (pid 3)"


def test_a_trial_that_waits_for_its_retry_is_stopped():
    play = Play(num_samples=2, cpus=2, failure=tune.FailureConfig(out_of_memory="retry_alone"))
    play.started(0)
    play.started(1)
    play.send(ev.Failed(*play._who(0), Failure("MemoryError", "", out_of_memory=True)))
    play.send(ev.StopAsked(play.time, "ann", "test_00000"))
    assert (play.trial(0).status, play.trial(0).reason) == ("TERMINATED", "stopped by ann: not run")
    play.reported(1, {}, done=True)
    assert play.controller.done
