"""`trainkit ls`, `show`, `tail`, `why` and `clean`, on experiments that have ended and one that runs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trainkit
from tests.conftest import run_python
from trainkit import tune
from trainkit.cli.main import main
from trainkit.cli.show import TableOptions, selected
from trainkit.errors import ConfigError
from trainkit.tune.store.writer import ExperimentStore


def trainable(config):
    for step in range(1, 4):
        if config["x"] == 2 and step == 2:
            raise ValueError("two is too much")
        folder = Path(tune.get_context().get_trial_dir(), "scratch")
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_bytes(b"w" * 1000)
        tune.report({"loss": config["x"] / step, "step": step}, checkpoint=tune.Checkpoint(folder))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Iterator[Path]:
    """A folder with an experiment of four trials, of which one fails and one is stopped early."""
    trainkit.init(engine="inline", num_cpus=1)
    root = tmp_path_factory.mktemp("results")

    def stop(trial_id, result):
        return result["config"]["x"] == 3 and result["step"] == 2

    tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search([1, 2, 3, 4])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="e", storage_path=root, verbose=0, stop=stop),
    ).fit()
    yield root
    trainkit.shutdown()


@pytest.fixture
def command(root, monkeypatch, capsys) -> Callable[..., str]:
    """Runs `trainkit` in the folder of experiments."""
    monkeypatch.chdir(root)

    def command(*words: str, code: int = 0) -> str:
        assert main(words) == code
        captured = capsys.readouterr()
        return captured.out + captured.err

    return command


def ageless(table: str) -> str:
    """Without how long ago things were, which differs between two looks."""
    return re.sub(r"(?:[\d.]+ (?:h|min|s)\b\s*)+", "? ", table)


def test_ls_shows_the_experiments_of_a_folder(command, root, monkeypatch, tmp_path):
    told = command("ls", ".")
    assert re.search(
        r"e +ended: all trials have ended +2 finished, 1 stopped, 1 failed +loss=0.333333 of \w+_00000", told
    )
    for alias in ("list-experiments", "lsx"):
        assert ageless(command(alias, str(root))) == ageless(told)
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(root))
    assert ageless(command("ls")) == ageless(told)
    assert "contains no experiment" in command("ls", str(tmp_path))
    assert "is not a folder" in (told := command("ls", "nowhere", code=1)) and "Did you mean" not in told
    (root / "broken").mkdir()
    (root / "broken" / "experiment.sqlite").write_text("no")
    told = command("ls", code=1)
    assert "not an experiment file" in told and "loss=0.333333" in told
    (root / "broken" / "experiment.sqlite").unlink()
    (root / "broken").rmdir()


def test_show_is_a_table_of_the_trials(command, root, monkeypatch):
    told = command("show", "e")  # a relative path
    assert f"{root / 'e'}: ended: all trials have ended" in told
    assert "4 of 4 trials: 2 finished, 1 stopped, 1 failed" in told
    assert "best by last report: loss=0.333333" in told
    assert re.search(r"_00001 +failed +1 +2 +2 +ValueError: two is too much", told)
    assert command("list-trials", str(root / "e")) == told
    assert command("ls", "e") == told, "as `ls` of Ray's command line"
    monkeypatch.chdir("/")
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(root))
    assert command("show", "e") == told, "by its name where experiments are written"


def test_a_table_is_not_folded_where_the_terminal_is_narrow(command, monkeypatch):
    wide = command("show", "e")
    monkeypatch.setenv("COLUMNS", "40")
    assert command("show", "e") == wide
    assert len(wide.splitlines()) == 3 + 1 + 4  # what it is, the heading, a line for each trial


def test_show_sorts_filters_and_writes(command, tmp_path):
    def shown(*words: str) -> list[dict]:
        return json.loads(command("show", "e", "--output", "json", *words))

    assert [row["config/x"] for row in shown("--sort", "loss")] == [1, 4, 3, 2]
    assert [row["config/x"] for row in shown("--sort", "status,config/x", "--desc")] == [4, 3, 1, 2]
    assert [row["config/x"] for row in shown("--filter", "loss < 1.4")] == [1, 4]
    assert [row["config/x"] for row in shown("--filter", "state == failed")] == [2]
    assert [row["config/x"] for row in shown("--limit", "1", "--desc", "--sort", "config/x")] == [4]
    assert shown("--columns", "config/x,step")[0] == {"config/x": 1, "step": 3}
    rows = list(csv.DictReader(io.StringIO(command("show", "e", "-o", "csv", "--columns", "trial_id,loss"))))
    assert [float(row["loss"]) for row in rows] == [1 / 3, 2, 1.5, 4 / 3]
    command("show", "e", "-o", str(tmp_path / "trials.csv"))
    assert len((tmp_path / "trials.csv").read_text().splitlines()) == 5
    assert "there is no column 'lost'" in command("show", "e", "--sort", "lost", code=1)
    assert "Did you mean 'loss'?" in command("show", "e", "--columns", "trial_id,los", code=1)
    for unfinished in ("loss", "loss < ", "loss <=", "loss>="):
        assert "--filter must be a column" in command("show", "e", "--filter", unfinished, code=1)
    assert "0 of them are shown" in command("show", "e", "--filter", "loss > 9")
    assert "are shown" not in command("show", "e")
    assert "must be csv, json, or a file" in command("show", "e", "-o", "a.txt", code=1)
    assert "cannot be written" in command("show", "e", "-o", str(tmp_path / "none" / "a.csv"), code=1)
    assert "is not an experiment" in command("show", "nothing", code=1)


def test_a_column_to_filter_by_may_have_spaces():
    rows = [{"val loss": 1.0}, {"val loss": 3.0}]
    assert selected(rows, TableOptions(condition="val loss <2"))[0] == rows[:1]


@pytest.mark.external
def test_what_the_output_cannot_hold_is_spelled_out(root, tmp_path):
    run = tune.RunConfig(name="e", storage_path=tmp_path, verbose=0)
    tune.Tuner(lambda config: 1.0, param_space={"x": "größe"}, run_config=run).fit()
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join(sys.path)}
    for form in ([], ["-o", "csv"]):
        words = ["-m", "trainkit", "show", tmp_path / "e", "--columns", "config/x", *form]
        assert r"gr\xf6\xdfe" in run_python(*words, env=environment).stdout


@pytest.mark.parametrize("words", [("show", "e", "--limit", "-1"), ("tail", "e", "-n", "x")])
def test_a_number_of_lines_is_none_or_more(command, words, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(*words)
    assert "must be a whole number, 0 or more" in capsys.readouterr().err


def test_what_is_missing_comes_last_however_it_is_sorted():
    rows = [{"a": 1.0}, {"b": 1}, {"a": float("nan")}, {"a": "text"}, {"a": 3}]
    for descending, order in ((False, [1.0, 3]), (True, [3, 1.0])):
        chosen, _ = selected(rows, TableOptions(sort="a", descending=descending))
        assert [row["a"] for row in chosen[:4] if row["a"] in (1.0, 3)] == order
        assert chosen[-1] == {"b": 1}
    with pytest.raises(ConfigError, match="no column"):
        selected(rows, TableOptions(columns="c"))
    assert selected([], TableOptions(columns="c")) == ([], ["c"])


def test_tail_shows_the_last_reports(command):
    assert command("tail", "e", "3").splitlines() == [
        line for line in command("tail", "e").splitlines() if "_00003" in line
    ]
    (last,) = command("tail", "e", "-n", "1", "--no-follow").splitlines()
    assert re.fullmatch(r"\w+_00003  3  loss=1.33333 step=3", last)
    assert "log_to_file" in command("tail", "e", "0", "--printed", code=1)
    assert "needs a trial" in command("tail", "e", "--printed", code=1)


def test_tail_follows_what_a_trial_has_printed(command, root):
    folder = next((root / "e").glob("*_00000*"))
    (folder / "stdout").write_text("a\nb\nhalf a li")
    assert command("tail", "e", "0", "--printed", "-n", "1") == "b\n"
    (folder / "stdout").unlink()


def test_tail_follows_a_running_experiment_to_its_end(root, capsys, tmp_path):
    from trainkit.cli.tail import tail

    store = ExperimentStore.open(root / "e")  # as if this process ran it
    waits: list[float] = []

    class Clock:
        def sleep(self, seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                store.close()

    assert tail(str(root / "e"), None, lines=2, follow=True, printed=False, clock=Clock()) == 0  # type: ignore[arg-type]
    assert len(waits) == 2
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_why_tells_what_was_decided(command):
    told = command("why", "e", "2")
    assert ": stopped: stopped by RunConfig(stop=function)" in told
    assert "configuration: x=3" in told
    assert "attempt 0: started 20" in told
    assert "report 2: STOP, stopped by RunConfig(stop=function)" in told
    told = command("why", "e", "1")
    assert ": failed: ValueError: two is too much" in told
    assert "in trainable" in told
    told = command("why", "e")
    assert "ended: all trials have ended" in told and "began" in told
    assert "fits 4 trials" in command("why", "e", "trainable", code=1)
    assert "no trial has an id" in command("why", "e", "no-id", code=1)
    told = command("why", "anything", code=1)
    assert "'anything' is not an experiment: " in told and "/anything nor in /" in told
    assert "Nothing in your" in told and "`trainkit why EXPERIMENT TRIAL`" in told


@pytest.mark.parametrize("verb", ["ls", "show", "tail", "why", "pause", "clean"])
def test_a_name_that_is_nearly_right_is_told_the_right_one(command, root, tmp_path, monkeypatch, verb):
    shutil.copytree(root / "e", tmp_path / "here" / "mnist_small")
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "here"))
    assert command(verb, "mnist_smal", code=1).count("Did you mean 'mnist_small'?") == 1
    path = str(tmp_path / "here" / "mnist_smal")
    assert f"Did you mean '{path}l'?" in command(verb, path, code=1)


def test_stop_refuses_what_nobody_runs(command):
    assert "no process runs the experiment" in command("stop", "e", "1", "--yes", code=1)
    told = command("stop", "e", "--force", code=1)
    assert "--force end sessions: leave them out to stop an experiment" in told


def test_clean_leaves_the_checkpoints_of_the_best(command, root, monkeypatch):
    def checkpoints() -> dict[str, int]:
        counts = {}
        for path in sorted((root / "e").glob("*_0000?*")):
            counts[path.name.partition("_0000")[2][0]] = len(list(path.glob("checkpoint_*")))
        return counts

    assert checkpoints() == {"0": 3, "1": 1, "2": 2, "3": 3}
    monkeypatch.setattr("sys.stdin", io.StringIO("no\n"))
    told = command("clean", "e", "--keep-best", code=1)
    assert "Remove 6 checkpoints of 3 trials, 5.86 KiB" in told and "nothing was removed" in told
    store = ExperimentStore.open(root / "e")
    assert "in use by the process" in command("clean", "e", "--keep-best", "--yes", code=1)
    store.close()
    assert "removed 6 checkpoints" in command("clean", "e", "--keep-best", "--yes")  # row 1.10
    assert checkpoints() == {"0": 3, "1": 0, "2": 0, "3": 0}
    grid = tune.Tuner.restore(
        root / "e", trainable, run_config=tune.RunConfig(stop={"step": 9})
    ).get_results()
    assert [len(result.best_checkpoints) for result in grid] == [3, 0, 0, 0]
    assert "nothing to remove" in command("clean", "e", "--keep-best", "-y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert "removed 3 checkpoints" in command("clean", "e")
