"""Code that the workers of `benchmarks.anatomy` run; it records moments and returns them to the driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.moments import NOTED, Watched, note, watch
from trainkit import tune


def watch_calls() -> None:
    """Record, in a worker, when calls arrive and answers are sent."""
    from trainkit.runtime.local.worker import main

    watch(Watched(main._Worker, "arrived", "arrived"))
    watch(Watched(main._Connection, "_write", "answered"))


def noted() -> dict[str, list[int]]:
    """Return the moments recorded in this process, and delete them."""
    given = dict(NOTED)
    NOTED.clear()
    return given


class Answering:
    """Actor that answers calls."""

    def __init__(self) -> None:
        watch_calls()

    def same(self, value: int) -> int:
        note("user")
        return value

    def noted(self) -> dict[str, list[int]]:
        return noted()


def same(value: int) -> int:
    """Return the value, as the actor does."""
    note("user")
    return value


def reporting(config: dict[str, Any]) -> None:
    """Report `config["reports"]` times, and write the moments to a file."""
    for step in range(config["reports"]):
        note("report")
        tune.report({"loss": 1 / (step + 1)})
        note("back")
    Path(config["file"]).write_text(json.dumps(noted()))


def watch_steps(operator: Any) -> None:
    """Record, in a trainer's worker, the moments of its steps."""
    from trainkit.train import TrainingOperator
    from trainkit.train.step.metrics import Meters
    from trainkit.train.step.stepper import Stepper

    watch(Watched(Meters, "add", after="counted"))
    watch(Watched(Stepper, "begin", "fetched"))
    watch(Watched(type(operator), "train_batch", "begun"))
    watch(Watched(TrainingOperator, "forward_backward", "forward", "backward"))
    watch(Watched(Stepper, "step", after="stepped"))


def noted_steps(operator: Any) -> dict[str, list[int]]:
    """Return the moments of a trainer's worker."""
    del operator
    return noted()
