"""What a call, an object and an actor cost: `python -m benchmarks.runtime [--against ray]`.

Prints a small table and one line of JSON. With `--against ray` both sides do the same work on this
machine in this run, in processes of their own and round by round in turn, and the table shows how many
times better trainkit is, beside the aim. The bare round trip is the floor, measured in the same run: two
Python processes that exchange pickles over a Unix socket, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import socket
import statistics
import sys
from collections import defaultdict
from typing import NamedTuple

from benchmarks.interleaved import output_of
from benchmarks.runtime_work import rate

ROUNDS = 3
BOTH = ("first_reply", "calls", "nested", "arrays", "full_store", "one_more", "torch_actors", "own_torch")
OURS_ALONE = ("idle", "million")


class Row(NamedTuple):
    """One line of the table; without `better` more is better for a rate, and less for all else."""

    key: str
    label: str
    times: float | None = None  # the aim against Ray
    most: float | None = None  # the aim for our own figure


ROWS = [
    Row("import_ms", "import trainkit, ms", most=100),
    Row("init_to_first_reply_s", "import and init to the first answer, s", most=0.3),
    Row("bare_per_s", "bare pickle round trips a second"),
    Row("actor_call_per_s", "actor calls a second, one at a time", times=8),
    Row("actor_calls_unread_per_s", "actor calls a second, many in flight", times=20),
    Row("task_per_s", "tasks a second, one at a time", times=8),
    Row("tasks_unread_per_s", "tasks a second, many in flight", times=20),
    Row("nested_1_cpu_s", "200 times a task in a task in a task, 1 CPU, s", times=3),
    Row("nested_2_cpus_s", "200 times a task in a task in a task, 2 CPUs, s", times=3),
    Row("put_per_s", "put of a small value, a second", times=10),
    Row("get_per_s", "get of a small value, a second", times=10),
    Row("array_first_gb_per_s", "100 MB array as an argument, the first, GB/s", times=0.9),
    Row("array_next_gb_per_s", "100 MB array as an argument, each after it, GB/s", times=3),
    Row("full_store_put_per_s", "put of 300 KB into a full store, a second"),
    Row("second_reader_copied_mb", "a second reader of one 100 MB array copies, MB", most=1),
    Row("one_more_actor_ms", "one more actor, ms"),
    Row("ten_torch_actors_s", "ten more actors, each with torch, s", times=30),
    Row("ten_own_torch_actors_s", "ten more actors that import torch themselves, s", most=1.5),
    Row("torch_actor_unshared_mb", "unshared memory of each while idle, MB", most=15),
    Row("call_with_200_idle_times", "a call with 200 idle actors, against none, times", most=1.2),
    Row("million_calls_driver_mb", "a million small calls leave in the driver, MB", most=10),
    Row("million_calls_node_mb", "a million small calls leave in the node, MB", most=10),
    Row("million_calls_worker_mb", "a million small calls leave in the worker, MB", most=10),
]


def bare_round_trips(count: int = 3_000) -> float:
    """Round trips a second of a pickle over a Unix socket between two Python processes."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        while data := theirs.recv(65536):
            theirs.send(pickle.dumps(pickle.loads(data), 5))
        os._exit(0)
    theirs.close()

    def work() -> None:
        for index in range(count):
            ours.send(pickle.dumps(("same", 1, (index,), {}), 5))
            pickle.loads(ours.recv(65536))

    result = rate(count, work)
    ours.close()
    os.waitpid(pid, 0)
    return result


def import_ms() -> float:
    """Milliseconds that `import trainkit` takes in a fresh interpreter."""
    script = "import time; start = time.perf_counter(); import trainkit; print(time.perf_counter() - start)"
    return float(output_of([sys.executable, "-c", script])) * 1e3


def environment() -> dict[str, str]:
    """That of a user: with bytecode, as an installed package has it, however this program was started."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0"}


def section(side: str, name: str, scale: float) -> dict[str, float]:
    """The figures of one section of `benchmarks.runtime_work`, from a process of its own."""
    command = [sys.executable, "-m", "benchmarks.runtime_work", side, name, str(scale)]
    figures: dict[str, float] = json.loads(output_of(command, environment()).splitlines()[-1])
    return figures


def measure(sides: list[str], rounds: int, scale: float) -> dict[str, dict[str, float]]:
    """Medians over the rounds of all figures, by side and name."""
    found: dict[str, dict[str, list[float]]] = {side: defaultdict(list) for side in sides}
    for _ in range(rounds):
        found["trainkit"]["import_ms"].append(import_ms())
        found["trainkit"]["bare_per_s"].append(bare_round_trips())
        for name in BOTH:
            for side in sides:
                for key, value in section(side, name, scale).items():
                    found[side][key].append(value)
    for name in OURS_ALONE:
        for key, value in section("trainkit", name, scale).items():
            found["trainkit"][key].append(value)
    return {
        side: {key: statistics.median(values) for key, values in figures.items()}
        for side, figures in found.items()
    }


def better(key: str, ours: float, theirs: float) -> float:
    """How many times better `ours` is."""
    if key.endswith("per_s"):
        return ours / theirs
    return theirs / ours if ours else float("inf")


def shown(value: float) -> str:
    """A figure with three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def line(row: Row, ours: float, theirs: float | None, against: bool) -> str:
    """One line of the table."""
    text = f"{row.label:<50}{shown(ours):>12}"
    if not against:
        return text + ("" if row.most is None else f"{f'< {row.most:g}':>10}")
    text += f"{'' if theirs is None else shown(theirs):>12}"
    times = None if theirs is None else better(row.key, ours, theirs)
    text += f"{'' if times is None or times == float('inf') else f'{times:.1f}x':>10}"
    aim = f"{row.times:g}x" if row.times is not None else "" if row.most is None else f"< {row.most:g}"
    met = (
        ours <= row.most if row.most is not None else times is None or row.times is None or times >= row.times
    )
    return text + f"{aim:>10}{'' if met or not aim else '  not met'}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--against", choices=["ray"], help="measure Ray beside trainkit")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="part of the work to do; less than 1 only shows that it runs"
    )
    arguments = parser.parse_args()
    against: bool = arguments.against is not None
    sides = ["trainkit", *([arguments.against] if against else [])]
    figures = measure(sides, arguments.rounds, arguments.scale)
    ours, theirs = figures["trainkit"], figures.get("ray", {})

    columns = f"{'trainkit':>12}" + (f"{'Ray':>12}{'times':>10}" if against else "") + f"{'aim':>10}"
    print(f"{'work':<50}{columns}")
    for row in ROWS:
        print(line(row, ours[row.key], theirs.get(row.key), against))
    result: dict[str, object] = {"benchmark": "runtime", "cores": os.cpu_count(), "rounds": arguments.rounds}
    result |= {key: round(value, 4) for key, value in ours.items()}
    if against:
        result["ray"] = {key: round(value, 4) for key, value in theirs.items()}
        result["times"] = {key: round(better(key, ours[key], theirs[key]), 2) for key in theirs if ours[key]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
