"""The place where workers meet: a file of their machine, or a store in worker 0's process."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from trainkit.errors import ConfigError
from trainkit.runtime import api as runtime


@dataclass(frozen=True)
class WorkerAddress:
    """Where a worker is.

    Attributes:
        node: the id of its machine.
        place: where the workers meet in its process; None if it doesn't listen.
    """

    node: str
    place: str | None


@dataclass(frozen=True)
class LocalRank:
    """A worker among those of its machine.

    Attributes:
        rank: its number.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1


def on_one_machine() -> bool:
    """Return True if all workers of this session are on one machine."""
    return "near" in runtime.promises()


def make_rendezvous(
    world_size: int, held: ExitStack, ask: Callable[[dict[int, tuple[bool]]], list[WorkerAddress]]
) -> tuple[str, list[LocalRank]]:
    """Return the place where the workers meet, and each one's number among those of its machine.

    Args:
        world_size: how many workers there are.
        held: does away with the place as it closes.
        ask: calls `Worker.home` of the workers with these arguments, by rank.

    Raises:
        ConfigError: the engine runs several workers in one process.
    """
    if world_size > 1 and "isolation" not in runtime.promises():
        raise ConfigError(
            f"num_workers={world_size}, but this engine runs all of them in one process, where they "
            f"can't wait for each other: use num_workers=1, or init() with the local engine"
        )
    if on_one_machine():
        path = runtime.scratch_dir() / f"gang-{secrets.token_hex(8)}"
        held.callback(path.unlink, missing_ok=True)
        return f"file://{path}", local_ranks([""] * world_size)
    homes = ask({rank: (rank == 0,) for rank in range(world_size)})
    return str(homes[0].place), local_ranks([home.node for home in homes])


def own_node() -> str:
    """Return the id of this process's machine."""
    return runtime.get_runtime_context().get_node_id()


def own_address() -> str:
    """Return the address of this machine in the session."""
    own = own_node()
    return next(str(node["address"]) for node in runtime.nodes() if node["node_id"] == own)


def local_ranks(nodes: Sequence[str]) -> list[LocalRank]:
    """Return each worker's number among those of its machine.

    Args:
        nodes: each worker's machine, by rank.
    """
    sizes = Counter(nodes)
    return [LocalRank(nodes[:rank].count(node), sizes[node]) for rank, node in enumerate(nodes)]
