"""The place where workers meet: a file of their machine, or a store in worker 0's process."""

from __future__ import annotations

import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime import api as runtime


@dataclass(frozen=True)
class Rendezvous:
    """Address and rank with which a worker joins the others.

    Attributes:
        place: "file://" and a path that all workers can open, in a folder that only the user can; or
            "tcp://", worker 0's address and port.
        backend: "gloo" or "nccl".
        timeout_s: how long one collective may take.
    """

    place: str
    backend: str
    timeout_s: float


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
        node_rank: number of the machine, in the order of the ranks.
    """

    rank: int = 0
    size: int = 1
    node_rank: int = 0


def on_one_machine() -> bool:
    """Return True if all workers of this session are on one machine."""
    return "near" in runtime.promises()


def make_rendezvous(
    world_size: int, held: ExitStack, ask: Callable[[dict[int, tuple[bool]]], list[WorkerAddress]]
) -> tuple[str, list[str]]:
    """Return the place where the workers meet, in the first one's process if need be, and their machines.

    Args:
        world_size: how many workers there are.
        held: does away with the place as it closes.
        ask: calls `Worker.home` of the workers with these arguments, by their number.

    Raises:
        ConfigError: the engine runs several workers in one process.
    """
    if world_size > 1 and "isolation" not in runtime.promises():
        raise ConfigError(
            f"num_workers={world_size}, but this engine runs all of them in one process, where they "
            f"can't wait for each other: use num_workers=1, or init() with the local engine"
        )
    if on_one_machine():
        path = runtime.scratch_dir() / f"rendezvous-{secrets.token_hex(8)}"
        held.callback(path.unlink, missing_ok=True)
        return f"file://{path}", [""] * world_size
    homes = ask({rank: (rank == 0,) for rank in range(world_size)})
    return str(homes[0].place), [home.node for home in homes]


def own_node() -> str:
    """Return the id of this process's machine."""
    return runtime.get_runtime_context().get_node_id()


def own_address() -> str:
    """Return the address of this machine in the session."""
    own = own_node()
    return next(str(node["address"]) for node in runtime.nodes() if node["node_id"] == own)


def by_machine(nodes: Sequence[str]) -> list[int]:
    """Return the numbers of workers in the order of their ranks: those of one machine follow each other.

    The first worker stays the first, and so does its machine.

    Args:
        nodes: each worker's machine.
    """
    return sorted(range(len(nodes)), key=lambda worker: nodes.index(nodes[worker]))


def local_ranks(nodes: Sequence[str]) -> list[LocalRank]:
    """Return each worker's number among those of its machine.

    Args:
        nodes: each worker's machine, by rank.
    """
    sizes = Counter(nodes)
    numbers = list(sizes)
    return [
        LocalRank(nodes[:rank].count(node), sizes[node], numbers.index(node))
        for rank, node in enumerate(nodes)
    ]


class RendezvousStore:
    """The store that workers of several machines meet at, in the process of worker 0.

    Args:
        address: of this machine, among those of the workers'.

    Raises:
        ConfigError: this machine has no such address.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listening = socket.create_server((address, 0), family=family)
        except OSError as error:
            raise ConfigError(
                f"worker 0 can't listen at {address}, the address of its machine in the cluster ({error}): "
                f"join the machine to the cluster by an address that is its own"
            ) from error
        import torch.distributed as dist  # which a launcher does without

        port = listening.getsockname()[1]
        self.place = f"tcp://{address}:{port}"
        # Bound here, as the store by itself would listen at all addresses. The socket is the store's now.
        self.store = dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def rendezvous_store(place: str, world_size: int, timeout: timedelta) -> Any:
    """Return torch's store at the place where the workers meet."""
    import torch.distributed as dist

    scheme, _, rest = place.partition("://")
    if scheme == "file":
        return dist.FileStore(rest, world_size)  # type: ignore[attr-defined, unused-ignore]
    host, _, port = rest.rpartition(":")
    return dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]
        host, int(port), is_master=False, wait_for_workers=False, timeout=timeout
    )


def set_torchrun_variables(place: str, rank: int, world_size: int, locality: LocalRank) -> None:
    """Tell libraries that this process is one of several, by the variables that `torchrun` sets.

    An Accelerator takes itself for the only one without them, and loggers print on every rank.

    Args:
        place: where the workers meet; workers of one machine meet at no address, and name none.
        rank: this worker's number.
        world_size: how many there are.
        locality: its number among those of its machine.
    """
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = str(locality.rank), str(locality.size)
    scheme, _, address = place.partition("://")
    if scheme == "tcp":
        os.environ["MASTER_ADDR"], _, os.environ["MASTER_PORT"] = address.rpartition(":")
