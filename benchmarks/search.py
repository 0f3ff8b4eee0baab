"""How good the searches are: `python -m benchmarks.search [--only PROBLEM] [--quick] [--plots FOLDER]`.

Problems with known results, each under our schedulers and searchers, simulated, beside what other libraries
reach at the same accounting: work counts in units of the largest resource, the incumbent is the best observed
at the largest resource seen so far, and its regret is looked at without noise. For each figure of theirs it
says whether ours is better, equal within two standard errors of the difference, or worse; where a rule of
theirs runs on the same streams, by the differences seed by seed.

Prints tables and one line of JSON. It runs for about ten minutes on two cores; --quick takes a tenth of the
seeds and only shows that it runs. --plots draws a simulated run of each algorithm, and no more.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks import reference, search_pictures, search_work
from benchmarks.comparing import EQUAL, Cell, Comparison, against, paired
from benchmarks.search_tables import Row, Table, Work, tables

Columns = list[list[float]]
"""By point, a figure for each seed."""
Line = tuple[str, list[tuple[Cell, Comparison]]]
"""Of another side: its name, and by point its figure and how ours compares with it."""


def columns(pool: ProcessPoolExecutor, work: Work, seeds: int) -> Columns:
    """Run it for each seed."""
    found = pool.map(work, range(seeds), chunksize=max(1, seeds // 20))
    return [list(column) for column in zip(*found, strict=True)]


def compare(table: Table, row: Row, ours: Columns, others: dict[str, Columns]) -> list[Line]:
    """Hold ours against the rows that are known, and against what ran on the same streams."""
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
    """Print ours and what it is held against; count the verdicts."""
    cells = [Cell.of(column) for column in ours]
    print(f"{f'{row.name} ({cells[0].seeds} seeds)':<62}" + "".join(f"{cell!s:>16}{'':8}" for cell in cells))
    verdicts: Counter[str] = Counter()
    for name, found in lines:
        told = "".join(f"{cell!s:>16} {comparison.verdict:<7}" for cell, comparison in found)
        print(f"{f'  {name} ({found[0][0].seeds})':<62}{told}".rstrip())
        verdicts.update(comparison.verdict for _, comparison in found)
    return verdicts


def run(names: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Run and print these problems; the figures for the last line."""
    told: dict[str, Any] = {}
    # Not forked, so that they hold nothing of ours.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for name in names:
            table, start, verdicts = tables()[name], time.perf_counter(), Counter[str]()
            others: dict[str, Columns] = {}
            told[name] = {}
            print(f"\n{table.title + ':':<62}" + "".join(f"{point:>16g}{'':8}" for point in table.points))
            for row in table.rows:
                seeds = max(3, row.seeds // 10) if quick else row.seeds
                ours = columns(pool, row.work, seeds)
                for label, work in row.paired.items():
                    if label not in others:
                        others[label] = columns(pool, work, seeds)
                verdicts += show(row, ours, compare(table, row, ours, others))
                told[name][row.name] = [round(Cell.of(column).mean, 5) for column in ours]
            counts = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common())
            print(f"{counts}; {time.perf_counter() - start:.0f} s", flush=True)
            told[name]["verdicts"] = dict(verdicts)
    return told


def exact() -> None:
    """What has one right answer."""
    trace = search_work.toy_trace()
    print(f"\n{'PBT toy, nothing is drawn:':<30}{'ours':>10}{'known':>10}")
    for step, value in {**reference.TOY_TRACE, **reference.TOY_ENDS}.items():
        digits = 5 if step in reference.TOY_TRACE else 4
        verdict = EQUAL if round(trace[step], digits) == value else "DIFFERENT"
        print(f"{f'  after {step} steps':<30}{trace[step]:>10.5f}{value:>10g} {verdict}")


def main() -> None:
    """Run and print, or draw."""
    problems = list(tables())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", choices=problems, action="append", help="may be given again")
    parser.add_argument("--quick", action="store_true", help="a tenth of the seeds")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw a run of each algorithm, no more")
    arguments = parser.parse_args()
    if arguments.plots is not None:
        for path in search_pictures.draw_all(arguments.plots):
            print(path)
        return
    names = arguments.only or problems
    told = run(names, quick=arguments.quick)
    if "toy" in names:
        exact()
    print(json.dumps({"benchmark": "search", "cores": os.cpu_count(), "quick": arguments.quick, **told}))


if __name__ == "__main__":
    main()
