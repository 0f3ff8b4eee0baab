"""Overhead of the tuner: `python -m benchmarks.tuning [--against ray] [--only SECTION]`.

Prints a table, and its rows as one line of JSON. Trials do nothing, or sleep, so all measured time is the
tuner's. With `--against ray` both sides do the same work on this machine in this run, in separate processes
and alternately round by round, and the table shows the factor by which trainkit is better, beside the aim. If
`ray[tune]` is not installed, Ray's column is left out. `--only huge` runs a hundred thousand trials, which
are otherwise left out. TMPDIR selects the folder of the experiments.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Any

from benchmarks.interleaved import Plain, output_of
from benchmarks.limits import forks
from benchmarks.rows import MORE, Report, Row, parser

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
    "start": ("trainkit",),
    "huge": ("trainkit",),
}
ONCE = ("sleep_reuse", "sleep_fresh", "huge")
"""Sections that take minutes, so they have one round."""
ALONE = ("huge",)
"""Sections that take about a quarter of an hour, so they run only on request."""
ROWS = {
    "help_s": Row("trainkit --help", "s"),
    "first_tuner_s": Row("import trainkit.tune and a first Tuner", "s"),
    "fresh_ms": Row("a trivial trial in a fresh process, of 100", "ms"),
    "reuse_ms": Row("a trivial trial with reuse_actors=True, of 1,000", "ms"),
    "inline_ms": Row("a trivial trial on the inline engine, of 100", "ms"),
    "results_per_s": Row("results from two trials, all default loggers", "1/s", MORE),
    "last_to_first_times": Row("10,000 trials: the last thousand, times the first"),
    "driver_grows_mb": Row("10,000 trials: the driver's memory grows from trial 500 on", "MB"),
    "state_write_ms": Row("10,000 trials: a write of the state after 5,000", "ms"),
    "state_write_grows_percent": Row("10,000 trials: that is more than after trial 500 by", "%"),
    "restore_s": Row("10,000 trials: restore of them all", "s"),
    "sleep_reuse_over_percent": Row("10,000 x 0.1 s on 16 CPUs, reuse: over 62.5 s by", "%"),
    "sleep_fresh_over_percent": Row("10,000 x 0.1 s on 16 CPUs, fresh: over 62.5 s by", "%"),
    "optuna_own_ms": Row("Ray issue 11004: a trial of Optuna's own loop", "ms"),
    "optuna_ms": Row("Ray issue 11004: a trial of OptunaSearch", "ms"),
    "optuna_search_times": Row("OptunaSearch's CPU time beyond random's, of that loop's"),
    "disk_kb": Row("on the disk, of a trial", "KB"),
    "huge_last_to_first_times": Row("100,000 trials: the last thousand, times the first"),
    "huge_driver_mb": Row("100,000 trials: the driver's memory at the end", "MB"),
    "huge_restore_s": Row("100,000 trials: restore of them all", "s"),
    "huge_ls_s": Row("100,000 trials: trainkit ls", "s"),
    "huge_table_s": Row("100,000 trials: get_dataframe", "s"),
    "disk_files": Row("files on the disk, of a trial", "files"),
}


def section(side: str, name: str, scale: float, folder: str) -> dict[str, Any]:
    """Return the figures of one section, from a separate process that keeps its experiments in `folder`."""
    command = [sys.executable, "-m", "benchmarks.tuning_work", side, name, str(scale)]
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": folder}
    figures: dict[str, Any] = json.loads(output_of(command, environment).splitlines()[-1])
    return figures


def measure(
    report: Report,
    names: Mapping[str, Container[str]],
    sides: list[str],
    rounds: int,
    scale: float,
    folder: str,
) -> None:
    """Report all figures of these sections, each for its own sides; experiments are kept in `folder`."""
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    skipped: set[tuple[str, str]] = set()
    plain = Plain(forks)
    for number in range(rounds):
        for name, known in names.items():
            if number and name in ONCE:
                continue
            plain.look()
            for side in sides:
                if side not in known or (side, name) in skipped:
                    continue
                figures = section(side, name, scale, folder)
                if "skipped" in figures:
                    skipped.add((side, name))
                    report.skip(f"{side}, {name}", f"needs {figures['skipped']}")
                    continue
                for key, value in figures.items():
                    found[side][key].append(value)
    ours, *others = found.values()
    for key, row in ROWS.items():
        if key in ours:
            report.add(
                row.measured(ours[key], *(theirs.get(key, ()) for theirs in others), plain=plain.times)
            )


def main() -> None:
    """Measure and print the rows."""
    arguments = parser(__doc__)
    arguments.add_argument("--against", choices=["ray"], help="measure Ray Tune beside trainkit")
    arguments.add_argument(
        "--beside", choices=list(SECTIONS), action="append", help="in this section alone; may be given again"
    )
    arguments.add_argument("--only", choices=list(SECTIONS), action="append", help="may be given again")
    arguments.add_argument("--rounds", type=int, default=ROUNDS, help="%(default)s")
    given = arguments.parse_args()
    other = [given.against] if given.against else []
    rounds, scale = (1, 0.0) if given.small else (given.rounds, 1.0)
    # Removed at the very end, because on ext4 a new file takes ten times as long if files, such as those of
    # the previous round, were deleted in the last minutes.
    folders = tempfile.TemporaryDirectory(prefix="tuning-", ignore_cleanup_errors=True)
    with Report("tuning", *other, small=given.small) as report, folders as folder:
        names = {
            name: SECTIONS[name] if name in (given.beside or SECTIONS) else ("trainkit",)
            for name in given.only or SECTIONS
            if given.only or name not in ALONE
        }
        measure(report, names, ["trainkit", *other], rounds, scale, folder)


if __name__ == "__main__":
    main()
