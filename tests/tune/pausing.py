"""Trials that count over pauses and restores, and ways to break an experiment off."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainkit import tune


class Counted(tune.Trainable):
    """Counts its steps, wherever it goes on; a subclass says what it reports at each."""

    number = 0

    def reports(self, number: int) -> dict[str, Any]:
        raise NotImplementedError

    def step(self) -> dict[str, Any]:
        self.number += 1
        return self.reports(self.number)

    def save_checkpoint(self, path: str) -> None:
        Path(path, "number").write_text(str(self.number))

    def load_checkpoint(self, path: str) -> None:
        self.number = int(Path(path, "number").read_text())


class Stepping(Counted):
    """The driver is left at a step of a trial."""

    leave_at: tuple[str, int] | None = None

    def reports(self, number: int) -> dict[str, Any]:
        if (self.trial_id[-5:], number) == Stepping.leave_at:
            Stepping.leave_at = None
            raise KeyboardInterrupt
        return {"loss": abs(self.config["x"] - 3) + 0.5 / number}


def steps(last: int = sys.maxsize) -> Iterator[tuple[int, tune.Checkpoint]]:
    """In a function: the steps after that of its checkpoint, each with a checkpoint of it."""
    checkpoint = tune.get_checkpoint()
    start = int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
    scratch = Path(tune.get_context().get_trial_dir(), "scratch")
    scratch.mkdir(exist_ok=True)
    for step in range(start + 1, last + 1):
        (scratch / "step").write_text(str(step))
        yield step, tune.Checkpoint(scratch)


class CutShort(tune.Callback):
    """Interrupts the experiment after so many steps of the loop; 0: never."""

    def __init__(self, after: int) -> None:
        self.after, self.seen = after, 0

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        self.seen += 1
        if self.seen == self.after:
            raise KeyboardInterrupt


def history(grid: tune.ResultGrid) -> tuple[list[dict[str, Any]], list[tuple[Any, ...]]]:
    """The configurations, and what was decided on which trial at which iteration."""
    decided = [
        (each["trial_id"][-5:], each["iteration"], each["verdict"], each.get("rank"))
        for each in grid.decisions()
    ]
    return [result.config for result in grid], decided
