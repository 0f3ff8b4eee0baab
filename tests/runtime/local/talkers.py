"""An actor that prints; in a module of its own, so that its workers import little."""

from __future__ import annotations

import os
import sys


class Talker:
    def pid(self) -> int:
        return os.getpid()

    def say(self, *lines: str) -> None:
        for line in lines:
            print(line)

    def write(self, fd: int, data: bytes) -> None:
        os.write(fd, data)

    def count(self, number: int) -> None:
        for index in range(number):
            print(f"line {index}")
            print(f"error {index}", file=sys.stderr)

    def die_in_the_middle(self) -> None:
        os.write(1, b"whole line\nhalf a li")
        os.write(2, b"why it ended\n")
        os._exit(3)


class Rank(Talker):
    """Says who it is."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __repr__(self) -> str:
        return f"Rank(rank={self.rank})\nof several"
