"""Work that the runtime's benchmark times. It is the same on both sides, whose functions have equal names.

`python -m benchmarks.runtime_work SIDE SECTION SCALE` runs one section and prints its figures as a line of
JSON. `benchmarks.runtime` runs each as a separate process, so that no side disturbs the other.

If the work is short, times are the best of a few repetitions, because on a busy machine slower repetitions
show the load of other programs.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.interleaved import output_of

ARRAY_BYTES = 100_000_000
FULL_STORE_BYTES = 100_000_000
FULL_ITEM_BYTES = 300_000
ARGUMENTS = {"trainkit": "num_cpus=2", "ray": "num_cpus=2, address='local', include_dashboard=False"}


class Echo:
    """Actor that returns its arguments."""

    def same(self, value: Any) -> Any:
        return value

    def size(self, value: Any) -> int:
        return len(value)

    def keep(self, value: Any) -> float:
        self.kept = value
        return float(value.sum())

    def torch(self) -> str:
        import torch

        return str(torch.__version__)

    def pids(self) -> tuple[int, int]:
        """Return the pids of this process and of its parent."""
        return os.getpid(), os.getppid()


def memory_mb(pid: int | str, *fields: str) -> float:
    """Return the sum of `fields` in the kernel's account of a process, in units of 10^6 bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    amounts = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return sum(amounts[field] for field in fields) * 1024 / 1e6


def unshared_mb(pid: int) -> float:
    """Return the memory that would be freed with a process, in units of 10^6 bytes."""
    return memory_mb(pid, "Private_Clean", "Private_Dirty")


def rate(count: int, work: Callable[[], object], repetitions: int = 3) -> float:
    """Return `count` divided by the seconds that `work` takes, the best of the repetitions."""
    rates = []
    for _ in range(repetitions):
        start = time.perf_counter()
        work()
        rates.append(count / (time.perf_counter() - start))
    return max(rates)


def started(side: str, cpus: int = 2, **more: Any) -> Any:
    """Start a session with `cpus` CPUs; return the module of the side."""
    api = importlib.import_module(side)
    arguments: dict[str, Any] = {"num_cpus": cpus, **more}
    if side == "ray":
        # Without "local", Ray would join a running cluster, or the address that another program left behind.
        api.init(**arguments, address="local", include_dashboard=False, log_to_driver=False)
    else:
        api.init(**arguments)
    return api


