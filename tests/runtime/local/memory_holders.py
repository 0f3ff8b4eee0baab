"""Actors that hold, make and fill memory; in a module of their own, so that their workers import little."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20


def block(mib: float, fill: int = 1) -> np.ndarray[Any, Any]:
    return np.full(int(mib * MIB), fill, dtype=np.uint8)


class MemoryHolder:
    def __init__(self, *kept: Any) -> None:
        self.kept: list[Any] = [*kept]

    def pid(self) -> int:
        return os.getpid()

    def keep(self, *values: Any) -> int:
        self.kept.extend(values)
        return sum(int(value[0]) for value in values)

    def sums(self) -> list[int]:
        return [int(value.sum(dtype=np.int64)) for value in self.kept]

    def put(self, mib: float, count: int) -> list[Any]:
        import trainkit

        self.kept = [trainkit.put(block(mib, index + 1)) for index in range(count)]
        return self.kept

    def make(self, mib: float, fill: int = 1) -> Any:
        return block(mib, fill)

    def kept_as_given(self, *values: Any) -> None:
        self.kept.extend(values)

    def raise_block(self, mib: float) -> None:
        raise ValueError(block(mib))

    def forget(self) -> None:
        self.kept.clear()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class AsyncMemoryHolder(MemoryHolder):
    async def same(self, value: Any) -> Any:
        return value


class Eater:
    """Fills memory of its own, step by step."""

    def __init__(self) -> None:
        self.eaten: list[Any] = []

    def pid(self) -> int:
        return os.getpid()

    def eat(self, mib: int, step_s: float = 0.02) -> int:
        for _ in range(mib // 10):
            self.eaten.append(block(10))
            time.sleep(step_s)
        return len(self.eaten)

    def pages_bytes(self) -> int:
        """Its memory as others see it, which holds all that it shares."""
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon:"))

    def eat_and_keep(self, mib: int, step_s: float = 0.02) -> None:
        """Keep what it has eaten until it is ended: the node looks at it now and then."""
        self.eat(mib, step_s)
        time.sleep(600)

    def feed_a_child(self, mib: int, go: Path) -> int:
        """A child that takes the memory once there is a file `go`, and keeps it until it is ended."""
        script = (
            "import os, sys, time\n"
            "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
            f"eaten = [bytearray(b'1' * (10 << 20)) for _ in range({mib // 10})]; time.sleep(600)"
        )
        return subprocess.run([sys.executable, "-c", script, str(go)], check=False).returncode

    def read(self, values: Any) -> int:
        return int(sum(value.sum(dtype=np.int64) for value in values))
