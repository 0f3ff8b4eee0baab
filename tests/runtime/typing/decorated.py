"""A decorated class, which pyright follows and mypy does not; also run as a program."""

from __future__ import annotations

from typing import assert_type

import trainkit
from trainkit import ObjectRef


@trainkit.remote
class Counter:
    def __init__(self, start: int) -> None:
        self.total = start

    @trainkit.method
    def add(self, amount: int = 1) -> int:
        self.total += amount
        return self.total


@trainkit.remote(num_cpus=1, max_restarts=2)
class Named:
    @trainkit.method
    def name(self) -> str:
        return "named"


if __name__ == "__main__":
    trainkit.init(engine="inline", num_cpus=2)
    counter = Counter.remote(trainkit.put(1))
    assert_type(counter.add.remote(), ObjectRef[int])
    assert trainkit.get(counter.add.remote(trainkit.put(2))) == 4
    named = Named.options(label="other").remote()
    assert_type(trainkit.get(named.name.remote()), str)
    assert trainkit.get(named.name.remote()) == "named"
    trainkit.shutdown()
