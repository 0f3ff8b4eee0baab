"""Place of a program that is killed: its folder, its acknowledged results and its outcome."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN = "own"
"""Name of the files that programs themselves write into checkpoints. trainkit can't check them for damage."""
OWNED = frozenset({OWN, "checkpoint.ckpt", "checkpoint"})
"""The same, and the names of Lightning's file and of Transformers' folder in a checkpoint."""
UNFINISHED = 75
"""Exit code of a program that ended by itself before its work was complete (EX_TEMPFAIL)."""


@dataclass(frozen=True)
class Job:
    """A program's place. Worker processes receive a copy.

    Attributes:
        folder: folder of the cycle, in which no fault fills the disk or cuts files.
    """

    folder: Path

    @property
    def kept(self) -> Path:
        """Folder for everything that the program stores with trainkit. Faults hit this folder."""
        return self.folder / "kept"

    def checked_files(self) -> list[Path]:
        """Return the files that trainkit checks for damage, if they can be cut in half."""
        return sorted(
            path
            for path in self.kept.rglob("*")
            if path.is_file()
            and not OWNED.intersection(path.relative_to(self.kept).parts)
            and path.stat().st_size > 1
        )

    def ack(self, *result: Any, to: str = "acks") -> None:
        """Append a result to a file, in one write that a kill can't divide."""
        line = json.dumps(result).encode() + b"\n"
        descriptor = os.open(self.folder / to, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def lines(self, name: str = "acks") -> list[list[Any]]:
        """Return the lines of a file that `ack` writes, in the order of time."""
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def enter(self, phase: str) -> None:
        """Write down that a phase begins, in which a request to end may come."""
        self.ack(phase, to="phases")

    def step(self, rank: int, number: int) -> None:
        """Write down that a rank has finished this step of the training."""
        self.ack(rank, number, to="steps")

    def finish(self, outcome: Any) -> None:
        """Write the outcome, after which the program must end by itself."""
        (self.folder / "outcome.new").write_text(json.dumps(outcome))
        (self.folder / "outcome.new").replace(self.folder / "outcome")

    def outcome(self) -> Any:
        """Return the outcome; None before the program has completed its work."""
        path = self.folder / "outcome"
        return json.loads(path.read_text()) if path.exists() else None
