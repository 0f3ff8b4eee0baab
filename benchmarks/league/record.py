"""Means of all cells over the seeds, ranks, and comparisons with the best other library."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.over_seeds import Cell, paired

POINTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100)
"""Numbers of evaluations after which the regret is kept."""
TOLD = (5, 10, 20, 50, 100)
"""Numbers of evaluations in the tables."""
REFERENCE, OURS = "trainkit random", "trainkit"
FEWEST = 5
"""Smallest number of seeds for a standard error."""
SMALLEST = 0.01
"""Smallest regret in a geometric mean, as a share of random search's last regret."""
Rows = Iterable[Mapping[str, Any]]
Group = dict[str, dict[str, dict[int, Sequence[float]]]]
"""Regrets by problem, method and seed."""


def of(rows: Rows) -> dict[str, Any]:
    """Return the record of these rows: for each stage, the number of seeds, the points and the cells.

    A cell has for each method the mean regret at each point relative to random search's mean at the last
    point, and its standard error; and for each point that is told, the comparison of ours with the other
    library that is best against it. All of them are over the first seeds, and a method that has not run all
    of these is left out. So that methods with few seeds are compared too, further stages have fewer seeds.
    """
    stages: dict[tuple[bool, int, int], Group] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    versions: dict[str, set[str]] = defaultdict(set)
    failed: dict[str, str] = {}
    cpu: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        cell = f"{row['problem']}, {row['method']}, {row['workers']}, {row['evaluations']}, {row['seed']}"
        if "error" in row:
            failed[cell] = row["error"]
            continue
        failed.pop(cell, None)
        key = (row["problem"].startswith("curves"), row["workers"], row["evaluations"])
        stages[key][row["problem"]][row["method"]][row["seed"]] = row["regret"]
        versions[row["method"]].add(row["version"])
        cpu[row["method"]].append(row["cpu_s"] / row["evaluations"])
    return {
        "versions": {name: ", ".join(sorted(found)) for name, found in sorted(versions.items())},
        "failed": failed,
        "seconds": {name: float(f"{sum(found) / len(found):.3g}") for name, found in sorted(cpu.items())},
        "stages": [
            {"curves": curves, "workers": workers, "evaluations": evaluations, **each}
            for (curves, workers, evaluations), group in sorted(stages.items())
            for each in _by_seeds(group, [point for point in POINTS if point <= evaluations])
        ],
    }


