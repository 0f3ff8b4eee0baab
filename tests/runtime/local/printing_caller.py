"""An actor that prints and calls another while its driver may stand still."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trainkit


class PrintingCaller:
    """Does as it is told, and marks in a folder how far it has come."""

    def __init__(self) -> None:
        self._echo: Any = trainkit.remote(Echo).remote()

    def same(self, value: int) -> int:
        return value

    def chat(self, count: int, folder: str) -> int:
        """Print `count` long lines and make as many calls; returns how many were answered rightly."""
        marks = Path(folder)
        (marks / "begun").touch()
        while not (marks / "go").exists():
            time.sleep(0.005)
        right = 0
        for number in range(count):
            print(f"line {number} {'x' * 1000}", flush=True)
            right += trainkit.get(self._echo.same.remote(number)) == number
        (marks / "done").touch()
        return right


class Echo:
    def same(self, value: int) -> int:
        return value
