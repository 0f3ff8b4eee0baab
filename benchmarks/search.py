"""Quality of the searches: `python -m benchmarks.search [--only PROBLEM] [--small] [--plots FOLDER]`.

Problems with known results are searched with our schedulers and searchers in simulation. The results are
compared with those of other libraries under the same accounting: work counts in units of the largest
resource, the incumbent is the best observed at the largest resource so far, and its regret is evaluated
without noise. For each figure of another library, ours is better, equal within two standard errors of the
difference, or worse. If another library's rule runs on the same streams, differences are taken seed by seed.

Prints tables, and rows as one line of JSON with the numbers of better and worse figures. The run takes about
ten minutes on two cores; --small takes a tenth of the seeds. --plots only draws a simulated run of each
algorithm.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks import reference, search_pictures, search_work
from benchmarks.over_seeds import BETTER, EQUAL, WORSE, Cell, Comparison, against, paired
from benchmarks.rows import MORE, Report, parser
from benchmarks.rows import Row as Figure
from benchmarks.search_tables import Row, Table, Work, tables

Columns = list[list[float]]
"""A figure for each seed, by point."""
Line = tuple[str, list[tuple[Cell, Comparison]]]
"""Another side: its name, and for each point its figure and the comparison with ours."""


def columns(pool: ProcessPoolExecutor, work: Work, seeds: int) -> Columns:
    """Run the work for each seed; return the figures by point."""
    found = pool.map(work, range(seeds), chunksize=max(1, seeds // 20))
    return [list(column) for column in zip(*found, strict=True)]


def compare(table: Table, row: Row, ours: Columns, others: dict[str, Columns]) -> list[Line]:
    """Compare ours with the known rows, and with the rules that ran on the same streams."""
    sign = table.sign
    turned = [[sign * value for value in column] for column in ours]
    lines: list[Line] = []
    for name in row.peers:
        cells = [table.peers[name][point] for point in table.points]
        found = [
            (cell, against(column, cell._replace(mean=sign * cell.mean)))
            for column, cell in zip(turned, cells, strict=True)
        ]
        lines.append((name, found))
    for name in row.paired:
        pairs = zip(turned, others[name], strict=True)
        found = [(Cell.of(theirs), paired(own, [sign * each for each in theirs])) for own, theirs in pairs]
        lines.append((name, found))
    return lines


def show(row: Row, ours: Columns, lines: Sequence[Line]) -> Counter[str]:
    """Print our row and the rows it is compared with; count the verdicts."""
    cells = [Cell.of(column) for column in ours]
    print(f"{f'{row.name} ({cells[0].seeds} seeds)':<62}" + "".join(f"{cell!s:>16}{'':8}" for cell in cells))
    verdicts: Counter[str] = Counter()
    for name, found in lines:
        told = "".join(f"{cell!s:>16} {comparison.verdict:<7}" for cell, comparison in found)
        print(f"{f'  {name} ({found[0][0].seeds})':<62}{told}".rstrip())
        verdicts.update(comparison.verdict for _, comparison in found)
    return verdicts


def run(names: Sequence[str], *, quick: bool) -> dict[str, Counter[str]]:
    """Run these problems and print the results; return the count of each verdict by problem."""
    told: dict[str, Counter[str]] = {}
    # Spawned instead of forked, so that the processes share nothing with this one.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for name in names:
            table, start, verdicts = tables()[name], time.perf_counter(), Counter[str]()
            others: dict[str, Columns] = {}
            print(f"\n{table.title + ':':<62}" + "".join(f"{point:>16g}{'':8}" for point in table.points))
            for row in table.rows:
                seeds = max(3, row.seeds // 10) if quick else row.seeds
                ours = columns(pool, row.work, seeds)
                for label, work in row.paired.items():
                    if label not in others:
                        others[label] = columns(pool, work, seeds)
                verdicts += show(row, ours, compare(table, row, ours, others))
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
            print(f"{counts}; {time.perf_counter() - start:.0f} s", flush=True)
            told[name] = verdicts
    return told


def exact() -> int:
    """Print values that have one right answer; return the number of differences."""
    trace = search_work.toy_trace()
    known = {**reference.TOY_TRACE, **reference.TOY_ENDS}
    found = {step: round(trace[step], 5 if step in reference.TOY_TRACE else 4) for step in known}
    print(f"\n{'PBT toy, nothing is drawn:':<30}{'ours':>10}{'known':>10}")
    for step, value in known.items():
        verdict = EQUAL if found[step] == value else "DIFFERENT"
        print(f"{f'  after {step} steps':<30}{trace[step]:>10.5f}{value:>10g} {verdict}")
    return sum(found[step] != value for step, value in known.items())


def main() -> None:
    """Run and print, or draw the plots."""
    problems = list(tables())
    arguments = parser(__doc__)
    arguments.add_argument("--only", choices=problems, action="append", help="may be given again")
    arguments.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw a run of each algorithm, no more"
    )
    given = arguments.parse_args()
    if given.plots is not None:
        for path in search_pictures.draw_all(given.plots):
            print(path)
        return
    told = run(given.only or problems, quick=given.small)
    differ = exact() if "toy" in told else None
    print()
    with Report("search", small=given.small) as report:
        for name, verdicts in told.items():
            better = Figure(f"{name}: figures better than others'", better=MORE, exact=True)
            report.add(better.measured([verdicts[BETTER]]))
            report.add(Figure(f"{name}: figures worse than others'", exact=True).measured([verdicts[WORSE]]))
        if differ is not None:
            row = Figure("toy: figures that differ where nothing is drawn", exact=True)
            report.add(row.measured([differ]))


if __name__ == "__main__":
    main()