def calls(api: Any, scale: float) -> dict[str, float]:
    """Measure small calls, tasks and objects."""
    some, many = int(2_000 * scale), int(10_000 * scale)
    actor, task = api.remote(Echo).remote(), api.remote(_same)
    api.get([actor.same.remote(0), task.remote(0)])
    api.get([task.remote(index) for index in range(100)])  # fills any pool of workers
    figures = {
        "actor_call_per_s": rate(some, lambda: [api.get(actor.same.remote(i)) for i in range(some)]),
        "actor_calls_unread_per_s": rate(many, lambda: api.get([actor.same.remote(i) for i in range(many)])),
        "task_per_s": rate(some // 2, lambda: [api.get(task.remote(i)) for i in range(some // 2)]),
        "tasks_unread_per_s": rate(some, lambda: api.get([task.remote(i) for i in range(some)])),
        "put_per_s": rate(some, lambda: [api.put(i) for i in range(some)]),
    }
    refs = [api.put(i) for i in range(some)]
    figures["get_per_s"] = rate(some, lambda: [api.get(ref) for ref in refs])
    return figures


def _same(value: Any) -> Any:
    return value


def nested(side: str, scale: float) -> dict[str, float]:
    """Measure tasks that wait for tasks that wait for tasks, in sessions of one CPU and of two."""
    count = max(4, int(200 * scale))
    figures = {}
    for cpus, key in ((1, "nested_1_cpu_s"), (2, "nested_2_cpus_s")):
        api = started(side, cpus)
        task = _remote_outer(side)
        api.get(task.remote(side, 2))
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            api.get([task.remote(side, 2) for _ in range(count)])
            seconds.append(time.perf_counter() - start)
        figures[key] = min(seconds)
        api.shutdown()
    return figures


def _outer(side: str, levels: int) -> int:
    """Return the number of levels below; each level waits for the next."""
    if not levels:
        return 0
    return 1 + int(importlib.import_module(side).get(_remote_outer(side).remote(side, levels - 1)))


@functools.cache
def _remote_outer(side: str) -> Any:
    return importlib.import_module(side).remote(_outer)


def arrays(api: Any, scale: float) -> dict[str, float]:
    """Measure a large array as an argument, and as one reference that two actors read."""
    import numpy as np

    array = np.ones(int(ARRAY_BYTES * scale) // 8)
    actor, other = api.remote(Echo).remote(), api.remote(Echo).remote()
    api.get([actor.size.remote(array[:1]), other.size.remote(array[:1])])
    size = array.nbytes / 1e9
    figures = {
        "array_first_gb_per_s": rate(1, lambda: api.get(actor.size.remote(array)), 1) * size,
        "array_next_gb_per_s": rate(1, lambda: api.get(actor.size.remote(array)), 5) * size,
    }
    ref = api.put(array)
    api.get(actor.keep.remote(ref))
    pid = api.get(other.pids.remote())[0]
    before = memory_mb(pid, "Anonymous")
    api.get(other.keep.remote(ref))
    figures["second_reader_copied_mb"] = max(0.0, memory_mb(pid, "Anonymous") - before)
    return figures


def full_store(side: str, scale: float) -> dict[str, float]:
    """Measure puts of arrays of 300 KB into a full store, which moves as much to disk."""
    import numpy as np

    api = started(side, object_store_memory=FULL_STORE_BYTES)
    array = np.ones(FULL_ITEM_BYTES, np.uint8)
    refs = [api.put(array) for _ in range(FULL_STORE_BYTES // FULL_ITEM_BYTES)]
    some = max(100, int(500 * scale))
    figures = {
        "full_store_put_per_s": rate(some, lambda: refs.extend([api.put(array) for _ in range(some)]), 1)
    }
    api.shutdown()
    return figures


def one_more(api: Any, scale: float) -> dict[str, float]:
    """Measure the time from requesting one more actor to its first answer."""
    actor_class = api.remote(Echo).options(num_cpus=0)
    api.get(actor_class.remote().same.remote(0))
    times = []
    for _ in range(max(2, int(8 * scale))):
        time.sleep(0.1)  # so that the end of the previous actor is not measured
        start = time.perf_counter()
        actor = actor_class.remote()
        api.get(actor.same.remote(0))
        times.append(time.perf_counter() - start)
        del actor
    return {"one_more_actor_ms": sorted(times)[len(times) // 2] * 1e3}


def torch_actors(api: Any, scale: float) -> dict[str, float]:
    """Measure starting ten actors at once that import torch; this process imported it before the session."""
    count = max(1, int(10 * scale))
    actor_class = api.remote(Echo).options(num_cpus=0)
    first = actor_class.remote()
    api.get(first.torch.remote())
    start = time.perf_counter()
    actors = [actor_class.remote() for _ in range(count)]
    api.get([actor.torch.remote() for actor in actors])
    seconds = time.perf_counter() - start
    pids = [api.get(actor.pids.remote())[0] for actor in actors]
    memory = sorted(unshared_mb(pid) for pid in pids)
    return {"ten_torch_actors_s": seconds, "torch_actor_unshared_mb": memory[len(memory) // 2]}


def own_torch(api: Any, scale: float) -> dict[str, float]:
    """Measure starting ten actors at once that import torch, which this process has not imported."""
    figures = torch_actors(api, scale)
    return {"ten_own_torch_actors_s": figures["ten_torch_actors_s"]}


def first_reply(side: str, scale: float) -> dict[str, float]:
    """Measure, in a new interpreter, the time from the import to the first answer of a task."""
    script = (
        f"import time; start = time.perf_counter(); import {side} as api; api.init({ARGUMENTS[side]});"
        "assert api.get(api.remote(lambda: 1).remote()) == 1; print(time.perf_counter() - start)"
    )
    return {"init_to_first_reply_s": float(output_of([sys.executable, "-c", script]).split()[-1])}


def idle(api: Any, scale: float) -> dict[str, float]:
    """Measure a call to an actor beside many idle ones, relative to a call without them."""
    some, many = int(2_000 * scale), max(4, int(200 * scale))
    actor_class = api.remote(Echo).options(num_cpus=0)
    actor = actor_class.remote()

    def work() -> None:
        for index in range(some):
            api.get(actor.same.remote(index))

    work()
    alone = [rate(some, work, 5)]
    others = [actor_class.remote() for _ in range(many)]
    api.get([other.same.remote(0) for other in others])
    actor = actor_class.remote()  # made after all the idle actors
    work()
    crowded = rate(some, work, 5)
    del others
    time.sleep(2.0)  # until they have ended
    alone.append(rate(some, work, 5))  # before and after the other figure, because the machine may change
    return {"call_with_200_idle_times": sum(alone) / 2 / crowded}


def million(api: Any, scale: float) -> dict[str, float]:
    """Measure the memory that a million small calls leave in the driver, the node and the worker."""
    actor = api.remote(Echo).remote()
    worker, node = api.get(actor.pids.remote())
    processes = {"driver": os.getpid(), "node": node, "worker": worker}

    def send(count: int) -> None:
        for _ in range(count // 1_000):
            api.get([actor.same.remote(i) for i in range(1_000)])

    send(max(10_000, int(100_000 * scale)))
    before = {name: memory_mb(pid, "Rss") for name, pid in processes.items()}
    send(int(1_000_000 * scale))
    return {
        f"million_calls_{name}_mb": memory_mb(pid, "Rss") - before[name] for name, pid in processes.items()
    }


SECTIONS: dict[str, Callable[[Any, float], dict[str, float]]] = {
    "calls": calls,
    "arrays": arrays,
    "one_more": one_more,
    "torch_actors": torch_actors,
    "own_torch": own_torch,
    "idle": idle,
    "million": million,
}


def main() -> None:
    """Run one section and print its figures."""
    side, section, scale = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if section == "first_reply":
        figures = first_reply(side, scale)
    elif section == "nested":
        figures = nested(side, scale)
    elif section == "full_store":
        figures = full_store(side, scale)
    else:
        if section == "torch_actors":
            importlib.import_module("torch")
        api = started(side)
        figures = SECTIONS[section](api, scale)
        api.shutdown()
    print(json.dumps(figures))


if __name__ == "__main__":
    # Imported by its name, because objects of `__main__` would be sent by value with the first call.
    importlib.import_module("benchmarks.runtime_work").main()
