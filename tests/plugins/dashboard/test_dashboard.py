"""The dashboard's server: what it answers about finished, running and damaged experiments."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import eventually
from tests.plugins.dashboard.conftest import DESCRIPTION, HOSTILE, Asker, finished, served, told
from trainkit import tune
from trainkit.errors import DashboardError
from trainkit.plugins.dashboard import stream
from trainkit.plugins.dashboard.experiments import board
from trainkit.plugins.dashboard.experiments.board import Board, TrialTable
from trainkit.plugins.dashboard.experiments.reading import NotFoundError, RowReader, experiments
from trainkit.plugins.dashboard.openapi import reference
from trainkit.plugins.dashboard.server import ENDPOINTS, Dashboard
from trainkit.plugins.dashboard.stream import ExperimentWatch, Since
from trainkit.tune.core.metrics import flatten
from trainkit.tune.results.overview import LogReader, Overview

ONE = "/experiments/first%20one"


def ids(ask: Asker) -> list[str]:
    return [row["trial_id"] for row in ask.get(f"{ONE}/trials")["rows"]]


def test_the_list_and_one_experiment(ask: Asker) -> None:
    (seen,) = ask.get("/experiments")
    assert (seen["metric"], seen["mode"]) == ("eval/loss", "min")
    counts = seen["counts"]  # the scheduler stops one or two, by the order in which they report
    assert counts["failed"] == 3 and counts["finished"] + counts["stopped"] == 3
    assert seen["trials"] == seen["total"] == 6
    assert not seen["running"] and seen["owner"] is None and seen["state"].startswith("ended: ")
    assert seen["best"]["value"] == 0.25 and seen["best"]["config"]["x"] == 1.0
    one = ask.get(ONE)
    assert {name: one[name] for name in seen} == seen
    assert one["columns"]["config"] == ["x", "kind", "odd", HOSTILE]
    assert one["columns"]["metrics"] == ["eval/loss", "nan", HOSTILE]
    assert "time_total_s" in one["columns"]["automatic"]
    assert one["settings"]["num_samples"] == 1 and "ASHA" in json.dumps(one["settings"]["scheduler"])
    assert one["space"]["x"] == "grid_search([1.0, 2.0, 3.0])"


def test_a_page_of_trials_is_sorted_searched_and_cut(ask: Asker) -> None:
    def order(query: str) -> list[int]:
        return [row["index"] for row in ask.get(f"{ONE}/trials?{query}")["rows"]]

    assert order("") == [0, 1, 2, 3, 4, 5]
    assert order("descending=true") == [5, 4, 3, 2, 1, 0]
    assert order("sort=config/x&descending=true")[:2] == [5, 4]
    assert order("sort=best") == [0, 2, 4, 1, 3, 5]  # trials without a value come last, either way
    assert order("sort=best&descending=true")[3:] == [5, 3, 1]
    assert order("sort=metrics/eval/loss")[0] == 0 and order("sort=metrics/nan") == [0, 1, 2, 3, 4, 5]
    assert order("search=ALERT(1)") == [0, 1, 2, 3, 4, 5] and order("search=valueerror") == [1, 3, 5]
    assert order("search=no+such+text") == []
    assert order("status=ERROR&offset=1&limit=1") == [3]
    assert ask.get(f"{ONE}/trials?status=failed&limit=1")["total"] == 3
    for wrong in ("sort=none", "sort=config"):
        assert "is not a column" in ask.get(f"{ONE}/trials?{wrong}", 404)["error"]
    for wrong in (
        "limit=1001",
        "limit=-1",
        "offset=x",
        "status=DONE",
        "descending=1",
        "lmit=3",
        "limit=1&limit=2",
    ):
        assert ask.get(f"{ONE}/trials?{wrong}", 400)["error"]


def test_one_trial_with_all_that_is_known(ask: Asker) -> None:
    rows = ask.get(f"{ONE}/trials")["rows"]
    good = ask.get(f"{ONE}/trials/{rows[0]['trial_id']}")
    assert (
        good["nested"]["odd"] == [{"(2, 3)": 4}]
        and good["reports"] == 4
        and good["last"] == good["best"] == 0.25
    )
    assert good["metrics"]["nan"] == "NaN" and good["metrics"][HOSTILE] == 4
    assert any("cutoff" in each["words"] for each in good["decisions"])
    assert [each["reports"] for each in good["attempts"]] == [4] and good["failure"] is None
    assert [each["kind"] for each in good["events"]] == ["TERMINATED"] and good["ended"] >= good["started"]
    bad = ask.get(f"{ONE}/trials/{rows[1]['trial_id']}")
    assert bad["status"] == "ERROR" and bad["failure"]["message"] == "<script>alert(1)</script>"
    assert bad["error"] == "ValueError: <script>alert(1)</script>"
    history = ask.get(f"{ONE}/trials/{rows[0]['trial_id']}/history")
    assert [report["eval"]["loss"] for report in history] == [1.0, 0.5, pytest.approx(1 / 3), 0.25]


def test_what_a_trial_printed_and_wrote(ask: Asker) -> None:
    one = f"{ONE}/trials/{ids(ask)[0]}"
    out, err = ask.get(f"{one}/logs")["files"]
    assert (out["name"], err["name"]) == ("stdout", "stderr")
    assert out["lines"] == ["plain line", HOSTILE] and not out["cut"]
    assert ask.get(f"{one}/logs?search=PLAIN")["files"][0]["lines"] == ["plain line"]
    assert ask.get(f"{one}/logs?lines=1")["files"][0]["lines"] == [HOSTILE]
    assert "must be at least 1" in ask.get(f"{one}/logs?lines=0", 400)["error"]
    entries = {each["name"]: each for each in ask.get(f"{one}/files")["entries"]}
    assert {"params.json", "result.json", "stdout"} <= entries.keys()
    reply = ask("GET", f"/api{one}/files/params.json")
    assert reply.status == 200 and reply.json["x"] == 1.0
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Content-Disposition"].startswith("attachment")


def test_a_line_of_ten_megabytes_is_cut(tmp_path: Path) -> None:
    from trainkit.plugins.dashboard.texts import MAX_LINE, last_lines

    path = tmp_path / "stdout"
    path.write_bytes(b"first\n" + b"\xff" * 10_000_000 + b"\nlast\n\npart")
    (seen,) = last_lines([path], "", 500)
    assert [len(line) for line in seen["lines"]] == [5, MAX_LINE + 3, 4, 0, 4]
    assert seen["lines"][0] == "first" and seen["lines"][2:] == ["last", "", "part"] and not seen["cut"]
    (few,) = last_lines([path], "", 2)
    assert few["lines"] == ["", "part"] and few["cut"]
    (short,) = last_lines([path], "first", 1, max_line=3)
    assert short["lines"] == ["fir..."] and not short["cut"]
    assert last_lines([path], "", 0)[0]["lines"] == []


def test_the_log_of_the_experiment(ask: Asker) -> None:
    seen = ask.get(f"{ONE}/events")
    assert seen["events"][0]["kind"] == "began" and seen["last"] == seen["events"][-1]["seq"]
    later = ask.get(f"{ONE}/events?after={seen['events'][2]['seq']}")
    assert later["events"] == seen["events"][3:]
    assert ask.get(f"{ONE}/events?after={seen['last']}") == {"events": [], "last": seen["last"]}


def test_all_trials_as_a_file(ask: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ask.get(f"{ONE}/trials")["rows"]
    monkeypatch.setattr("trainkit.plugins.dashboard.api.MAX_PAGE", 4)  # rows are read in two parts
    assert ask("GET", f"/api{ONE}/export?format=json").json == rows
    reply = ask("GET", f"/api{ONE}/export")
    table = list(csv.DictReader(io.StringIO(reply.body.decode())))
    assert [row["config/x"] for row in table] == ["1.0", "1.0", "2.0", "2.0", "3.0", "3.0"]
    assert table[0]["metrics/eval/loss"] == "0.25" and table[1]["error"].startswith("ValueError")
    assert ask.get(f"{ONE}/export?format=xls", 400)["error"]


def test_notes_are_kept_beside_the_experiment(ask: Asker, root: Path) -> None:
    trial = f"{ONE}/trials/{ids(ask)[0]}"
    before = (root / "first one" / "experiment.sqlite").read_bytes()
    assert ask.checked("PUT", f"{ONE}/note", body={"text": HOSTILE}) == {"text": HOSTILE}
    ask.checked("PUT", f"{trial}/note", body={"text": "of a trial"})
    assert ask.get(ONE)["note"] == HOSTILE and ask.get(trial)["note"] == "of a trial"
    ask.checked("PUT", f"{ONE}/note", body={"text": ""})
    assert ask.get(ONE)["note"] == "" and ask.get(trial)["note"] == "of a trial"
    assert (root / "first one" / "experiment.sqlite").read_bytes() == before
    with ThreadPoolExecutor(8) as threads:  # of many at once, each is kept
        noted = {trial_id: f"of {trial_id}" for trial_id in ids(ask)}
        for trial_id, text in noted.items():
            threads.submit(ask.checked, "PUT", f"{ONE}/trials/{trial_id}/note", 200, {"text": text})
    assert {trial_id: ask.get(f"{ONE}/trials/{trial_id}")["note"] for trial_id in noted} == noted
    ask.checked("PUT", f"{ONE}/note", 400, {"text": 3})
    ask.checked("PUT", f"{ONE}/note", 400, {})
    ask.checked("PUT", f"{ONE}/note", 409, {"text": "x" * 20_001})
    with served(root, read_only=True) as reader:
        assert reader.get("/status")["read_only"]
        reader.checked("PUT", f"{ONE}/note", 403, {"text": "x"})
        assert reader.get(ONE)["note"] == ""


def test_each_chart_is_a_figure_or_says_why_not(ask: Asker) -> None:
    kinds = ask.get("/status")["charts"]
    assert {"curves", "history", "parallel", "rungs", "timeline"} <= set(kinds)
    for kind in ("curves", "history", "parallel", "rungs", "timeline", "edf", "slice"):
        assert ask.get(f"{ONE}/charts/{kind}")["data"]
    assert "objectives" in ask.get(f"{ONE}/charts/pareto", 409)["error"]
    ask.get(f"{ONE}/charts/none", 404)


def test_what_is_not_there(ask: Asker) -> None:
    for path in (
        "/experiments/none",
        f"{ONE}/trials/none",
        f"{ONE}/trials/none/history",
        f"{ONE}/trials/none/logs",
    ):
        assert " has no " in ask.get(path, 404)["error"]
    for path in ("/api/nowhere", "/nowhere", "/static/nowhere.js", "/api/experiments/..%2F..%2Fetc"):
        reply = ask("GET", path)
        assert reply.status == 404 and reply.json["error"]
    assert ask("DELETE", "/api/experiments").status == 405


def test_the_page_and_its_script(ask: Asker) -> None:
    page = ask("GET", "/", headers={})
    assert page.status == 200 and page.headers["Content-Type"].startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    script = ask("GET", "/static/plotly.min.js", headers={})
    assert script.status == 200 and b"Plotly" in script.body
    again = ask("GET", "/static/plotly.min.js", headers={"If-None-Match": script.headers["ETag"]})
    assert again.status == 304


def test_the_description_names_every_endpoint(ask: Asker) -> None:
    assert ask.get("/openapi.json") == json.loads(json.dumps(DESCRIPTION))


def test_the_page_of_the_documentation_names_every_endpoint() -> None:
    page = Path(__file__).parents[3] / "docs" / "tuning" / "dashboard.md"
    assert reference(ENDPOINTS) in page.read_text(), f"put this there:\n{reference(ENDPOINTS)}"


def test_a_damaged_experiment_does_not_hide_the_others(ask: Asker, root: Path) -> None:
    broken = root / "broken"
    broken.mkdir()
    try:
        (broken / "experiment.sqlite").write_bytes(b"no database" * 50)
        seen = {each["name"]: each for each in ask.get("/experiments")}
        assert "is not an experiment file" in seen["broken"]["problem"] and not seen["first one"]["problem"]
        assert "is not an experiment file" in ask.get("/experiments/broken", 409)["error"]
        ask.get("/experiments/broken/trials", 409)
    finally:
        (broken / "experiment.sqlite").unlink()
        broken.rmdir()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Asker, list[tune.ResultGrid]]]:
    """A dashboard and an experiment with two trials that report until they are let go."""
    (tmp_path / "go").mkdir()

    def trainable(config: dict[str, Any]) -> None:
        while not (tmp_path / "go" / "on").exists():
            tune.report({"loss": config["x"]})

    grids: list[tune.ResultGrid] = []
    tuner = tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=tmp_path / "all", name="running", verbose=0),
    )
    thread = threading.Thread(target=lambda: grids.append(tuner.fit()))
    thread.start()
    try:
        assert eventually(lambda: (tmp_path / "all" / "running" / "experiment.sqlite").exists(), 60)
        with served(tmp_path / "all") as ask:
            assert eventually(lambda: statuses(ask) == ["RUNNING"] * 2, 60)
            yield ask, grids
    finally:
        (tmp_path / "go" / "on").touch()
        thread.join()


def statuses(ask: Asker) -> list[str]:
    return [row["status"] for row in ask.get("/experiments/running/trials")["rows"]]


def test_row_2_11_a_trial_of_a_running_program_is_stopped(running: Any) -> None:
    ask, grids = running
    one = ask.get("/experiments/running")
    assert one["running"] and one["owner"] == os.getpid() and one["state"] == f"runs in process {os.getpid()}"
    first = ask.get("/experiments/running/trials")["rows"][0]["trial_id"]
    ask.checked("POST", "/experiments/running/stop", 404, {"trial": "none"})
    ask.checked("POST", "/experiments/running/stop", 400, {"trial": 3})
    answer = ask.checked("POST", "/experiments/running/stop", body={"trial": first})
    assert answer["verb"] == "stop" and answer["arguments"] == {"trial": first} and answer["done"]
    assert answer["by"].endswith(", by the dashboard")
    assert eventually(lambda: statuses(ask) == ["TERMINATED", "RUNNING"], 60)
    events = ask.get("/experiments/running/events")["events"]
    (told,) = [each for each in events if each["kind"] == "command"]
    assert (told["seq"], told["by"]) == (answer["seq"], answer["by"])
    assert ask.checked("POST", "/experiments/running/stop")["done"]
    assert eventually(lambda: bool(grids), 60)
    # The experiment can be restored: what was stopped with it waits to be gone on with.
    assert [str(result.status) for result in grids[0]] == ["TERMINATED", "PENDING"]
    assert ask.get("/experiments/running")["owner"] is None
    assert "no process runs the experiment" in ask.checked("POST", "/experiments/running/stop", 409)["error"]


def test_a_dashboard_that_only_reads_steers_nothing(root: Path) -> None:
    with served(root, read_only=True) as ask:
        assert "--read-only" in ask.checked("POST", f"{ONE}/stop", 403)["error"]


def test_a_stream_tells_what_changes(running: Any) -> None:
    ask, _ = running
    first = ask.get("/experiments/running/trials")["rows"][0]["trial_id"]
    heard = told(ask, "experiment=running", lambda heard: any(each["rows"] for each in heard[1:]))
    assert heard[0]["summary"]["running"] and heard[0]["rows"] == heard[0]["events"] == []
    assert heard[0]["more"], "what changed since the page was made, or while nobody listened, is to be read"
    later = [row for each in heard[1:] for row in each["rows"]]
    # A change of the summary alone may come first.
    assert "trials" in {part for each in heard[1:] for part in each["changed"]}
    assert {row["status"] for row in later} == {"RUNNING"}
    assert all(each["time"] >= row["metrics"]["timestamp"] for each in heard[1:] for row in each["rows"])

    asked: list[int] = []

    def stopped(heard: list[Any]) -> bool:
        if heard and not asked:
            asked.append(1)
            ask.checked("POST", "/experiments/running/stop", body={"trial": first})
        ended = any(event["kind"] == "TERMINATED" for each in heard for event in each["events"])
        return ended and heard[-1]["summary"]["counts"] == {"running": 1, "stopped": 1}

    heard = told(ask, "experiment=running", stopped)
    assert {"events", "summary"} <= {part for each in heard[1:] for part in each["changed"]}
    ended = {row["trial_id"]: row["status"] for each in heard for row in each["rows"]}
    assert ended[first] == "TERMINATED"


def test_a_stream_of_all_experiments(ask: Asker) -> None:
    (seen,) = told(ask, "", lambda heard: len(heard) == 1)
    assert seen["changed"] == ["experiments"] and seen["experiments"] == ask.get("/experiments")
    ask.get("/stream?experiment=none", 404)


def same_as_the_file(folder: Path, table: TrialTable) -> None:
    """The table says of every trial what the library's own reader says."""
    table.refresh()
    seen = Overview.of(folder, 0.0)
    rows = table.page(limit=1000)[1]
    assert [row["trial_id"] for row in rows] == [trial.trial_id for trial in seen.trials]
    with LogReader(folder) as reader:
        times = reader.times()
        last = reader.last_values(seen.metric) if seen.metric else {}
    for row, trial in zip(rows, seen.trials, strict=True):
        assert (row["status"], row["reason"]) == (trial.status, trial.reason)
        assert row["reports"] == trial.iteration and row["last"] == last.get(trial.trial_id)
        assert (row["started"], row["ended"]) == times[trial.trial_id]
        assert json.dumps(row["config"]) == json.dumps(flatten(trial.config))