def _by_seeds(group: Group, points: Sequence[int]) -> list[dict[str, Any]]:
    """Return the stages of a group: the largest number of seeds, and smaller ones that rank a new method.

    Random search has run the largest number of seeds in nine tenths of the problems.
    """
    counts = sorted(len(methods.get(REFERENCE, ())) for methods in group.values())
    found: list[dict[str, Any]] = []
    ranked: set[str] = set()
    for seeds in sorted({min(counts[len(counts) // 10], size) for size in (math.inf, FEWEST, 1)})[::-1]:
        cells = {name: cell for name in sorted(group) if (cell := _cell(group[name], points, int(seeds)))}
        if new := {name for cell in complete(cells).values() for name in cell} - ranked:
            out = sorted(group.keys() - cells.keys())
            found.append({"seeds": int(seeds), "points": list(points), "left_out": out, "cells": cells})
            ranked |= new
    return found


def _cell(
    methods: Mapping[str, Mapping[int, Sequence[float]]], points: Sequence[int], seeds: int
) -> dict[str, Any]:
    """Return a cell of the first seeds; {} if random search has not run all of them."""
    runs = {
        name: [of_seed[seed] for seed in range(seeds)]
        for name, of_seed in sorted(methods.items())
        if seeds and of_seed.keys() >= set(range(seeds))
    }
    unit = sum(run[-1] for run in runs.get(REFERENCE, ())) / max(1, seeds)
    if not unit > 0:
        return {}
    found: dict[str, Any] = {"unit": _short(unit), "methods": {}, "against": {}}
    for name, of_method in runs.items():
        columns = [Cell.of([value / unit for value in column]) for column in zip(*of_method, strict=True)]
        found["methods"][name] = {
            "mean": [_short(each.mean) for each in columns],
            "error": [_short((each.sd or 0.0) / math.sqrt(seeds)) for each in columns],
        }
    names = [name for name in runs if is_peer(name)]
    for place, point in enumerate(points):
        if OURS in runs and names and point in TOLD:
            at_point = {name: [run[place] / unit for run in runs[name]] for name in (OURS, *names)}
            all_peers = [_against(at_point[OURS], at_point[name], name) for name in names]
            found["against"][str(point)] = min(all_peers, key=_difference)
    return found


def _against(ours: Sequence[float], theirs: Sequence[float], peer: str) -> dict[str, Any]:
    compared = paired(ours, theirs)
    error = _short(compared.error) if len(ours) >= FEWEST else None
    return {"peer": peer, "gain": _short(compared.gain), "error": error}


def _difference(against: Mapping[str, Any]) -> tuple[float, float]:
    apart = errors_apart(against)
    return (against["gain"] if apart is None else apart), against["gain"]


def written(found: Mapping[str, Any]) -> str:
    """Return the text of a record, with each list of numbers on one line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda list_: f"[{' '.join(list_[1].split())}]", text) + "\n"


def is_peer(method: str) -> bool:
    """Return True for another library's method."""
    return not method.startswith("trainkit")


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def errors_apart(against: Mapping[str, Any]) -> float | None:
    """Return by how many standard errors ours is better; None if the error is unknown.

    A difference that all seeds have alike is infinite.
    """
    if against["error"] is None:
        return None
    if against["gain"] == 0:
        return 0.0
    return (
        against["gain"] / against["error"] if against["error"] else math.copysign(math.inf, against["gain"])
    )


def ranks(stage: Mapping[str, Any], point: int) -> dict[str, float]:
    """Return the mean rank of each method over the complete cells; equal means share a rank."""
    place, means = stage["points"].index(point), complete(stage["cells"])
    sums: dict[str, float] = defaultdict(float)
    for cell in means.values():
        now = {name: column[place] for name, column in cell.items()}
        for name, mean in now.items():
            smaller = sum(other < mean for other in now.values())
            equal = sum(other == mean for other in now.values())
            sums[name] += smaller + (equal + 1) / 2
    return {name: total / len(means) for name, total in sums.items()}


def geometric_means(stage: Mapping[str, Any], point: int) -> dict[str, float]:
    """Return the geometric mean of each method's regret over the complete cells."""
    place, means = stage["points"].index(point), complete(stage["cells"])
    logs: dict[str, float] = defaultdict(float)
    for cell in means.values():
        for name, column in cell.items():
            logs[name] += math.log(max(column[place], SMALLEST))
    return {name: math.exp(total / len(means)) for name, total in logs.items()}


def complete(cells: Mapping[str, Any]) -> dict[str, dict[str, Sequence[float]]]:
    """Return the means of the methods in nine tenths of the cells, in the cells that all of these have."""
    counts = Counter(name for cell in cells.values() for name in cell["methods"])
    full = {name for name, count in counts.items() if count >= 0.9 * len(cells)}
    return {
        problem: {name: cell["methods"][name]["mean"] for name in sorted(full)}
        for problem, cell in cells.items()
        if full <= cell["methods"].keys()
    }


def in_short(stage: Mapping[str, Any], point: int) -> dict[str, Any]:
    """Return how ours compares with all peers at a point.

    Returns:
        dictionary with the best peer by geometric mean, the ratio of our geometric mean to the peer's, the
        mean ranks of ours and of this peer, the numbers of cells and of cells in which ours is worse than
        the cell's best peer by more than two and three standard errors, and the worst cell; {} if nothing
        can be compared.
    """
    means, rank = geometric_means(stage, point), ranks(stage, point)
    peers = [name for name in means if is_peer(name)]
    apart = {
        name: errors
        for name, cell in stage["cells"].items()
        if str(point) in cell["against"] and (errors := errors_apart(cell["against"][str(point)])) is not None
    }
    if OURS not in means or not peers:
        return {}
    best = min(peers, key=means.__getitem__)
    worst = min(apart, key=apart.__getitem__, default=None)
    return {
        "peer": best,
        "ratio": means[OURS] / means[best],
        "rank": rank[OURS],
        "peer rank": rank[best],
        "cells": len(apart),
        "two": sum(value < -2 for value in apart.values()),
        "three": sum(value < -3 for value in apart.values()),
        "better": sum(value > 2 for value in apart.values()),
        "worst": "-" if worst is None else f"{worst} ({apart[worst]:+.1f})",
    }
