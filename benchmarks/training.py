"""Cost and savings of the trainer: `python -m benchmarks.training`.

Prints a table, and its rows as one line of JSON. Both sides take turns in the same run, with one thread per
process.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import trainkit
from benchmarks import training_saves, training_steps
from benchmarks.interleaved import LAUNCHER, Served, in_turn
from benchmarks.rows import Report, Row, parser

DONE = "first epoch done"
SECOND = "second trainer took"

# Without a GPU, --multi_gpu begins two ranks as torchrun does; other flags would use MPI.
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
ACCELERATE += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]


@dataclass(frozen=True)
class Sizes:
    """Number of repetitions of each measurement."""

    epochs: int = 31
    blocks: int = 15
    steps: int = 290
    """Number of steps in a block of two workers: ten passes over the data."""
    single_steps: int = 101
    starts: int = 5
    millions: int = 100
    """Number of parameters, in millions, of the model that is saved."""
    save_steps: int = 12
    save_rounds: int = 3


SMALL = Sizes(epochs=1, blocks=1, steps=2, single_steps=1, starts=1, millions=1, save_steps=3, save_rounds=1)


def first_epoch(command: list[str], then: Callable[[Served], None] = lambda _: None) -> float:
    """Return the seconds from the start of `command` until it prints that its first epoch is done.

    Args:
        command: command of the program.
        then: function that reads the rest of the program's output.
    """
    start = time.perf_counter()
    with Served([*command, *sys.argv[1:]]) as program:
        program.line(DONE)
        took = time.perf_counter() - start
        then(program)
        return took


class Starts:
    """Seconds until two workers finish their first epoch, for several programs and for torchrun.

    Args:
        times: number of starts of each program.

    Attributes:
        operator, function, script: times of new programs: a trainer with an operator, a trainer with a
            function, and torchrun's script under `trainkit run`.
        second_operator, second_function: times of a second trainer in the same program, from its creation.
        torchrun, accelerate: times of new programs: that script under torchrun and `accelerate launch`.
    """

    def __init__(self, times: int) -> None:
        self.second_operator: list[float] = []
        self.second_function: list[float] = []

        def program(name: str, again: list[float]) -> Callable[[], object]:
            def read(served: Served) -> None:
                again.append(float(served.line(SECOND).removeprefix(SECOND).partition(":")[0]))

            return lambda: first_epoch([sys.executable, "-m", name], read)

        job = ["-m", "benchmarks.training_torchrun"]
        launcher = [sys.executable, "-m", "trainkit", "run", "--workers", "2"]
        sides = (
            program("benchmarks.training_trainer", self.second_operator),
            program("benchmarks.training_function", self.second_function),
            lambda: first_epoch([*launcher, *job]),
            lambda: first_epoch([*LAUNCHER, *job]),
            lambda: first_epoch([*ACCELERATE, *job]),
        )
        took = in_turn(sides, times, warm_up=0)
        self.operator, self.function, self.script, self.torchrun, self.accelerate = took


def served(command: list[str], steps: int) -> float:
    """Return the seconds that a program of two workers takes for `steps` steps."""
    with Served([*command, "--serve"]) as program:
        return program.steps(steps)


def main() -> None:
    """Measure and print the rows."""
    small = parser(__doc__).parse_args().small
    sizes = SMALL if small else Sizes()
    with Report("training", "plain", small=small) as report:

        def add(row: Row, sides: list[list[float]], steps: int = 1) -> None:
            scale = 1e3 if row.unit == "ms" else 1
            report.add(row.measured(*([took * scale / steps for took in side] for side in sides)))

        for cores, where in ((1, "on one core"), (2, "where a core is free")):
            row = Row(f"an epoch on one worker, {where}", "ms")
            if len(os.sched_getaffinity(0)) < cores:
                report.skip(row.name, f"needs {cores} cores")
                continue
            add(row, training_steps.epoch_times(sizes.epochs, cores))
        blocks = training_steps.two_worker_times(sizes.steps, sizes.blocks)
        add(Row("a step of two DDP workers (torchrun)", "ms"), blocks, sizes.steps)
        for workers in (1, 2):
            epochs, snapshots, batches = training_steps.bookkeeping(workers, sizes.single_steps)
            for name, took in (
                (f"bookkeeping of an epoch, workers: {workers}", epochs),
                (f"its recovery snapshot, workers: {workers}; none with max_retries=0", snapshots),
            ):
                report.add(Row(name, "ms").measured((each * 1e3 for each in took), plain=batches))
        ddp, fsdp = training_steps.memory("ddp"), training_steps.memory("fsdp")
        held = Row("held by each of two workers with FSDP2 (DDP)", "KB", exact=True)
        report.add(held.measured([fsdp], [ddp]))
        saves = training_saves.saves(2, sizes.millions, sizes.save_steps, sizes.save_rounds)
        add(
            Row("a step while a checkpoint is written (undisturbed)", "ms"),
            [saves.disturbed, saves.undisturbed],
        )
        for name, took in (
            ("save(wait=False) beyond the copy", saves.beyond),
            ("its copy of a gigabyte of state", saves.copy_per_gb),
            ("its write of a gigabyte of state", saves.write_per_gb),
        ):
            report.add(Row(name, "s").measured(took, plain=saves.undisturbed))
        trainkit.shutdown()
        starts = Starts(sizes.starts)
        for name, took in (
            ("from nothing to the first epoch of two workers", starts.operator),
            ("a second trainer and its first epoch (torchrun from nothing)", starts.second_operator),
            ("from nothing to the first epoch of a function on two workers", starts.function),
            ("a second fit of a function (torchrun from nothing)", starts.second_function),
            ("from nothing to the first epoch of a script, two ranks (torchrun)", starts.script),
        ):
            add(Row(name, "s"), [took, starts.torchrun])
        name = "from nothing to the first epoch of a script, two ranks (accelerate launch)"
        add(Row(name, "s"), [starts.script, starts.accelerate])
        function = [sys.executable, "-m", "benchmarks.training_function"]
        script = [*LAUNCHER, "-m", "benchmarks.training_torchrun"]
        blocks = in_turn(
            [lambda: served(function, sizes.steps), lambda: served(script, sizes.steps)], sizes.starts, 0
        )
        add(Row("a step of a function on two workers (torchrun)", "ms"), blocks, sizes.steps)


if __name__ == "__main__":
    main()
