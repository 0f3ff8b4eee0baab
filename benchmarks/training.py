"""What the trainer costs, and what it saves: `python -m benchmarks.training`.

Prints a small table and one line of JSON. Both sides of each ratio take turns in the same run, one
thread a process, medians. `--small` only shows that it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

import trainkit
from benchmarks import training_steps
from benchmarks.interleaved import LAUNCHER, Served

DONE = "first epoch done"


@dataclass(frozen=True)
class Sizes:
    """How often each measurement is taken."""

    epochs: int = 31
    blocks: int = 21
    steps: int = 290
    """Of a block of two workers: ten passes over the data."""
    single_steps: int = 101
    starts: int = 5


SMALL = Sizes(epochs=3, blocks=3, steps=29, single_steps=9, starts=1)


def first_epoch(command: list[str]) -> float:
    """Return the seconds from starting `command` until it says that its first epoch is done."""
    start = time.perf_counter()
    with Served(command) as program:
        program.line(DONE)
        return time.perf_counter() - start


def starts(times: int) -> dict[str, list[float]]:
    """Seconds from nothing to the end of the first epoch of two workers, by turns."""
    took: dict[str, list[float]] = {"torchrun": [], "trainer": []}
    for _ in range(times):
        took["torchrun"].append(first_epoch([*LAUNCHER, "-m", "benchmarks.training_torchrun"]))
        took["trainer"].append(first_epoch([sys.executable, "-m", "benchmarks.training_trainer"]))
    return took


def row(work: str, plain: str, ours: str, ratio: float | None, aim: str) -> None:
    """Print one line of the table."""
    shown = "" if ratio is None else f"{ratio:.3f}"
    print(f"{work:<58}{plain:>12}{ours:>12}{shown:>8}{aim:>10}", flush=True)


def ms(seconds: float) -> str:
    """As milliseconds."""
    return f"{seconds * 1e3:.2f} ms"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--small", action="store_true", help="few steps: only shows that it runs")
    sizes = SMALL if parser.parse_args().small else Sizes()
    found: dict[str, Any] = {"benchmark": "training", "cores": os.cpu_count(), **vars(sizes)}
    print(f"{'work':<58}{'plain':>12}{'trainkit':>12}{'ratio':>8}{'aim':>10}")

    plain, ours, again = map(statistics.median, training_steps.epoch_times(sizes.epochs))
    row("an epoch on one worker, speed", ms(plain), ms(ours), plain / ours, ">= 0.98")
    row("  the plain loop against itself", "", "", plain / again, "")
    found |= {"plain_epoch_s": plain, "trainer_epoch_s": ours, "speed_of_plain": plain / ours}
    found["plain_against_itself"] = plain / again

    blocks = training_steps.two_worker_times(sizes.steps, sizes.blocks)
    theirs, ours = (statistics.median(times) / sizes.steps for times in blocks)
    row("a step of two DDP workers, speed (plain: torchrun)", ms(theirs), ms(ours), theirs / ours, ">= 0.98")
    found |= {"torchrun_step_s": theirs, "trainer_step_s": ours, "speed_of_torchrun": theirs / ours}

    for workers in (1, 2):
        books, snapshot = training_steps.bookkeeping(workers, sizes.single_steps)
        row(f"bookkeeping of an epoch, {workers} worker(s)", "", ms(books), None, "< 2 ms")
        found[f"bookkeeping_{workers}_s"] = books
        if snapshot is not None:
            row("  and its recovery snapshot (none with max_retries=0)", "", ms(snapshot), None, "")
            found[f"snapshot_{workers}_s"] = snapshot

    ddp, fsdp = training_steps.memory("ddp"), training_steps.memory("fsdp")
    assert ddp is not None
    if fsdp is None:
        row("parameters and optimizer state of a worker", f"{ddp:,} B", "no fsdp", None, "<= 0.6")
    else:
        row(
            "held by each of two workers (plain: DDP; FSDP2)",
            f"{ddp:,} B",
            f"{fsdp:,} B",
            fsdp / ddp,
            "<= 0.6",
        )
        found["fsdp_memory_of_ddp"] = fsdp / ddp
    trainkit.shutdown()

    took = starts(sizes.starts)
    theirs, ours = statistics.median(took["torchrun"]), statistics.median(took["trainer"])
    row(
        "from nothing to the first epoch of two workers, time",
        f"{theirs:.2f} s",
        f"{ours:.2f} s",
        ours / theirs,
        "<= 0.65",
    )
    found |= {"torchrun_first_epoch_s": took["torchrun"], "trainer_first_epoch_s": took["trainer"]}
    found["time_of_torchrun"] = ours / theirs
    print(json.dumps({name: _rounded(value) for name, value in found.items()}))


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
