"""Collective operations among actors, under the names of `ray.util.collective`, with torch's gloo backend.

Tensors are PyTorch tensors on the CPU or NumPy arrays. The tensors are changed in place.
"""

from __future__ import annotations

import asyncio
import enum
import threading
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from trainkit.errors import ConfigError
from trainkit.runtime import api
from trainkit.train.distributed import rendezvous

__all__ = [
    "Backend",
    "ReduceOp",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_rank",
    "init_collective_group",
    "is_group_initialized",
    "recv",
    "reduce",
    "reducescatter",
    "send",
]

DEFAULT = "default"


class ReduceOp(enum.Enum):
    """Operation that combines values of several ranks into one."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


class Backend(enum.StrEnum):
    """Backends that Ray's collective groups support; trainkit supports only GLOO."""

    NCCL = "NCCL"
    GLOO = "GLOO"


class _Group(NamedTuple):
    rank: int
    size: int
    process_group: Any
    held: list[Any]


_groups: dict[str, _Group] = {}
_joining: set[str] = set()
_lock = threading.Lock()


class RendezvousActor:
    """Actor that stores the address at which a group's members meet; it ends when the last member leaves."""

    def __init__(self) -> None:
        self._token = uuid.uuid4().hex
        self._is_told = asyncio.Event()
        self._place = ""

    async def token(self) -> str:
        """Return a random name that only this group uses."""
        return self._token

    async def tell(self, place: str) -> None:
        """Store the address on which rank 0 listens."""
        self._place = place
        self._is_told.set()

    async def place(self) -> str:
        """Wait until rank 0 has sent its address; return the address."""
        await self._is_told.wait()
        return self._place


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = Backend.GLOO,
    group_name: str = DEFAULT,
    gloo_timeout: int = 30_000,
) -> None:
    """Join a group. Each member calls this function in its actor or task. The function waits for the other
    members.

    Args:
        world_size: number of members.
        rank: rank of this member, from 0.
        backend: must be "gloo". For NCCL on GPUs, use `trainkit.train` instead.
        group_name: name of the group, equal for all members.
        gloo_timeout: timeout of one operation in milliseconds.

    Raises:
        ConfigError: an argument is invalid, or this process is already in the group.
    """
    _require_gloo(backend)
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank={rank} must be from 0 to world_size - 1, with world_size={world_size}")
    if "isolation" not in api.promises() and world_size > 1:
        raise ConfigError(
            "this engine runs all actors in one process, where they can't wait for each other: "
            "use the local engine for collective groups"
        )
    # The lock is released before the wait for other members. Until they join, they may wait for another
    # group of this process, which needs the lock.
    with _lock:
        if group_name in _groups or group_name in _joining:
            raise ConfigError(f"this process is already in the group {group_name!r}: destroy the group first")
        _joining.add(group_name)
    try:
        _groups[group_name] = _joined(world_size, rank, group_name, timedelta(milliseconds=gloo_timeout))
    finally:
        _joining.discard(group_name)


def _joined(size: int, rank: int, name: str, timeout: timedelta) -> _Group:
    from torch import distributed as dist

    actor_class: Any = api.remote(RendezvousActor)
    actor = actor_class.options(name=f"collective-{name}", get_if_exists=True, num_cpus=0).remote()
    held: list[Any] = [actor]
    address = "127.0.0.1"
    if rendezvous.on_one_machine():
        place = f"file://{api.scratch_dir() / f'collective-{api.get(actor.token.remote())}'}"
    else:
        address = rendezvous.own_address()
        if rank == 0:
            listening = rendezvous.RendezvousStore(address)
            held.append(listening)
            api.get(actor.tell.remote(listening.place))
        place = api.get(actor.place.remote(), timeout=timeout.total_seconds())
    store = rendezvous.rendezvous_store(place, size, timeout)
    gloo: Any = dist.ProcessGroupGloo  # type: ignore[attr-defined, unused-ignore]
    options = gloo._Options()
    options._timeout = timeout
    options._devices = [gloo.create_device(hostname=address)]
    group = gloo(store, rank, size, options)
    # After the barrier, all members have a handle of the actor.
    group.barrier().wait()
    return _Group(rank, size, group, [*held, store])


def create_collective_group(
    actors: Sequence[Any],
    world_size: int,
    ranks: Sequence[int],
    backend: str = Backend.GLOO,
    group_name: str = DEFAULT,
    gloo_timeout: int = 30_000,
) -> None:
    """Make all `actors` join a group; return when all have joined. The program that created the actors calls
    this function.

    Args:
        actors: handles of the members.
        world_size: number of members.
        ranks: rank of each member, in the order of `actors`.
        backend: see `init_collective_group`.
        group_name: see `init_collective_group`.
        gloo_timeout: see `init_collective_group`.

    Raises:
        ConfigError: an argument is invalid, or an actor is already in the group.
    """
    _require_gloo(backend)
    if len(actors) != world_size or sorted(ranks) != list(range(world_size)):
        raise ConfigError(
            f"{len(actors)} actors with ranks={list(ranks)} and world_size={world_size}: give each actor a "
            f"rank, from 0 to world_size - 1"
        )
    joining = [
        actor.__ray_call__.remote(_join, world_size, rank, backend, group_name, gloo_timeout)
        for actor, rank in zip(actors, ranks, strict=True)
    ]
    api.get(joining)


def _join(_: Any, *arguments: Any) -> None:
    init_collective_group(*arguments)


def destroy_collective_group(group_name: str = DEFAULT) -> None:
    """Leave a group; do nothing if this process is not in it."""
    with _lock:
        _groups.pop(group_name, None)


