"""Every benchmark that is a command runs in its small form; its figures are not looked at."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import time
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as together
from benchmarks import compare, limits, runtime, sklearn_searches, tuning
from benchmarks.__main__ import BENCHMARKS, told
from benchmarks.aims import AIMS, Aim
from benchmarks.compare import changes
from benchmarks.interleaved import Served, output_of
from benchmarks.moments import NOTED, Watched, note, stages, watching
from benchmarks.rows import LESS, MORE, Report, Row, apart, rows_of
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


def test_another_side_is_measured_in_the_rows_that_have_an_aim_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commands = []

    def told_now(command: list[str], most_s: float) -> dict[str, Any]:
        commands.append(command[2:])
        return {"rows": []}

    monkeypatch.setattr(together, "told", told_now)
    only = ["--only", "runtime", "--only", "soak", "--to", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--against", "ray", *only])
    assert together.main() == 0
    assert commands == [
        ["benchmarks.runtime", "--against", "ray", "--beside", "nested"],
        ["benchmarks.soak", "--minutes", "1"],
    ]


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


@pytest.mark.parametrize(
    "loaded", [range(12, 24), range(12), range(6, 18), range(0, 24, 2), range(8, 24), range(4, 20)]
)
def test_plain_work_sees_a_load_of_any_length(loaded: range):
    assert apart([2.0 if look in loaded else 1.0 for look in range(24)]) == pytest.approx(1, abs=0.51)
    assert apart([1.0] * 24) == 0
    assert apart([1.0]) is None


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


def test_rows_of_one_record_alone_and_another_pace_are_told():
    assert verdicts([Row("old").measured([1])], [Row("fresh").measured([1])]) == {
        "old": "gone",
        "fresh": "new",
    }
    before, after = time_of(10, 10), time_of(12, 12, plain=[1.2, 1.2])
    printed = compare.line(compare.Change("some", "time", compare.PACE, before, after))
    assert "plain work took +20%" in printed


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


def test_the_spread_leaves_out_an_eighth_on_either_side():
    assert Row("few").measured([3, 1, 2]).spread == 2
    assert Row("many").measured([*range(1, 15), -100, 100]).spread == 11
    assert Row("one").measured([1]).spread is None


PATH = {"asked": "a call", "arrived": "there", "answered": "back"}


def test_stages_are_medians_from_moment_to_moment():
    noted = {
        "asked": [1_000, 11_000, 21_000],
        # One before the first call, and one twice in the second.
        "arrived": [500, 3_000, 12_000, 12_500, 25_000],
        "answered": [4_000, 18_000, 30_000],
    }
    assert stages(PATH, noted) == {"there": 2.0, "back": 5.0, "a call": 7.0}


def test_a_moment_that_never_comes_is_named():
    noted = {"asked": [1, 10, 20], "arrived": [2, 12, 22], "answered": [3]}
    with pytest.raises(RuntimeError, match=r"of 3 operations.*'answered': 2"):
        stages(PATH, noted)


def test_functions_are_wrapped_for_a_while():
    class Base:
        def answer(self) -> int:
            note("within")
            return 42

    class Derived(Base):
        pass

    NOTED.clear()
    with watching(Watched(Base, "answer", after="base"), Watched(Derived, "answer", "before", "after")):
        assert Derived().answer() == 42
    assert Derived().answer() == 42
    (before,), (base,), (after,), within = (NOTED[each] for each in ("before", "base", "after", "within"))
    assert before <= within[0] <= base <= after and len(within) == 2
    assert "answer" not in vars(Derived)


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


DAEMON = """
import subprocess, sys, time
held = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(held.pid, flush=True)
"""


def test_nobody_waits_for_what_a_benchmark_left_behind(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The daemon holds the pipe open."""
    monkeypatch.setattr(together, "REST_S", 0.1)
    start = time.monotonic()
    assert told([sys.executable, "-c", DAEMON + "sys.exit(3)"], 30) == {"error": "ended with code 3"}
    assert time.monotonic() - start < 30
    os.kill(int(capsys.readouterr().out), signal.SIGKILL)


def test_the_record_is_there_after_each_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def told_once(command: list[str], most_s: float) -> dict[str, Any]:
        if command[2] == "benchmarks.gpu":
            raise KeyboardInterrupt
        return {"rows": []}

    path = tmp_path / "new" / "record.json"
    monkeypatch.setattr(together, "told", told_once)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "tuning", "--only", "gpu", "--to", str(path)])
    with pytest.raises(KeyboardInterrupt):
        together.main()
    assert [*json.loads(path.read_text())["benchmarks"]] == ["tuning"]


def test_an_error_in_the_other_process_of_a_limit_stays_there(monkeypatch: pytest.MonkeyPatch):
    """It ends that process: the tests that follow are not run a second time in it."""
    ours, loads = os.getpid(), pickle.loads

    def fails(data: bytes) -> Any:
        if os.getpid() != ours:
            raise ValueError
        return loads(data)

    monkeypatch.setattr(limits.pickle, "loads", fails)
    with limits.round_trips(1) as trips, pytest.raises(EOFError):
        trips.look()


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
