"""The league of searches: its cells, its record and its page."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.league import __main__ as league
from benchmarks.league import methods, page, problems, record
from benchmarks.league.lines import Asked
from benchmarks.rows import rows_of
from tests.conftest import run_python

ROOT = Path(__file__).resolve().parents[1]


def row(method: str, seed: int, regret: list[float], problem: str = "flat") -> dict[str, Any]:
    head = {"problem": problem, "method": method, "workers": 1, "evaluations": 10, "seed": seed}
    return {**head, "regret": regret, "cpu_s": 1.0, "version": f"{method} 1"}


def rows_of_two_problems() -> list[dict[str, Any]]:
    """Return rows in which all methods are equal in one problem, and ours ends best in the other."""
    found = []
    for seed in range(6):
        found += [row("trainkit random", seed, [8.0, 8, 8, 8, 8, 4]), row("peer", seed, [4.0] * 6)]
        found += [row("trainkit", seed, [8.0] * 5 + [2.0 + seed % 2 * 0.4])]
        for method in ("trainkit random", "peer", "trainkit"):
            found.append(row(method, seed, [1.0] * 6, "equal"))
    return found


# --- the record -------------------------------------------------------------------------------------


def test_regrets_are_relative_to_random_searchs_last() -> None:
    (stage,) = record.of(rows_of_two_problems())["stages"]
    assert stage["points"] == [1, 2, 3, 5, 7, 10]
    cell = stage["cells"]["flat"]
    assert cell["unit"] == 4
    assert cell["methods"]["trainkit random"]["mean"] == [2, 2, 2, 2, 2, 1]
    assert cell["methods"]["trainkit"]["mean"][-1] == pytest.approx(0.55)


def test_a_cell_is_compared_with_the_best_peer_seed_by_seed() -> None:
    (stage,) = record.of(rows_of_two_problems())["stages"]
    against = stage["cells"]["flat"]["against"]
    assert {name: found["peer"] for name, found in against.items()} == {"5": "peer", "10": "peer"}
    assert against["5"] == {"peer": "peer", "gain": -1, "error": 0}
    # The gains alternate between 0.5 and 0.4: their variance is 6 * 0.05**2 / 5.
    assert against["10"]["gain"] == pytest.approx(0.45)
    assert record.errors_apart(against["10"]) == pytest.approx(0.45 / math.sqrt(0.05**2 / 5), rel=1e-3)
    assert record.errors_apart(stage["cells"]["equal"]["against"]["10"]) == 0


def test_all_means_of_a_cell_are_over_the_same_seeds() -> None:
    last = {"fast": [0.0] * 4 + [9.0] * 16, "slow": [8.0] * 5, "trainkit random": [4.0] * 20}
    last["trainkit"] = [1.0] * 5 + [10.0] * 15
    found = [
        row(name, seed, [9.0] * 5 + [end]) for name, ends in last.items() for seed, end in enumerate(ends)
    ]
    all_seeds, few = record.of(found)["stages"]
    assert (all_seeds["seeds"], few["seeds"]) == (20, 5)
    means = [
        {name: each["mean"][-1] for name, each in stage["cells"]["flat"]["methods"].items()}
        for stage in (all_seeds, few)
    ]
    assert means[0] == {"fast": 7.2 / 4, "trainkit": 1.938, "trainkit random": 1}
    assert means[1] == {"fast": 1.8 / 4, "slow": 2, "trainkit": 0.25, "trainkit random": 1}
    for stage, mean in zip((all_seeds, few), means, strict=True):
        against = stage["cells"]["flat"]["against"]["10"]
        assert against["gain"] == pytest.approx(mean[against["peer"]] - mean["trainkit"], abs=1e-3)
    assert "| flat | 2.25 | 2.25 fast | +0.0 | 1.94 | 1.8 fast |" in page.cells(all_seeds)


def test_a_method_with_few_seeds_has_no_standard_error() -> None:
    ours = [each for each in rows_of_two_problems() if each["method"] != "trainkit" or each["seed"] < 4]
    many, single = record.of(ours)["stages"]
    assert (many["seeds"], single["seeds"]) == (6, 1)
    assert many["cells"]["flat"]["methods"].keys() == {"peer", "trainkit random"}
    assert record.in_short(many, 10) == {}
    assert single["cells"]["flat"]["against"]["10"] == {"peer": "peer", "gain": 0.5, "error": None}
    assert record.in_short(single, 10)["worst"] == "-"


def test_the_best_peer_is_that_against_which_we_are_worst() -> None:
    """A peer that is a little better with every seed comes before one with a smaller, doubtful mean."""
    ends = {
        "trainkit": [2.0] * 5,
        "trainkit random": [4.0] * 5,
        "sure": [1.9] * 5,
        "doubtful": [0.0] * 4 + [9],
    }
    found = [
        row(name, seed, [9.0] * 5 + [end]) for name, each in ends.items() for seed, end in enumerate(each)
    ]
    (stage,) = record.of(found)["stages"]
    assert stage["cells"]["flat"]["methods"]["doubtful"]["mean"][-1] < 1.9 / 4
    against = stage["cells"]["flat"]["against"]["10"]
    assert (against["peer"], record.errors_apart(against)) == ("sure", -math.inf)
    assert record.in_short(stage, 10)["three"] == 1


def test_equal_means_share_a_rank() -> None:
    (stage,) = record.of(rows_of_two_problems())["stages"]
    assert record.ranks(stage, 10) == {"trainkit": 1.5, "peer": (2.5 + 2) / 2, "trainkit random": 2.25}
    assert record.geometric_means(stage, 10)["trainkit"] == pytest.approx(math.sqrt(0.55))


# --- the cells --------------------------------------------------------------------------------------


def test_a_league_resumes_after_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    todo = league.cells([league.SMALL], ["learners"], ["trainkit random"])
    first_rows: list[dict[str, Any]] = []
    league.played(league.League(None), todo, first_rows, path, math.inf)
    assert len(first_rows) == len(todo) == 2
    whole, cut = path.read_text().splitlines()
    path.write_text(whole + "\n" + cut[:40])
    known = [*league.rows_in(path)]
    assert known == first_rows[:1]
    league.played(league.League(None), todo, known, path, math.inf)
    kept = [{**each, "cpu_s": 0.0} for each in league.rows_in(path)]
    assert kept == [{**each, "cpu_s": 0.0} for each in first_rows]


# --- other libraries --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def peers() -> Iterator[Asked]:
    """Start the program of the other libraries in this environment, which has some of them."""
    process = Asked([sys.executable, "-m", "benchmarks.league.peers"])
    yield process
    process.close()


@pytest.mark.external
@pytest.mark.parametrize("method", ["Optuna TPE", "Optuna CMA-ES", "HyperOpt"])
def test_another_library_searches_the_branches_of_a_space(peers: Asked, method: str) -> None:
    problem = problems.load("learners", None)
    search = methods.theirs(method, peers)
    done = search(problem, 0, 2, 12)
    assert [seen.work for seen in done.seen] == list(range(1, 13))
    assert len({seen.observed for seen in done.seen}) == 12
    assert done.seen == search(problem, 0, 2, 12).seen
    assert done.seen != search(problem, 1, 2, 12).seen


@pytest.mark.external
def test_the_league_goes_on_after_an_error_of_another_library(tmp_path: Path) -> None:
    path, known = tmp_path / "rows.jsonl", list[dict[str, Any]]()
    todo = league.cells([league.SMALL], ["learners"], ["Unknown", "Optuna TPE"])
    for _ in range(2):  # cells with an error run again
        these = league.League(Path(sys.prefix))
        league.played(these, todo, known, path, math.inf)
        these.close()
    assert [each["method"] for each in known] == 2 * ["Unknown"] + 2 * ["Optuna TPE"] + 2 * ["Unknown"]
    assert [each["error"][-9:] for each in known if "error" in each] == 4 * ["'Unknown'"]
    assert [*league.rows_in(path)] == known


# --- the program and the page -----------------------------------------------------------------------


@pytest.mark.external
def test_a_small_league_writes_a_record_and_its_page(tmp_path: Path) -> None:
    kept, pages = tmp_path / "record.json", tmp_path / "docs" / "tuning"
    pages.mkdir(parents=True)
    (tmp_path / "docs" / "images").mkdir()
    files = ["--record", str(kept), "--rows", str(tmp_path / "rows")]
    done = run_python("-m", "benchmarks.league", "--small", *files, cwd=ROOT, timeout=300)
    (count,) = rows_of(done.stdout).values()
    assert count.rounds == [len((tmp_path / "rows").read_text().splitlines())]
    whole = [*league.rows_in(tmp_path / "rows")]
    again = ["--rows", str(tmp_path / "rows"), "--again", "trainkit", "--minutes", "0"]
    run_python("-m", "benchmarks.league", "--small", *again, cwd=ROOT, timeout=300)
    assert [*league.rows_in(tmp_path / "rows")] == [each for each in whole if each["method"] != "trainkit"]
    page_file = ["--record", str(kept), "--page", str(pages / "league.md")]
    run_python("-m", "benchmarks.league", *page_file, cwd=ROOT, timeout=300)
    assert (pages / "league.md").read_text() == page.text(json.loads(kept.read_text()))
    assert (tmp_path / "docs" / "images" / page.PICTURE).stat().st_size > 1000


def test_the_page_says_what_the_record_says() -> None:
    found = json.loads(league.RECORD.read_text())
    assert (ROOT / "docs" / "tuning" / "league.md").read_text() == page.text(found)
    assert set(found["versions"]) >= {"trainkit", "Optuna TPE", "HyperOpt"}
