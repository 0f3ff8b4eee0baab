"""What workers of Ray's run in tests; in a module of its own, so that they import little."""

from __future__ import annotations

from typing import Any

import trainkit


class Loop:
    """An actor on an event loop."""

    async def double(self, refs: list[Any]) -> int:
        return 2 * int(await refs[0])


def nested(depth: int) -> int:
    """Tasks that start tasks, and a value that is put by the innermost."""
    if depth == 0:
        return int(trainkit.get(trainkit.put(1)))
    trainkit.init()  # in a worker without effect
    return 1 + int(trainkit.get(trainkit.remote(nested).options(num_cpus=0).remote(depth - 1)))
