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
"""Smallest number of seeds for a comparison in a cell."""
SMALLEST = 0.01
"""Smallest regret in a geometric mean, as a share of random search's last regret."""
Rows = Iterable[Mapping[str, Any]]
Group = dict[str, dict[str, dict[int, Sequence[float]]]]
"""Regrets by problem, method and seed."""


def of(rows: Rows) -> dict[str, Any]:
    """Return the record of these rows: for each stage, the points, the methods and the cells.

    A cell has for each method the number of seeds, the mean regret at each point relative to random search's
    mean at the last point, and its standard error; and for each point that is told, the comparison of ours
    with the other library of the smallest mean, over the seeds that both have.
    """
    stages: dict[tuple[bool, int, int], Group] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    versions = {}
    cpu: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        key = (row["problem"].startswith("curves"), row["workers"], row["evaluations"])
        stages[key][row["problem"]][row["method"]][row["seed"]] = row["regret"]
        versions[row["method"]] = row["version"]
        cpu[row["method"]].append(row["cpu_s"] / row["evaluations"])
    return {
        "versions": dict(sorted(versions.items())),
        "seconds": {name: float(f"{sum(found) / len(found):.3g}") for name, found in sorted(cpu.items())},
        "stages": [
            {
                "curves": curves,
                "workers": workers,
                "evaluations": evaluations,
                "points": (points := [point for point in POINTS if point <= evaluations]),
                "cells": {name: cell for name in sorted(group) if (cell := _cell(group[name], points))},
            }
            for (curves, workers, evaluations), group in sorted(stages.items())
        ],
    }


def _cell(methods: Mapping[str, Mapping[int, Sequence[float]]], points: Sequence[int]) -> dict[str, Any]:
    """Return a cell; {} if random search has not run in it."""
    if REFERENCE not in methods:
        return {}
    last = [run[-1] for run in methods[REFERENCE].values()]
    unit = sum(last) / len(last)
    if not unit > 0:
        return {}
    found: dict[str, Any] = {"unit": _short(unit), "methods": {}, "against": {}}
    for name, runs in sorted(methods.items()):
        columns = [Cell.of([value / unit for value in column]) for column in zip(*runs.values(), strict=True)]
        found["methods"][name] = {
            "seeds": len(runs),
            "mean": [_short(each.mean) for each in columns],
            "error": [_short((each.sd or 0.0) / math.sqrt(each.seeds)) for each in columns],
        }
    if OURS in methods:
        for point in TOLD:
            if point in points and (best := _best_peer(found["methods"], place := points.index(point))):
                against = _against(methods, best, place, unit)
                if against["seeds"] >= FEWEST:
                    found["against"][str(point)] = against
    return found


def written(found: Mapping[str, Any]) -> str:
    """Return the text of a record, with each list of numbers on one line."""
    text = json.dumps(found, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda list_: f"[{' '.join(list_[1].split())}]", text) + "\n"


def is_peer(method: str) -> bool:
    """Return True for another library's method."""
    return not method.startswith("trainkit")


def _best_peer(methods: Mapping[str, Any], place: int) -> str | None:
    means = {
        name: each["mean"][place]
        for name, each in methods.items()
        if is_peer(name) and each["seeds"] >= FEWEST
    }
    return min(means, key=means.__getitem__) if means else None


def _against(
    methods: Mapping[str, Mapping[int, Sequence[float]]], peer: str, place: int, unit: float
) -> dict[str, Any]:
    seeds = sorted(methods[OURS].keys() & methods[peer].keys())
    ours, theirs = ([methods[name][seed][place] / unit for seed in seeds] for name in (OURS, peer))
    compared = paired(ours, theirs)
    return {"peer": peer, "seeds": len(seeds), "gain": _short(compared.gain), "error": _short(compared.error)}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def errors_apart(against: Mapping[str, Any]) -> float | None:
    """Return by how many standard errors ours is better; None if the errors are unknown."""
    if against["gain"] == 0:
        return 0.0
    return against["gain"] / against["error"] if against["seeds"] > 1 and against["error"] else None


def ranks(stage: Mapping[str, Any], point: int) -> dict[str, float]:
    """Return the mean rank of each method over the complete cells; equal means share a rank."""
    place, means = stage["points"].index(point), complete(stage)
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
    place, means = stage["points"].index(point), complete(stage)
    logs: dict[str, float] = defaultdict(float)
    for cell in means.values():
        for name, column in cell.items():
            logs[name] += math.log(max(column[place], SMALLEST))
    return {name: math.exp(total / len(means)) for name, total in logs.items()}


def complete(stage: Mapping[str, Any]) -> dict[str, dict[str, Sequence[float]]]:
    """Return the means of the methods that have run most problems, in the problems that all of these have.

    A method that lacks two seeds in more than a tenth of the problems is left out.
    """
    cells = stage["cells"]
    counts = Counter(
        name for cell in cells.values() for name, each in cell["methods"].items() if each["seeds"] > 1
    )
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
        mean ranks of ours and of the best peer by rank, the numbers of cells and of cells in which ours is
        worse than the best peer by more than two and three standard errors, and the worst cell; {} if
        nothing can be compared.
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
        "peer rank": min(rank[name] for name in peers),
        "cells": len(apart),
        "two": sum(value < -2 for value in apart.values()),
        "three": sum(value < -3 for value in apart.values()),
        "better": sum(value > 2 for value in apart.values()),
        "worst": "-" if worst is None else f"{worst} ({apart[worst]:+.1f})",
    }
