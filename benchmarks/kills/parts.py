"""Table of the programs that a campaign kills, and the command that runs one of them.

`python -m benchmarks.kills.parts PART FOLDER` runs a program in the folder of its cycle. A program that runs
again in the same folder resumes its work.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.kills import checks
from benchmarks.kills.findings import Check
from benchmarks.kills.job import UNFINISHED, Job
from benchmarks.kills.plan import (
    CLOCK,
    DISK,
    DRIVER,
    FILES,
    GROUP,
    JOB,
    LOADER,
    NODE,
    TEMPLATE,
    WORKER,
    WRITER,
)
from trainkit.runtime.local.system import process

PROCESSES = (DRIVER, NODE, TEMPLATE, WORKER, GROUP, JOB)
STORING = (*PROCESSES, DISK, FILES, CLOCK)


@dataclass(frozen=True)
class Part:
    """A program.

    Attributes:
        module: module of the program in this package, which is imported only where the program is run or
            checked.
        function: name of the function that runs the program.
        check: function that checks what the program has acknowledged.
        targets: what a fault may hit.
        span_s: longest time from one fault to the next, in seconds.
        given: further arguments of the function.
        detached: True if a detached actor, its node and its session stay between two runs.
        phases: phases in which a request to end may come; () for a program that only kills hit.
        in_flight: largest number of results that the program may acknowledge after a request to end.
    """

    module: str
    function: str
    check: Check
    targets: tuple[str, ...] = STORING
    span_s: float = 0.4
    given: tuple[str, ...] = ()
    detached: bool = False
    phases: tuple[str, ...] = ()
    in_flight: int = 4

    def run(self, job: Job) -> None:
        """Run the program in this process."""
        module = importlib.import_module(f"benchmarks.kills.{self.module}")
        getattr(module, self.function)(job, *self.given)


def _tuner(name: str, *, exact: bool) -> Part:
    return Part("tuner_parts", "tuner", partial(checks.check_reports, exact=exact), given=(name,))


def _operator(name: str, *more: str) -> Part:
    targets = (*STORING, *more)
    return Part("trainer_parts", "operator", checks.check_epochs, targets, span_s=1.0, given=(name,))


def _steps(name: str, targets: tuple[str, ...], *phases: str) -> Part:
    return Part("step_parts", "steps", checks.check_epochs, targets, 1.0, (name,), phases=phases)


def _loop(module: str, function: str) -> Part:
    return Part(module, function, checks.check_epochs, (*STORING, LOADER), span_s=1.0, phases=LOOP)


RUNTIME = (*PROCESSES, CLOCK)
LOOP = ("setup", "step", "validate", "save")
PARTS: Mapping[str, Part] = {
    "calls": Part("runtime_parts", "calls", checks.check_calls, RUNTIME),
    "detached": Part("runtime_parts", "detached", checks.check_detached, RUNTIME, detached=True),
    "fifo": _tuner("fifo", exact=True),
    "asha": _tuner("asha", exact=True),
    "hyperband": _tuner("hyperband", exact=True),
    "bohb": _tuner("bohb", exact=True),
    "pbt": _tuner("pbt", exact=False),
    "pb2": _tuner("pb2", exact=False),
    "median": _tuner("median", exact=True),
    "eight": Part(
        "tuner_parts",
        "tuner",
        partial(checks.check_reports, exact=True),
        targets=(),
        given=("eight",),
        phases=("setup", "step", "save"),
        in_flight=16,
    ),
    "search": Part("search_parts", "search", checks.check_candidates, phases=("step",)),
    "stopping": Part("search_parts", "stopping", checks.check_candidates),
    "single": _operator("single"),
    "ddp": _operator("ddp", LOADER),
    "fsdp": _operator("fsdp"),
    "tensor": _operator("tensor"),
    "pipeline": _operator("pipeline"),
    "background": Part(
        "trainer_parts", "background", checks.check_epochs, (*STORING, WRITER, WRITER), span_s=1.0
    ),
    "steps": _steps("steps", (*STORING, LOADER, WRITER), *LOOP),
    "compiled": _steps("compiled", (), "compile"),
    "function": _loop("loop_parts", "function"),
    "run": _loop("loop_parts", "run"),
    "lightning": _loop("lightning_parts", "lightning"),
    "transformers": _loop("transformers_parts", "transformers"),
}
"""All programs by name."""
KILLED = tuple(name for name, part in PARTS.items() if part.targets)
ASKED = tuple(name for name, part in PARTS.items() if part.phases)
"""Programs that kills hit, and programs that requests to end hit."""


def main() -> int:
    """Run a program; return 75 if it ended before its work was complete."""
    name, folder = sys.argv[1:]
    job = Job(Path(folder))
    process.offer_stacks()
    PARTS[name].run(job)
    return 0 if job.outcome() is not None else UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
