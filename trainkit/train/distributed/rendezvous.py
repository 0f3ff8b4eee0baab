"""Rendezvous, by which workers find each other: a file on their machine, or a store in worker 0's process."""

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
    """Address and settings with which the workers of a group join.

    Attributes:
        place: rendezvous address: "file://" and a path that all workers can open, in a private folder of this
            user; or "tcp://" and worker 0's address and port.
        backend: "gloo" or "nccl".
        timeout_s: time limit of each collective, in seconds.
    """

    place: str
    backend: str
    timeout_s: float


@dataclass(frozen=True)
class WorkerAddress:
    """Machine of a worker, and the address of the worker's store, if it runs a store.

    Attributes:
        node: id of the worker's machine.
        place: address of the store in the worker's process; None if the worker runs no store.
    """

    node: str
    place: str | None


@dataclass(frozen=True)
class LocalRank:
    """Position of a worker among the workers of its machine.

    Attributes:
        rank: the worker's rank on its machine.
        size: number of workers on the machine.
        node_rank: index of the machine, from 0, in the order of the workers' ranks.
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
    """Return the workers' rendezvous address (a file, or a port of worker 0) and each worker's machine.

    Args:
        world_size: number of workers.
        held: exit stack that removes the rendezvous file when it closes.
        ask: function that calls the method `home` of workers. The argument of `ask` is a dictionary with the
            arguments for each worker, by the worker's number.

    Raises:
        ConfigError: the engine can only run all workers in one process.
    """
    if world_size > 1 and "isolation" not in runtime.promises():
        raise ConfigError(
            f"num_workers={world_size} is not supported by this engine: it runs all workers in one process, "
            "where they can't wait for each other. Use num_workers=1, or init() with the local engine"
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
    """Return the address at which the session's other machines reach this machine."""
    own = own_node()
    return next(str(node["address"]) for node in runtime.nodes() if node["node_id"] == own)


def by_machine(nodes: Sequence[str]) -> list[int]:
    """Sort workers so that workers of one machine are adjacent; return their old numbers in the new order.

    Worker 0 stays first, followed by the workers of its machine.

    Args:
        nodes: machine of each worker.
    """
    return sorted(range(len(nodes)), key=lambda worker: nodes.index(nodes[worker]))


def local_ranks(nodes: Sequence[str]) -> list[LocalRank]:
    """Return each worker's position among the workers of its machine.

    Args:
        nodes: machine of each worker, by rank.
    """
    sizes = Counter(nodes)
    numbers = list(sizes)
    return [
        LocalRank(nodes[:rank].count(node), sizes[node], numbers.index(node))
        for rank, node in enumerate(nodes)
    ]


class RendezvousStore:
    """Key-value store in worker 0's process, by which workers on several machines find each other.

    Args:
        address: address at which the other machines reach this machine.

    Raises:
        ConfigError: this machine does not have the address.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            listening = socket.create_server((address, 0), family=family)
        except OSError as error:
            raise ConfigError(
                f"worker 0 can't listen on {address}, the address of its machine in the cluster ({error}): "
                "join the cluster with an address that belongs to the machine"
            ) from error
        import torch.distributed as dist  # Imported late, because launchers don't need torch.

        port = listening.getsockname()[1]
        self.place = f"tcp://{address}:{port}"
        # The store gets a socket that is bound to a single address, because the store would otherwise listen
        # at all addresses.
        self.store = dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )


def rendezvous_store(place: str, world_size: int, timeout: timedelta) -> Any:
    """Connect to torch's store at `place`, the workers' rendezvous address."""
    import torch.distributed as dist

    scheme, _, rest = place.partition("://")
    if scheme == "file":
        return dist.FileStore(rest, world_size)  # type: ignore[attr-defined, unused-ignore]
    host, _, port = rest.rpartition(":")
    return dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]
        host, int(port), is_master=False, wait_for_workers=False, timeout=timeout
    )


def set_torchrun_variables(place: str, rank: int, world_size: int, locality: LocalRank) -> None:
    """Set the variables of `torchrun`, so that libraries know that this process is one of several.

    Without these variables, an Accelerator assumes a single process, and loggers print on every rank.

    Args:
        place: the workers' rendezvous address; only for "tcp://", `MASTER_ADDR` and `MASTER_PORT` are set.
        rank: this worker's rank.
        world_size: number of workers.
        locality: this worker's position among the workers of its machine.
    """
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = str(locality.rank), str(locality.size)
    scheme, _, address = place.partition("://")
    if scheme == "tcp":
        os.environ["MASTER_ADDR"], _, os.environ["MASTER_PORT"] = address.rpartition(":")
