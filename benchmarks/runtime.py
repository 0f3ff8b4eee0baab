"""Cost of calls, objects and actors: `python -m benchmarks.runtime [--against ray]`.

Prints a table, and its rows as one line of JSON. With `--against ray` both sides do the same work on this
machine in this run, in separate processes and alternately round by round, and the table shows the factor by
which trainkit is better, beside the aim. The lower limit is measured in the same run: bare round trips of
pickles between two Python processes over a Unix socket.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Container
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.interleaved import output_of
from benchmarks.limits import round_trips
from benchmarks.rows import MORE, Report, Row, parser

ROUNDS = 3
OURS_ALONE = ("idle", "million")
SECTIONS = (
    *("first_reply", "calls", "nested", "arrays", "full_store", "one_more", "torch_actors", "own_torch"),
    *OURS_ALONE,
)


ROWS = {
    "import_ms": Row("import trainkit", "ms"),
    "init_to_first_reply_s": Row("import and init to the first answer", "s"),
    "bare_per_s": Row("bare pickle round trips", "1/s", MORE),
    "actor_call_per_s": Row("actor calls, one at a time", "1/s", MORE),
    "actor_calls_unread_per_s": Row("actor calls, many in flight", "1/s", MORE),
    "task_per_s": Row("tasks, one at a time", "1/s", MORE),
    "tasks_unread_per_s": Row("tasks, many in flight", "1/s", MORE),
    "nested_1_cpu_s": Row("200 times a task in a task in a task, 1 CPU", "s"),
    "nested_2_cpus_s": Row("200 times a task in a task in a task, 2 CPUs", "s"),
    "put_per_s": Row("put of a small value", "1/s", MORE),
    "get_per_s": Row("get of a small value", "1/s", MORE),
    "array_first_gb_per_s": Row("100 MB array as an argument, the first", "GB/s", MORE),
    "array_next_gb_per_s": Row("100 MB array as an argument, each after it", "GB/s", MORE),
    "full_store_put_per_s": Row("put of 300 KB into a full store", "1/s", MORE),
    "second_reader_copied_mb": Row("a second reader of one 100 MB array copies", "MB"),
    "one_more_actor_ms": Row("one more actor", "ms"),
    "ten_torch_actors_s": Row("ten more actors, each with torch", "s"),
    "ten_own_torch_actors_s": Row("ten more actors that import torch themselves", "s"),
    "torch_actor_unshared_mb": Row("unshared memory of each while idle", "MB"),
    "call_with_200_idle_times": Row("a call with 200 idle actors, against none", ""),
    "million_calls_driver_mb": Row("a million small calls leave in the driver", "MB"),
    "million_calls_node_mb": Row("a million small calls leave in the node", "MB"),
    "million_calls_worker_mb": Row("a million small calls leave in the worker", "MB"),
    "demo_packages": Row("packages that `make demo` installs", exact=True),
}


def import_ms() -> float:
    """Return the milliseconds that `import trainkit` takes in a new interpreter."""
    script = "import time; start = time.perf_counter(); import trainkit; print(time.perf_counter() - start)"
    return float(output_of([sys.executable, "-c", script])) * 1e3


def demo_packages() -> int:
    """Return the number of packages that the extra "demo" installs, including trainkit and dependencies."""
    found, wanted = set[tuple[str, str]](), [("trainkit-ml", ""), ("trainkit-ml", "demo")]
    while wanted:
        name, extra = package = wanted.pop()
        if package in found:
            continue
        found.add(package)
        for each in map(Requirement, metadata.requires(name) or ()):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                wanted += [(canonicalize_name(each.name), more) for more in ("", *each.extras)]
    return len({name for name, _ in found})


def environment() -> dict[str, str]:
    """Return a user's environment: with bytecode files, as in an installed package."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0"}


def section(side: str, name: str, scale: float) -> dict[str, float]:
    """Return the figures of one section of `benchmarks.runtime_work`, from a separate process."""
    command = [sys.executable, "-m", "benchmarks.runtime_work", side, name, str(scale)]
    figures: dict[str, float] = json.loads(output_of(command, environment()).splitlines()[-1])
    return figures


def measure(
    sides: list[str], beside: Container[str], rounds: int, scale: float
) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """Return all figures by side and name, round by round; and the seconds of the bare round trips.

    The other side is measured only in the sections in `beside`.
    """
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    found["trainkit"]["demo_packages"].append(demo_packages())
    trips = max(10, round(300 * scale))
    with round_trips(trips) as bare:
        for _ in range(rounds):
            found["trainkit"]["import_ms"].append(import_ms())
            found["trainkit"]["bare_per_s"].append(trips / bare.look())
            for name in SECTIONS:
                for side in sides:
                    if side == "trainkit" or name in beside:
                        for key, value in section(side, name, scale).items():
                            found[side][key].append(value)
                bare.look()
        return found, bare.times


def main() -> None:
    """Measure and print the rows."""
    arguments = parser(__doc__)
    arguments.add_argument("--against", choices=["ray"], help="measure Ray beside trainkit")
    both = [name for name in SECTIONS if name not in OURS_ALONE]
    arguments.add_argument(
        "--beside", choices=both, action="append", help="in this section alone; may be given again"
    )
    arguments.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    given = arguments.parse_args()
    rounds, scale = (1, 0.002) if given.small else (given.rounds, 1.0)
    other = [given.against] if given.against else []
    figures, bare = measure(["trainkit", *other], given.beside or both, rounds, scale)
    with Report("runtime", *other, small=given.small) as report:
        for key, row in ROWS.items():
            theirs = figures[other[0]].get(key, ()) if other else ()
            report.add(row.measured(figures["trainkit"][key], theirs, bare))


if __name__ == "__main__":
    main()
