"""What the tuner itself costs: `python -m benchmarks.tuning [--against ray] [--only SECTION]`.

Prints a small table and one line of JSON. Trials do nothing, or sleep, so all the time is the tuner's.
With `--against ray` both sides do the same work on this machine in this run, in processes of their own
and round by round in turn, and the table shows how many times better trainkit is, beside the aim. Ray
needs `pip install 'ray[tune]'`; without, its column is left out. TMPDIR says where experiments are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from typing import Any, NamedTuple

from benchmarks.interleaved import output_of

ROUNDS = 3
SECTIONS = {
    "fresh": ("trainkit", "ray"),
    "reuse": ("trainkit", "ray"),
    "inline": ("trainkit",),
    "results": ("trainkit", "ray"),
    "parabola": ("trainkit", "ray"),
    "sleep_reuse": ("trainkit", "ray"),
    "sleep_fresh": ("trainkit", "ray"),
    "large": ("trainkit",),
    "decisions": ("trainkit",),
}
LONG = ("sleep_reuse", "sleep_fresh", "large")
"""Taken once: each is thousands of trials."""


class Row(NamedTuple):
    """One line of the table; less is better, but for a rate."""

    key: str
    label: str
    most: float | None = None  # the aim for our own figure; the least for a rate
    times: float | None = None  # the aim against Ray


ROWS = [
    Row("fresh_ms", "a trivial trial in a fresh process, of 100, ms", most=12, times=80),
    Row("reuse_ms", "a trivial trial with reuse_actors=True, of 1,000, ms", most=1.5),
    Row("inline_ms", "a trivial trial on the inline engine, of 100, ms", most=5),
    Row("results_per_s", "results a second from two trials, all default loggers", most=5_000, times=12),
    Row("last_to_first_times", "10,000 trials: the last thousand, times the first", most=1.1),
    Row("driver_grows_mb", "  the driver's memory grows from trial 500 on, MB", most=100),
    Row("state_write_ms", "  a write of the state after 5,000 trials, ms", most=5),
    Row("state_write_grows_percent", "  it grows from trial 500 to there, %", most=10),
    Row("restore_s", "  restore of them all, s", most=3),
    Row("sleep_reuse_over_percent", "10,000 x 0.1 s on 16 CPUs, reuse: over 62.5 s, %", most=5),
    Row("sleep_fresh_over_percent", "10,000 x 0.1 s on 16 CPUs, fresh: over 62.5 s, %", most=30),
    Row("optuna_own_ms", "Ray issue 11004: a trial in Optuna's own loop, ms"),
    Row("optuna_ms", "  a trial here, ms"),
    Row("optuna_search_times", "  CPU time more than random search's, times that loop's", most=2),
    Row("disk_kb", "on the disk, a trial, KB", times=1),
    Row("disk_files", "on the disk, a trial, files", times=1),
    Row("asha_decision_us", "a decision of ASHA at a rung of 10,000, us", most=100),
]


def section(side: str, name: str, scale: float) -> dict[str, Any]:
    """The figures of one section, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tuning_work", side, name, str(scale)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    figures: dict[str, Any] = json.loads(output_of(command, environment).splitlines()[-1])
    return figures


def measure(names: list[str], sides: list[str], rounds: int, scale: float) -> dict[str, dict[str, float]]:
    """Medians over the rounds of all figures, by side and name; what is skipped is said on stderr."""
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    skipped: set[tuple[str, str]] = set()
    for number in range(rounds):
        for name in names:
            for side in sides:
                if side not in SECTIONS[name] or (side, name) in skipped or (number and name in LONG):
                    continue
                figures = section(side, name, scale)
                if "skipped" in figures:
                    skipped.add((side, name))
                    sys.stderr.write(f"{side}, {name}: left out, needs {figures['skipped']}\n")
                    continue
                for key, value in figures.items():
                    found[side][key].append(value)
    return {
        side: {key: statistics.median(values) for key, values in figures.items()}
        for side, figures in found.items()
    }


def is_rate(key: str) -> bool:
    """Whether more is better."""
    return key.endswith("per_s")


def better(key: str, ours: float, theirs: float) -> float:
    """How many times better `ours` is."""
    better, worse = (ours, theirs) if is_rate(key) else (theirs, ours)
    return better / worse if worse > 0 else float("inf")


def shown(value: float | None) -> str:
    """A figure with three digits that count."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def line(row: Row, ours: float, theirs: float | None, *, judge: bool) -> str:
    """One line of the table; with `judge`, whether the aim is met."""
    times = None if theirs is None else better(row.key, ours, theirs)
    sign, met = (">", ours >= (row.most or 0)) if is_rate(row.key) else ("<", ours <= (row.most or ours))
    aim = "" if row.most is None else f"{sign} {row.most:,g}"
    if row.times is not None and times is not None:
        aim, met = f"{aim}{', ' if aim else ''}{row.times:g}x", met and times >= row.times
    text = f"{row.label:<56}{shown(ours):>10}{shown(theirs):>10}{'' if times is None else f'{times:.0f}x':>8}"
    return f"{text}{aim:>16}{'' if met else '  not met'}" if judge else text


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", choices=["ray"], help="measure Ray Tune beside trainkit")
    parser.add_argument("--only", choices=list(SECTIONS), action="append", help="may be given again")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of the short ones; default {ROUNDS}")
    parser.add_argument("--small", action="store_true", help="little work: only shows that it runs")
    arguments = parser.parse_args()
    names = arguments.only or list(SECTIONS)
    sides = ["trainkit", *([arguments.against] if arguments.against else [])]
    rounds, scale = (1, 0.0) if arguments.small else (arguments.rounds, 1.0)
    figures = measure(names, sides, rounds, scale)
    ours, theirs = figures["trainkit"], figures.get("ray", {})

    print(
        f"{'work':<56}{'trainkit':>10}{'Ray' if theirs else '':>10}{'times' if theirs else '':>8}{'aim':>16}"
    )
    for row in ROWS:
        if row.key in ours:
            print(line(row, ours[row.key], theirs.get(row.key), judge=not arguments.small))
    result: dict[str, object] = {"benchmark": "tuning", "cores": os.cpu_count(), "rounds": rounds}
    result |= {key: round(value, 4) for key, value in ours.items()}
    if theirs:
        result["ray"] = {key: round(value, 4) for key, value in theirs.items()}
        result["times"] = {key: round(better(key, ours[key], theirs[key]), 2) for key in theirs}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
