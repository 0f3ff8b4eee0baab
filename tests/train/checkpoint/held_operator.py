"""An operator whose checkpoint's writer waits in the middle of its work until a test lets it continue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.conftest import eventually
from tests.train.operators import Digits


class Held:
    """A value of the operator's state, which the writer of a checkpoint has to wait for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return held, (self.folder,)


def held(folder: Path) -> str:
    """Wait in the writer, which alone has a lower priority than its parent, until a file exists."""
    if os.nice(0) > os.getpriority(os.PRIO_PROCESS, os.getppid()):
        with (folder / "writers").open("a") as file:
            file.write(f"{os.getpid()}\n")
        assert eventually((folder / "continue").exists)
    return "a plain value"


def writers(folder: Path) -> list[int]:
    """Return the pids of the writers that have begun."""
    file = folder / "writers"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


class HeldOperator(Digits):
    """Digits, with `Held` in its state, and `config["own"]`."""

    def state_dict(self) -> dict[str, Any]:
        return {"held": Held(Path(self.config["folder"])), "own": self.config.get("own")}
