"""Every benchmark that is a command runs in its small form; its figures are not looked at."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from benchmarks import runtime, sklearn_searches, tuning
from benchmarks.__main__ import BENCHMARKS, told
from benchmarks.aims import AIMS, Aim
from benchmarks.compare import changes
from benchmarks.interleaved import Served, output_of
from benchmarks.rows import LESS, MORE, Report, Row, rows_of
from tests.conftest import run_python

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "anatomy": [],
    "dashboard": [],
    "decisions": [],
    "kills": [],
    "pbt_digits": [],
    "pools": [],
    "resume_time": [],
    "runtime": [],
    "simulator": ["--only", "toy", "scaling", "cost", "large"],
    "soak": [],
    "training": [],
}
"""With what else they run."""
ELSEWHERE = {
    "gpu": "train/test_benchmarks.py",
    "league": "test_league.py",
    "search": "tune/search/test_search_benchmarks.py",
    "sklearn_searches": "sklearn/test_searches_benchmark.py",
    "tuning": "tune/test_speed.py",
}
RECORDED = "decision_cost"
"""Run by the test of a record."""
TOGETHER = {"benchmarks", "compare"}
"""What runs all of them, and what compares its records."""
PARTS = {
    "runtime_work",
    "sklearn_work",
    "training_function",
    "training_torchrun",
    "training_trainer",
    "tuning_work",
}
"""Programs that a command starts."""


def test_every_command_has_a_small_form_that_is_run():
    found = {
        path.stem if path.stem != "__main__" else path.parent.name
        for path in [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "benchmarks").glob("*/__main__.py")]
        if '__name__ == "__main__"' in path.read_text()
    }
    assert found == {*SMALL, *ELSEWHERE, *PARTS, *TOGETHER, RECORDED}
    assert {*BENCHMARKS} == {*SMALL, *ELSEWHERE, RECORDED}
    for name, file in ELSEWHERE.items():
        assert re.search(rf'"benchmarks\.{name}", *("--device", "cpu", *)?"--small', _text(file)), name


def _text(file: str) -> str:
    return re.sub(r"\s+", " ", (ROOT / "tests" / file).read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_it_runs(name: str, tmp_path: Path):
    pytest.importorskip("ray" if name == "decisions" else "torch")
    more = ["--folder", str(tmp_path)] if name == "simulator" else []
    done = run_python("-m", f"benchmarks.{name}", "--small", *SMALL[name], *more, cwd=ROOT, timeout=580)
    rows = rows_of(done.stdout)
    for row in rows.values():
        assert row.rounds, row
    skipped = json.loads(done.stdout.splitlines()[-1])["skipped"]
    alone = {"10,000 workers, 1,000,000 jobs (ASHA, a report a rung): CPU"}
    assert {*AIMS.get(name, ())} <= {*rows, *skipped, *alone}


def test_every_aim_is_that_of_a_row():
    """Those of the other benchmarks are looked for where these run."""
    for module in (runtime, sklearn_searches, tuning):
        name = module.__name__.removeprefix("benchmarks.")
        assert {*AIMS[name]} <= {row.name for row in module.ROWS.values()}
    assert {*AIMS} <= {*BENCHMARKS}


def test_a_report_puts_the_aim_of_the_table_beside_its_row(capsys: pytest.CaptureFixture[str]):
    with Report("soak") as report:
        report.add(Row("calls answered wrongly", exact=True).measured([1]))
    printed = capsys.readouterr().out
    assert printed.splitlines()[1].split()[-4:] == ["<=", "0", "NOT", "MET"]
    (row,) = json.loads(printed.splitlines()[-1])["rows"]
    assert (row["aim"], row["verdict"]) == (0, "NOT MET")


def test_no_benchmark_hides_a_package():
    # torchrun puts the folder of the file that it is given before all others.
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__"}
    assert not names & (set(packages_distributions()) | sys.stdlib_module_names)


DEAD = [sys.executable, "-c", "import sys; print('begun', flush=True); sys.exit('no such thing as data')"]


def test_the_other_sides_error_is_shown_when_that_side_dies():
    with Served(DEAD) as dead, pytest.raises(RuntimeError, match="ended with code 1:\nno such thing as data"):
        dead.line("begun")
        while True:  # the first line may still find the pipe open
            dead.steps(1)
    with pytest.raises(RuntimeError, match="ended with code 1:\nno such thing as data"):
        output_of(DEAD)


def verdicts(before: list[Row], after: list[Row], machine: str = "here") -> dict[str, str]:
    """What a comparison says of two records, by row."""
    records = [
        # As it comes back from a file.
        json.loads(
            json.dumps({"machine": on, "benchmarks": {"some": {"rows": [row.as_json() for row in rows]}}})
        )
        for rows, on in ((before, "here"), (after, machine))
    ]
    return {change.name: change.verdict for change in changes(*records)}


STEADY_S = [1.0, 1.0]
"""Seconds of plain work on a quiet machine."""


def time_of(*rounds: float, plain: list[float] | None = STEADY_S, unit: str = "ms") -> Row:
    return Row("time", unit).measured(rounds, plain=plain)


def beside(*rounds: float, plain: float) -> Row:
    return Row("time", "ms", LESS).measured(rounds, [plain] * 3)


def count(number: int) -> Row:
    return Row("time", better="", exact=True).measured([number])


QUIET, LOUD = time_of(10, 10, 10.2), time_of(10.5, 11, 12.5)


@pytest.mark.parametrize(
    ("before", "after", "machine", "verdict"),
    [
        # A change counts beyond the spread of both.
        (QUIET, LOUD, "here", "equal"),
        (LOUD, QUIET, "here", "equal"),
        (QUIET, time_of(11, 11, 11.3), "here", "WORSE"),
        (QUIET, time_of(9, 9.1, 9.2), "here", "better"),
        (
            Row("time", better=MORE).measured([5, 5]),
            Row("time", better=MORE).measured([4, 4]),
            "here",
            "WORSE",
        ),
        # Exact figures change by any difference, and neither direction is better.
        (count(3), count(4), "here", "changed"),
        (count(3), count(3), "here", "equal"),
        (time_of(1, 1, unit="s"), time_of(900, 900), "here", "not comparable"),
        # A machine that is busy all through the second record shows it in plain work.
        (time_of(10, 10), time_of(12, 12, plain=[1.2, 1.2]), "here", "another pace"),
        (time_of(10, 10), time_of(12, 12, plain=[1.02, 1.02]), "here", "WORSE"),
        # Beside plain work, it counts how many times better a row is, on any machine.
        (beside(10, 10, 10.1, plain=20), beside(20, 20, 20, plain=40), "elsewhere", "equal"),
        (beside(10, 10, 10.1, plain=20), beside(13, 13, 13, plain=20), "elsewhere", "WORSE"),
        # Nothing is said where nothing can be told.
        (time_of(10, 10), time_of(5, 5, plain=[1, 1.05]), "here", "unsteady"),
        (time_of(10, 10), time_of(5, 5, plain=None), "here", "unsteady"),
        (time_of(10, 10), time_of(5), "here", "measured once"),
        (time_of(10, 10), time_of(5, 5), "there", "another machine"),
        # A part of a difference may come from plain work, which differed from itself.
        (time_of(10, 10, plain=[1, 1.025]), time_of(9.8, 9.8), "here", "equal"),
    ],
)
def test_rows_of_two_records_are_compared(before: Row, after: Row, machine: str, verdict: str):
    assert verdicts([before], [after], machine) == {"time": verdict}


def test_an_aim_is_judged_where_plain_work_stays_near_itself():
    row = Row("step", "ms", aim=Aim(5, times=0.9))
    assert row.measured([4, 4.2], [4, 4]).verdict == "met"
    assert row.measured([6, 6], [9, 9]).verdict == "NOT MET", "the aim"
    assert row.measured([4, 4], [3, 3]).verdict == "NOT MET", "times the other side"
    assert row.measured([4, 4], [4, 4.2]).verdict == "not judged"
    assert row.measured([4, 4]).verdict == "not judged", "there was no plain work"
    assert Row("rate", "1/s", MORE, aim=Aim(5)).measured([6], plain=STEADY_S).verdict == "met"
    assert Row("count", aim=Aim(0), exact=True).measured([1]).verdict == "NOT MET"
    assert Row("no aim").measured([1]).verdict == ""


@pytest.mark.slow
def test_all_benchmarks_write_one_record(tmp_path: Path):
    path = tmp_path / "record.json"
    run_python("-m", "benchmarks", "--small", "--only", RECORDED, "--to", path, cwd=ROOT)
    record = json.loads(path.read_text())
    assert {"commit", "date", "machine", "versions", "took_s"} <= record.keys()
    assert len(record["benchmarks"][RECORDED]["rows"]) == 14
    done = run_python("-m", "benchmarks.compare", path, path, cwd=ROOT)
    assert {part.split()[1] for part in done.stdout.splitlines()[-1].split("; ")} <= {"equal", "unsteady"}


def test_a_benchmark_that_fails_or_takes_too_long_is_told():
    assert told(DEAD, 60) == {"error": "ended with code 1"}
    assert told([sys.executable, "-c", "import time; time.sleep(60)"], 0.0) == {
        "error": "was ended, as no time was left"
    }


@pytest.mark.parametrize("last", ["", "a line after it", "[1]"])
def test_a_benchmark_that_does_not_end_with_its_json_is_told(last: str):
    text = f"print('{{}}'); print({last!r})" if last else ""
    assert told([sys.executable, "-c", text], 60) == {"error": f"ended with no JSON, but with {last!r}"}


def test_the_records_of_releases_can_be_compared():
    paths = [*(ROOT / "benchmarks/records").glob("[0-9]*.json")]
    assert paths
    for path in paths:
        record = json.loads(path.read_text())
        assert {change.verdict for change in changes(record, record)} <= {
            "equal",
            "unsteady",
            "measured once",
        }, path
        assert not record["small"] and not any("error" in each for each in record["benchmarks"].values())