def test_a_running_experiment_is_followed(tmp_path: Path) -> None:
    """What was read step by step is what is read at once, at any time and at the end."""

    def trainable(config: dict[str, Any]) -> None:
        for step in range(1, 30):
            tune.report({"loss": config["x"] / step})
            if config["x"] == 3 and step == 2:
                raise RuntimeError("once")

    tuner = tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search(list(range(12)))},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            storage_path=tmp_path, name="e", verbose=0, failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
    thread = threading.Thread(target=tuner.fit)
    thread.start()
    folder = tmp_path / "e"
    assert eventually(lambda: (folder / "experiment.sqlite").exists(), 60)
    table = TrialTable(folder)
    generations = []
    while thread.is_alive():
        generations.append(table.refresh())
    thread.join()
    same_as_the_file(folder, table)
    whole = TrialTable(folder)
    same_as_the_file(folder, whole)
    assert generations == sorted(generations) and generations[-1] > 1
    assert [row | {"changed": 0} for row in table.page()[1]] == [
        row | {"changed": 0} for row in whole.page()[1]
    ]
    # Nothing stays open, which would keep the writer from folding its log in.
    opened = [each.path for each in psutil.Process().open_files()]
    assert not [path for path in opened if path.startswith(str(folder / "experiment.sqlite"))]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A finished experiment with three trials."""
    return finished(tmp_path, "e", lambda config: {"loss": config["x"]}, x=tune.grid_search([3, 1, 2]))


def go_on_with_all(folder: Path) -> None:
    """Write into the file of an experiment that all of its trials wait again, for another reason."""
    with sqlite3.connect(folder / "experiment.sqlite") as connection:
        connection.execute("UPDATE trials SET reason = 'changed'")
        connection.execute(
            "INSERT INTO events SELECT (SELECT max(seq) FROM events) + trial_index + 1, 1.0, 'PENDING', "
            "trial_id, '' FROM trials"
        )
    connection.close()


def test_a_page_of_an_experiment_that_has_replaced_another(three: Path, tmp_path: Path) -> None:
    table = TrialTable(three)
    assert table.page(sort="best")[0] == 3, "all of them are known"
    other = finished(tmp_path, "other", lambda config: {"loss": 1.0}, x=tune.grid_search([1, 2]))
    shutil.rmtree(three)
    shutil.move(other, three)
    assert table.page(sort="best")[0] == 2


def test_only_the_trials_of_a_page_are_read(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[str] | None] = []
    rows = RowReader.rows

    def noted(reader: RowReader, metric: Any, mode: Any, ids: Any, *so_far: Any) -> Iterator[tuple[Any, ...]]:
        read.append(None if ids is None else sorted(ids))
        return rows(reader, metric, mode, ids, *so_far)

    monkeypatch.setattr(RowReader, "rows", noted)
    table = TrialTable(three)
    table.refresh()
    assert read == []
    total, (first,) = table.page(limit=1)
    assert (total, first["config"]["x"], read.pop()) == (3, 3, [first["trial_id"]])
    _, (best,) = table.page(limit=1, sort="last")
    assert (best["last"], read.pop()) == (1, [best["trial_id"]])
    assert [row["last"] for row in table.page(sort="last", descending=True)[1]] == [3, 2, 1]
    read.clear()
    assert [row["index"] for row in table.page(sort="last", descending=True, offset=1)[1]] == [2, 1]
    assert table.row(first["trial_id"]) == first and read == [], "all of them are known"
    with pytest.raises(NotFoundError):
        table.row("none")
    assert [row["last"] for row in table.page(sort="metrics/loss", search="loss")[1]] == [1, 2, 3]
    assert read[-1] is None
    by_last = TrialTable(three)
    assert by_last.page(sort="last", descending=True) == (3, table.page(sort="last", descending=True)[1])


def test_of_many_changed_trials_those_that_were_shown_are_read_again(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TrialTable(three)
    (shown,) = table.page(limit=1, offset=1)[1]
    generation = table.refresh()
    go_on_with_all(three)
    monkeypatch.setattr(board, "FEW", 1)
    assert table.refresh() > generation
    rows, more = table.changed_since(generation, 1)
    assert more, "who shows a page asks for it again"
    (again,) = [row for row in table.page()[1] if row["trial_id"] == shown["trial_id"]]
    assert (again["reason"], again["ended"]) == ("changed", None) and again["changed"] > generation
    assert {row["reason"] for row in table.page()[1]} == {"changed"} and len(rows) == 1


def note(folder: Path, count: int) -> None:
    """Write entries into the log of an experiment that change no trial."""
    with sqlite3.connect(folder / "experiment.sqlite") as connection:
        for number in range(count):
            connection.execute(
                "INSERT INTO events SELECT max(seq) + 1, 1.0, 'noted', NULL, ? FROM events", (str(number),)
            )
    connection.close()


def test_entries_of_the_log_are_told_though_no_trial_has_changed(three: Path) -> None:
    watch = ExperimentWatch(Board(three.parent), three)
    since, first = watch(Since())
    assert first is not None and first["events"] == []
    number = 2 * stream.MAX_EVENTS + 7
    note(three, number)
    heard: list[Any] = []
    for _ in range(20):
        time.sleep(stream.EVERY_S / 2)
        since, change = watch(since)
        if change is not None:
            assert change["changed"] == ["events"] and len(change["events"]) <= stream.MAX_EVENTS
            heard += change["events"]
        if len(heard) >= number:
            break
    assert [each["detail"] for each in heard] == [str(each) for each in range(number)]
    assert watch(since) == (since, None)


def test_texts_of_any_length_are_short_in_a_row_and_whole_in_a_trial(tmp_path: Path) -> None:
    long = "\u00e9<b>" * 100_000

    def trainable(config: dict[str, Any]) -> None:
        tune.report({"loss": 1.0, "text": long, "nested": {"more": [long]}})
        raise ValueError(long)

    finished(tmp_path, "e", trainable, x=long, many=list(range(5_000)))
    with served(tmp_path) as ask:
        (row,) = ask.get("/experiments/e/trials")["rows"]
        assert len(json.dumps(row)) < 20_000
        assert row["metrics"]["text"].startswith(long[:1000]) and row["last"] == 1.0
        one = ask.get(f"/experiments/e/trials/{row['trial_id']}")
        assert one["nested"]["x"] == long and one["failure"]["message"] == long
        (report,) = ask.get(f"/experiments/e/trials/{row['trial_id']}/history")
        assert report["text"] == long and report["nested"]["more"] == [long]


def test_folders_of_experiments(root: Path, tmp_path: Path) -> None:
    assert list(experiments(root / "first one")) == [root / "first one"]
    assert list(experiments(tmp_path)) == []
    with pytest.raises(DashboardError, match="is not a folder"):
        Dashboard(tmp_path / "none")
    with pytest.raises(DashboardError, match=r"port 70000 of 127\.0\.0\.1 cannot be used"):
        Dashboard(tmp_path, 70_000)
    with Dashboard(tmp_path) as server, pytest.raises(DashboardError, match="cannot be used"):
        Dashboard(tmp_path, server.server_address[1])
    with pytest.raises(DashboardError, match=r"of no\.such\.host\.invalid cannot be used"):
        Dashboard(tmp_path, 0, "no.such.host.invalid")
