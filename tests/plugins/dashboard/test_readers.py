"""Readers of an experiment's file: what they read again, and that they hold up nobody."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import trainkit
from tests.conftest import eventually
from tests.plugins.dashboard.browser import commanded
from tests.plugins.dashboard.conftest import Asker, asker_of, finished
from trainkit import tune
from trainkit.plugins.dashboard.experiments.board import TrialTable
from trainkit.plugins.dashboard.experiments.reading import RowReader
from trainkit.tune.results.overview import Overview
from trainkit.tune.store.schema import FILENAME, VERSION

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(trainkit.__file__).parents[2])}


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """A finished experiment: two trials are equally good, and one has no number."""
    losses = [2.0, 1.0, float("nan"), 1.0, 3.0]
    places = tune.grid_search(list(range(5)))
    return finished(tmp_path, "e", lambda config: {"loss": losses[config["place"]]}, place=places)


@contextmanager
def written(folder: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(folder / FILENAME)) as file, file:
        yield file


def report(file: sqlite3.Connection, trial_id: str, attempt: int, iteration: int, loss: float) -> None:
    file.execute(
        "INSERT INTO results SELECT ?, ?, ?, max(seq) + 1, json_object('loss', ?) FROM results",
        (trial_id, attempt, iteration, loss),
    )


def test_of_an_attempt_that_goes_on_only_new_reports_are_read(five: Path) -> None:
    table = TrialTable(five)
    trial_id = table.page(limit=1)[1][0]["trial_id"]
    with written(five) as file:
        file.execute("UPDATE trials SET status = 'RUNNING' WHERE trial_id = ?", (trial_id,))
        file.execute("INSERT INTO events SELECT max(seq) + 1, 1.0, 'PENDING', ?, '' FROM events", (trial_id,))
        report(file, trial_id, 0, 2, 1.5)
    table.refresh()
    assert (table.row(trial_id)["best"], table.row(trial_id)["last"]) == (1.5, 1.5)
    with written(five) as file:
        file.execute("UPDATE results SET metrics = '{\"loss\": -9}' WHERE iteration = 1")
        report(file, trial_id, 0, 3, 1.75)
    table.refresh()
    assert (table.row(trial_id)["best"], table.row(trial_id)["last"]) == (1.5, 1.75), "-9 was read before"
    with written(five) as file:  # another attempt takes back what came after the first report
        file.execute("UPDATE trials SET attempt = 1 WHERE trial_id = ?", (trial_id,))
        report(file, trial_id, 1, 2, 4.0)
    table.refresh()
    assert (table.row(trial_id)["best"], table.row(trial_id)["last"]) == (-9, 4.0)
    whole = TrialTable(five).row(trial_id)
    assert whole | {"changed": 0} == table.row(trial_id) | {"changed": 0}


def curve(folder: Path, trial_id: str) -> list[tuple[float, float]]:
    with RowReader(folder) as reader:
        return reader.curve(trial_id, "loss", "training_iteration")


def test_of_a_curve_only_new_reports_are_read_until_another_attempt_takes_some_back(five: Path) -> None:
    trial_id = TrialTable(five).page(limit=1)[1][0]["trial_id"]
    assert curve(five, trial_id) == [(1, 2.0)]
    with written(five) as file:
        file.execute("UPDATE results SET metrics = '{\"loss\": -9}' WHERE iteration = 1")
        report(file, trial_id, 0, 2, 1.5)
    assert curve(five, trial_id) == [(1, 2.0), (2, 1.5)], "the first was read before"
    with written(five) as file:
        report(file, trial_id, 1, 2, 4.0)
    assert curve(five, trial_id) == [(1, -9), (2, 4.0)]
    with written(five) as file:
        file.execute("UPDATE experiment SET value = '77.0' WHERE key = 'created'")
        file.execute("UPDATE results SET metrics = '{\"loss\": 5}'")
    assert curve(five, trial_id) == [(1, 5), (2, 5)], "another experiment"


@pytest.mark.parametrize("descending", [False, True])
def test_a_page_by_last_values_is_that_of_the_table_in_memory(five: Path, descending: bool) -> None:
    whole = TrialTable(five)
    whole.page(search="0")
    _, rows = whole.page(sort="last", descending=descending)
    assert [row["index"] for row in rows] == ([4, 0, 3, 1, 2] if descending else [1, 3, 0, 4, 2])
    for offset in range(6):
        for limit in (1, 2, 5):
            page = TrialTable(five).page(offset=offset, limit=limit, sort="last", descending=descending)
            assert page == (5, rows[offset : offset + limit])


WRITES = """
import sys, time
from pathlib import Path
import trainkit
from trainkit import tune

root = Path(sys.argv[1])

def trainable(config):
    for step in range(2000):
        tune.report({"loss": config["x"] / (step + 1), "text": "x" * 200})
    Path(root, f"has written {config['x']}").touch()
    while not Path(root, "go on").exists():
        time.sleep(0.02)
    for step in range(100):
        tune.report({"loss": 0.0})

trainkit.init(num_cpus=2)
tune.Tuner(trainable, param_space={"x": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
    run_config=tune.RunConfig(storage_path=root, name="e", verbose=0)).fit()
"""


@contextmanager
def written_by(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    program = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


@pytest.mark.external
def test_a_dashboard_that_is_killed_while_it_reads_holds_up_nobody(tmp_path: Path) -> None:
    """The experiment goes on, and its log is folded in as if nobody had read."""
    over = threading.Event()

    def look(ask: Asker, path: str) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                ask("GET", f"/api/experiments/e/{path}")

    with (
        written_by([sys.executable, "-c", WRITES, str(tmp_path)]) as writer,
        commanded(tmp_path) as (server, address),
    ):
        assert eventually(lambda: len(list(tmp_path.glob("has written *"))) == 2, 300)
        paths = ("charts/curves", "charts/history", "trials?sort=best", "events")
        threads = [threading.Thread(target=look, args=(asker_of(address), path)) for path in paths]
        for each in threads:
            each.start()
        try:
            with closing(sqlite3.connect(tmp_path / "e" / FILENAME, timeout=0)) as file:

                def is_read() -> bool:
                    """Return True if somebody reads, so that the log can't begin anew."""
                    file.execute(f"PRAGMA user_version = {VERSION}")  # so that something is to be folded in
                    return bool(file.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0])

                def stopped_while_it_reads() -> bool:
                    server.send_signal(signal.SIGSTOP)
                    if is_read():
                        return True
                    server.send_signal(signal.SIGCONT)
                    return False

                assert eventually(stopped_while_it_reads, 120)
                assert is_read(), "it holds the log up for as long as it is there"
                over.set()
                server.kill()
                server.wait()
                assert not is_read()
        finally:
            over.set()
            for each in threads:
                each.join()
        (tmp_path / "go on").touch()
        _, err = writer.communicate(timeout=300)
        assert writer.returncode == 0, err
    seen = Overview.of(tmp_path / "e", 0.0)
    assert seen.counted == {"finished": 2} and [each.iteration for each in seen.trials] == [2100, 2100]
    assert sorted(path.name for path in (tmp_path / "e").glob(f"{FILENAME}*")) == [FILENAME]
