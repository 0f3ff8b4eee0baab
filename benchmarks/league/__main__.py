"""Compare the default search with other libraries: `python -m benchmarks.league --peers FOLDER --minutes 60`.

`--install FOLDER` first makes an environment with the other libraries and the packages that bring problems,
from `peers.txt`. Afterwards no network is needed. A cell is a problem, a method, a number of workers and a
seed; `--rows FILE` keeps a line for each finished cell, so the same command resumes the league. `--again
METHOD` first removes a method's cells from the file, after a change of this package. The cells with the
first seeds and the fast methods run first, so that a league that ends early has all problems. Seeds are
0, 1, 2 and so on for all.

Without `--peers`, only this package and its own problems run. `--record FILE` writes the means of all cells,
and `--page FILE` writes the page from a record. Prints the summary, and rows as one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.incumbents import regrets
from benchmarks.league import methods, page, peers, problems, record
from benchmarks.league.lines import Asked
from benchmarks.rows import Report, Row, parser

PEERS = Path(__file__).with_name("peers.txt")
RECORD = Path(__file__).parents[1] / "records" / "league.json"
OURS: dict[str, dict[str, Any]] = {
    "trainkit": {},
    "trainkit random": {"search_alg": "random"},
    "trainkit complete": {"scheduler": "fifo"},
}
"""Our methods, each with its further arguments of TuneConfig."""
DEAR = {"Optuna GP": 5, "SMAC": 5, "Syne Tune": 5, "Ax": 5}
"""Number of seeds of each method that takes a tenth of a second or more for a suggestion."""
FEW = {"SMAC", "Syne Tune", "Ax"}
"""Methods that take so long that they run only a problem of each family."""
EXAMPLES = {
    *("hpobench australian", "hpolib naval", "nasbench201 cifar10", "bbob f6", "mixint f6"),
    *("learners", "sklearn boosting", "curves boosting"),
}
"""The first problem of each family."""
SEEDS = 20
WAVE, DEAR_WAVE = 5, 1
"""Number of seeds that run for all problems before further seeds run, for fast methods and for the others."""


@dataclass(frozen=True)
class Stage:
    """A group of cells: the workers, the number of evaluations, and the kind of problems.

    Attributes:
        seeds: number of seeds of a fast method.
        turn: number of waves that run before.
        dear: True: slow methods run too.
    """

    workers: int
    evaluations: int
    curves: bool
    seeds: int = SEEDS
    turn: float = 0.0
    dear: bool = False


STAGES = (
    Stage(1, 20, False, dear=True),
    Stage(1, 20, True, dear=True),
    Stage(1, 100, False, 5, 1.0),
    Stage(4, 20, False, 20, 2.0),
    Stage(4, 20, True, 20, 2.0),
    Stage(1, 50, True, 10, 3.0),
)
SMALL = Stage(1, 10, False, 2)


@dataclass(frozen=True)
class Cell:
    """A problem, a method, a number of workers and evaluations, and a seed."""

    problem: str
    method: str
    workers: int
    evaluations: int
    seed: int


def is_curves(problem: str) -> bool:
    """Return True if trials of the problem report a learning curve."""
    return problem.startswith("curves")


def runs(method: str, problem: str) -> bool:
    """Return True if the method has a default for such a problem."""
    if method in {"Optuna Hyperband", "trainkit complete"}:
        return is_curves(problem)  # without reports, nothing can be stopped
    if method in {"Ax", "Syne Tune"} and problem == "learners":
        return False  # no conditional parameters
    return problem in EXAMPLES or method not in FEW


def cells(stages: Sequence[Stage], names: Sequence[str], chosen: Sequence[str]) -> list[Cell]:
    """Return all cells in the order in which they run."""
    found: list[tuple[float, Cell]] = []
    for stage in stages:
        for method in chosen:
            dear = method in DEAR
            for seed in range(min(stage.seeds, DEAR.get(method, SEEDS)) if stage.dear or not dear else 0):
                turn = stage.turn + (seed // DEAR_WAVE + 0.5 if dear else seed // WAVE)
                found += [
                    (turn, Cell(name, method, stage.workers, stage.evaluations, seed))
                    for name in names
                    if is_curves(name) == stage.curves and runs(method, name)
                ]
    return [cell for _, cell in sorted(found, key=lambda pair: pair[0])]


def install(folder: Path) -> None:
    """Make an environment with the packages of `peers.txt`."""
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--requirement", str(PEERS)], check=True)


class League:
    """The processes that cells need, started when first needed, and the problems that are loaded.

    Args:
        folder: environment with the peers; None: only our own methods and problems.
    """

    def __init__(self, folder: Path | None) -> None:
        self._python = None if folder is None else str(folder / "bin" / "python")
        self._processes: dict[str, Asked] = {}
        self._problems: dict[str, problems.Problem] = {}

    def _process(self, module: str) -> Asked:
        if module not in self._processes:
            assert self._python is not None
            self._processes[module] = Asked([self._python, "-m", f"benchmarks.league.{module}"])
        return self._processes[module]

    def run(self, cell: Cell) -> dict[str, Any]:
        """Run a cell, and return its row, which has the error of another library if the library fails."""
        if cell.problem not in self._problems:
            source = None if cell.problem in problems.OWN else self._process("installed")
            self._problems[cell.problem] = problems.load(cell.problem, source)
        if cell.method in OURS:
            search = methods.ours(**OURS[cell.method])
        else:
            search = methods.theirs(cell.method, self._process("peers"))
        try:
            done = search(self._problems[cell.problem], cell.seed, cell.workers, cell.evaluations)
        except RuntimeError as error:
            if cell.method in OURS:
                raise
            self._processes.pop("peers").close()
            return {**asdict(cell), "error": str(error)}
        points = [point for point in record.POINTS if point <= cell.evaluations]
        found = [float(f"{value:.6g}") for value in regrets(done.seen, points)]
        return {**asdict(cell), "regret": found, "cpu_s": round(done.cpu_s, 3), "version": done.version}

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()


def rows_in(path: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of the file; a line cut off by the end of a process is no row."""
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            if line.endswith("}"):
                yield json.loads(line)