def is_group_initialized(group_name: str) -> bool:
    """Return True if this process is in the group."""
    return group_name in _groups


def get_rank(group_name: str = DEFAULT) -> int:
    """Return the rank of this process in the group; -1 if the process is not a member."""
    group = _groups.get(group_name)
    return -1 if group is None else group.rank


def get_collective_group_size(group_name: str = DEFAULT) -> int:
    """Return the number of members of the group; -1 if this process is not a member."""
    group = _groups.get(group_name)
    return -1 if group is None else group.size


def allreduce(tensor: Any, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM) -> None:
    """Replace each member's tensor by the reduction of all members' tensors with `op`."""
    _done(_group(group_name).process_group.allreduce([_tensor(tensor)], _reducing(op, "Allreduce")))


def reduce(tensor: Any, dst_rank: int = 0, group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM) -> None:
    """Replace only the tensor of rank `dst_rank` by the reduction of all members' tensors with `op`."""
    group = _group(group_name)
    options = _reducing(op, "Reduce")
    options.rootRank = _checked(dst_rank, group, "dst_rank")
    own = _tensor(tensor)
    _done(group.process_group.reduce([own if group.rank == dst_rank else own.clone()], options))


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = DEFAULT) -> None:
    """Replace the tensor of each member by the tensor of rank `src_rank`."""
    from torch import distributed as dist

    group = _group(group_name)
    options = dist.BroadcastOptions()
    options.rootRank = _checked(src_rank, group, "src_rank")
    _done(group.process_group.broadcast([_tensor(tensor)], options))


def allgather(tensor_list: Sequence[Any], tensor: Any, group_name: str = DEFAULT) -> None:
    """Fill `tensor_list` with the tensors of all members, in the order of their ranks."""
    group = _group(group_name)
    _require_length(tensor_list, group)
    _done(group.process_group.allgather([[*map(_tensor, tensor_list)]], [_tensor(tensor)]))


def reducescatter(
    tensor: Any, tensor_list: Sequence[Any], group_name: str = DEFAULT, op: ReduceOp = ReduceOp.SUM
) -> None:
    """Write into `tensor`, on each rank, the reduction of all members' `tensor_list[rank]`."""
    group = _group(group_name)
    _require_length(tensor_list, group)
    parts = [_tensor(each).clone() for each in tensor_list]
    # The backend gloo has no reduce-scatter operation, so one reduction runs for each rank.
    for rank, part in enumerate(parts):
        options = _reducing(op, "Reduce")
        options.rootRank = rank
        _done(group.process_group.reduce([part], options))
    _tensor(tensor).copy_(parts[group.rank])


def barrier(group_name: str = DEFAULT) -> None:
    """Wait until all members of the group have called `barrier`."""
    _done(_group(group_name).process_group.barrier())


def send(tensor: Any, dst_rank: int, group_name: str = DEFAULT) -> None:
    """Send a tensor to another member, which must call `recv`."""
    group = _group(group_name)
    _done(group.process_group.send([_tensor(tensor)], _other(dst_rank, group, "dst_rank"), 0))


def recv(tensor: Any, src_rank: int, group_name: str = DEFAULT) -> None:
    """Receive a tensor from another member into `tensor`, which must have the same shape and type."""
    group = _group(group_name)
    _done(group.process_group.recv([_tensor(tensor)], _other(src_rank, group, "src_rank"), 0))


def _done(work: Any) -> None:
    work.wait()


def _group(name: str) -> _Group:
    group = _groups.get(name)
    if group is None:
        raise ConfigError(
            f"this process is not in the group {name!r}: call init_collective_group() in each member, or "
            f"create_collective_group() with the actors"
        )
    return group


def _tensor(given: Any) -> Any:
    """Return a PyTorch tensor that shares the memory of `given`, a tensor or NumPy array."""
    import numpy
    import torch

    if isinstance(given, torch.Tensor) and given.device.type == "cpu":
        return given.detach()
    if isinstance(given, numpy.ndarray) and given.flags.writeable:
        return torch.from_numpy(given)
    raise ConfigError(
        f"{type(given).__name__} can't be changed in place: pass a torch tensor on the CPU, or a "
        "writable NumPy array (arrays received as arguments are shared and read-only: copy them)"
    )


def _reducing(op: ReduceOp, operation: str) -> Any:
    from torch import distributed as dist

    options = getattr(dist, f"{operation}Options")()
    options.reduceOp = getattr(dist.ReduceOp, ReduceOp(op).name)
    return options


def _checked(rank: int, group: _Group, what: str) -> int:
    if not 0 <= rank < group.size:
        raise ConfigError(f"{what} must be a rank from 0 to {group.size - 1}, not {rank}")
    return rank


def _other(rank: int, group: _Group, what: str) -> int:
    if _checked(rank, group, what) == group.rank:
        raise ConfigError(f"{what}={rank} is this process itself: pass a different rank")
    return rank


def _require_length(tensors: Sequence[Any], group: _Group) -> None:
    if len(tensors) != group.size:
        raise ConfigError(f"tensor_list has {len(tensors)} tensors: pass one for each of {group.size} ranks")


def _require_gloo(backend: str) -> None:
    name = str(getattr(backend, "value", backend)).upper()
    if name not in ("GLOO", "TORCH_GLOO"):
        raise ConfigError(
            f"backend={name!r} is not supported: groups of actors use gloo (backend='gloo'), on the "
            "CPU; for GPUs use trainkit.train, whose workers use NCCL"
        )
