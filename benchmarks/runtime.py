"""What a call, an object and an actor cost: `python -m benchmarks.runtime`.

Prints a small table and one line of JSON. Beside each figure stands Ray 2.60's on a two-core machine,
as a measure of scale only: it was taken on another day. The bare round trip is the floor, measured in
the same run: two Python processes that exchange pickles over a Unix socket, and nothing else.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import trainkit

ROUNDS = 5
CALLS = 3_000
UNREAD_CALLS = 20_000
TASKS = 2_000
ACTORS = 10
ARRAY_BYTES = 100_000_000


class Echo:
    """Answers with what it is given."""

    def same(self, value: Any) -> Any:
        return value

    def size(self, value: Any) -> int:
        return len(value)


def rate(count: int, work: Callable[[], object]) -> float:
    """Median over the rounds of `count` by the seconds that `work` takes."""
    rates = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates)


def bare_round_trips() -> float:
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
        for index in range(CALLS):
            ours.send(pickle.dumps(("same", 1, (index,), {}), 5))
            pickle.loads(ours.recv(65536))

    result = rate(CALLS, work)
    ours.close()
    os.waitpid(pid, 0)
    return result


def actor_start_ms() -> float:
    """Median milliseconds from asking for one more actor to its first answer."""
    actor_class = trainkit.remote(Echo)
    trainkit.get(actor_class.remote().same.remote(0))
    times = []
    for _ in range(4 * ROUNDS):
        start = time.perf_counter()
        actor = actor_class.remote()
        trainkit.get(actor.same.remote(0))
        times.append(time.perf_counter() - start)
        del actor
        time.sleep(0.05)  # its end is not the next one's cost
    return statistics.median(times) * 1e3


def first_reply_s() -> float:
    """Median seconds of a fresh interpreter from `import trainkit` to the first answer of a task."""
    script = (
        "import time; start = time.perf_counter(); import trainkit; trainkit.init(num_cpus=2);"
        "assert trainkit.get(trainkit.remote(lambda: 1).remote()) == 1; print(time.perf_counter() - start)"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True) for _ in range(5)
    ]
    return statistics.median(float(output.stdout) for output in outputs)


def import_ms() -> float:
    """Median milliseconds that `import trainkit` takes in a fresh interpreter."""
    script = "import time; start = time.perf_counter(); import trainkit; print(time.perf_counter() - start)"
    outputs = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True) for _ in range(5)
    ]
    return statistics.median(float(output.stdout) for output in outputs) * 1e3


def measure() -> dict[str, float]:
    """All figures, by name."""
    import numpy as np

    figures = {
        "import_ms": import_ms(),
        "init_to_first_reply_s": first_reply_s(),
        "bare_per_s": bare_round_trips(),
    }
    trainkit.init(num_cpus=2)
    actor = trainkit.remote(Echo).remote()
    task = trainkit.remote(lambda value: value)
    trainkit.get([actor.same.remote(0), task.remote(0)])
    figures["actor_call_per_s"] = rate(
        CALLS, lambda: [trainkit.get(actor.same.remote(i)) for i in range(CALLS)]
    )
    figures["actor_calls_unread_per_s"] = rate(
        UNREAD_CALLS, lambda: trainkit.get([actor.same.remote(i) for i in range(UNREAD_CALLS)])
    )
    figures["task_per_s"] = rate(TASKS, lambda: [trainkit.get(task.remote(i)) for i in range(TASKS)])
    figures["tasks_unread_per_s"] = rate(TASKS, lambda: trainkit.get([task.remote(i) for i in range(TASKS)]))
    figures["put_per_s"] = rate(CALLS, lambda: [trainkit.put(i) for i in range(CALLS)])
    refs = [trainkit.put(i) for i in range(CALLS)]
    figures["get_per_s"] = rate(CALLS, lambda: trainkit.get(refs))
    array = np.ones(ARRAY_BYTES // 8)
    sizes = rate(ARRAY_BYTES * 5, lambda: [trainkit.get(actor.size.remote(array)) for _ in range(5)])
    figures["array_argument_gb_per_s"] = sizes / 1e9
    figures["one_more_actor_ms"] = actor_start_ms()
    trainkit.shutdown()

    import torch  # noqa: F401 - from here on workers are forked from a template that has it

    trainkit.init(num_cpus=2)
    trainkit.get(trainkit.remote(Echo).remote().same.remote(0))
    figures["one_more_actor_with_torch_ms"] = actor_start_ms()
    trainkit.shutdown()
    return figures


ROWS: list[tuple[str, str, float | None, str]] = [
    ("import_ms", "import trainkit, ms", None, "< 100"),
    ("init_to_first_reply_s", "import and init to the first answer, s", 3.8, "< 0.3"),
    ("bare_per_s", "bare pickle round trips a second", None, ""),
    ("actor_call_per_s", "actor calls a second, one at a time", 1_730, ""),
    ("actor_calls_unread_per_s", "actor calls a second, many in flight", 8_200, ""),
    ("task_per_s", "tasks a second, one at a time", 690, ""),
    ("tasks_unread_per_s", "tasks a second, many in flight", 2_700, ""),
    ("put_per_s", "put of a small value, a second", 2_500, ""),
    ("get_per_s", "get of a small value, a second", 17_700, ""),
    ("array_argument_gb_per_s", "100 MB array as an argument, GB/s", 1.9, ""),
    ("one_more_actor_ms", "one more actor, ms", 110, ""),
    ("one_more_actor_with_torch_ms", "one more actor that has torch, ms", None, "< 10"),
]


def main() -> None:
    """Measure and print."""
    figures = measure()
    print(f"{'work':<44}{'measured':>12}{'aim':>8}{'Ray 2.60':>10}{'times':>8}")
    for key, label, ray, aim in ROWS:
        value = figures[key]
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        if ray is None:
            print(f"{label:<44}{shown:>12}{aim:>8}")
        else:
            better = value / ray if key.endswith("per_s") else ray / value
            print(f"{label:<44}{shown:>12}{aim:>8}{ray:>10,.4g}{better:>7.1f}x")
    print(
        json.dumps(
            {"benchmark": "runtime", "cores": os.cpu_count(), **{k: round(v, 4) for k, v in figures.items()}}
        )
    )


if __name__ == "__main__":
    main()