def played(
    league: League, todo: Sequence[Cell], known: list[dict[str, Any]], path: Path | None, ends: float
) -> None:
    """Run the cells that are not known, until the time `ends`; append each row to `known` and to the file."""
    done = {tuple(row[key] for key in Cell.__match_args__) for row in known if "error" not in row}
    if path is not None and path.exists() and not path.read_text().endswith("\n"):
        with path.open("a") as file:
            file.write("\n")
    for cell in todo:
        if tuple(asdict(cell).values()) in done:
            continue
        if time.monotonic() > ends:
            break
        known.append(league.run(cell))
        if path is not None:
            with path.open("a") as file:
                file.write(json.dumps(known[-1]) + "\n")


def main() -> None:
    """Run cells, and write the record and the page."""
    arguments = parser(__doc__)
    arguments.add_argument("--install", type=Path, metavar="FOLDER", help="make the environment, no more")
    arguments.add_argument("--peers", type=Path, metavar="FOLDER", help="environment of the other libraries")
    arguments.add_argument("--minutes", type=float, default=30.0, help="start no cell afterwards")
    arguments.add_argument("--rows", type=Path, metavar="FILE", help="finished cells, appended")
    arguments.add_argument(
        "--again", action="append", default=[], metavar="METHOD", help="first remove its cells"
    )
    arguments.add_argument("--only", action="append", metavar="METHOD", help="run no other methods")
    arguments.add_argument("--record", type=Path, metavar="FILE", help="write the means of all cells")
    arguments.add_argument("--page", type=Path, metavar="FILE", help="write the page of the record, no more")
    given = arguments.parse_args()
    if given.install is not None:
        install(given.install)
        return
    if given.page is not None:
        page.write(given.page, json.loads((given.record or RECORD).read_text()))
        return
    names, chosen = list(problems.OWN), list(OURS)
    if given.peers is not None:
        names, chosen = [*names, *problems.INSTALLED], [*chosen, *peers.METHODS]
    chosen = [name for name in chosen if given.only is None or name in given.only]
    known = [row for row in rows_in(given.rows) if row["method"] not in given.again]
    if given.again and given.rows is not None:
        given.rows.write_text("".join(f"{json.dumps(row)}\n" for row in known))
    league = League(given.peers)
    try:
        todo = cells([SMALL] if given.small else STAGES, names, chosen)
        played(league, todo, known, given.rows, time.monotonic() + 60 * given.minutes)
    finally:
        league.close()
    found = record.of(known)
    if given.record is not None:
        given.record.write_text(record.written(found))
    print(page.summary(found))
    with Report("league", small=given.small) as report:
        report.add(Row("cells", better="", exact=True).measured([len(known)]))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
