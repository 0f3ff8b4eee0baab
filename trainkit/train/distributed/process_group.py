"""Process groups of workers: how they join and exchange values, by gloo and NCCL.

Workers of one machine meet at a file and communicate over the loopback interface. With several machines,
worker 0 runs a store, and each worker listens only at its machine's address in the cluster.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist

from trainkit.errors import CheckpointError, ConfigError, message_of
from trainkit.train.distributed.failure_cause import lost_peer
from trainkit.train.distributed.rendezvous import (
    Rendezvous,
    RendezvousStore,
    on_one_machine,
    own_address,
    rendezvous_store,
)

_INTERFACE = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Variables that name the interface on which the backends listen; values set by the user are kept."""

_LOOPBACK = "lo"
"""Interface for workers of one machine, which must not listen on the network."""

_SIOCGIFADDR = 0x8915

_FEW = 4095
"""Number of integers that are sent as fast as one integer: 32 KiB including their count."""

_BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}
"""Backends in torch's form: counts and orders of samples use the CPU, even if gradients use NCCL."""


class ProcessGroup:
    """The workers that train together, seen from one worker; this base class is a group of one worker.

    Attributes:
        rank: this worker's rank, from 0.
        world_size: number of workers.
        members: number of processes in collectives; above `world_size` if several processes count as one.
    """

    rank = 0
    world_size = 1

    @property
    def members(self) -> int:
        return self.world_size

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        """Return worker 0's `values` on every worker; values of other workers are ignored."""
        return list(values)

    def end_sending(self) -> None:
        """Wait until the other workers have received this worker's broadcasts."""

    def gather_integers(self, value: int) -> list[int]:
        """Return every worker's `value`, by rank."""
        return [value]

    def gather_values(self, value: Any) -> list[Any]:
        """Return every worker's `value`, by rank; values are plain values and tensors on the CPU."""
        return [value]

    def all_true(self, flag: bool) -> bool:
        """Return True if `flag` is true on every worker."""
        return flag

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite `tensors` with worker 0's values."""

    def subgroup(self, parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Return torch's group for the list of ranks in `parts` with this worker; all workers must call it.

        Raises:
            ConfigError: the group has no other workers.
        """
        raise ConfigError("one worker alone has no process group: use num_workers=2 or more")

    def leave(self) -> None:
        """Leave the other workers; the group can no longer be used."""


class TorchProcessGroup(ProcessGroup):
    """Several processes, joined with torch.distributed.

    Args:
        rank: rank of this worker.
        world_size: number of workers.
        timeout: time limit of each collective, including collectives of subgroups.
        bound: environment variables that name the network interface to listen on.
    """

    def __init__(
        self, rank: int, world_size: int, timeout: timedelta | None, bound: Mapping[str, str]
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._timeout = timeout
        self._bound = dict(bound)
        self._joined = True
        self._sending: list[dist.Work | None] = []

    def broadcast_integers(self, values: Sequence[int]) -> list[int]:
        # Each message synchronizes all workers. So the first message contains the count and, if they are few,
        # all values.
        first, sends = torch.zeros(_FEW + 1, dtype=torch.int64), self.rank == 0
        data = torch.frombuffer(array("q", [len(values), *values]), dtype=torch.int64) if sends else first
        first[: len(data)] = data[: len(first)]
        # Worker 0 continues meanwhile. If other workers are lost or never receive, `end_sending` raises.
        self._sending = [dist.broadcast(first, src=0, async_op=sends)]
        if (more := int(first[0]) - _FEW) > 0:
            rest = data[len(first) :].clone() if sends else torch.empty(more, dtype=torch.int64)
            self._sending.append(dist.broadcast(rest, src=0, async_op=sends))
            data = torch.cat([first, rest])
        return list(values) if sends else data[1 : int(data[0]) + 1].tolist()

    def end_sending(self) -> None:
        for work in filter(None, self._sending):
            work.wait()

    def gather_integers(self, value: int) -> list[int]:
        gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        dist.all_gather(gathered, torch.tensor([value]))
        return [int(item) for item in gathered]

    def gather_values(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def all_true(self, flag: bool) -> bool:
        answer = torch.tensor([int(flag)])
        dist.all_reduce(answer, op=dist.ReduceOp.MIN)
        return bool(answer)

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def subgroup(self, parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        with _defaults(self._bound):
            # Without this argument the timeout would be torch's half hour, not the whole group's.
            own, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                [list(part) for part in parts], timeout=self._timeout
            )
        return cast(dist.ProcessGroup, own)

    def leave(self) -> None:
        # Only the first call leaves, because this process may later be in the group of a different trainer.
        if self._joined and dist.is_initialized():
            dist.destroy_process_group()
        self._joined = False


def join_workers(
    rendezvous: Rendezvous | None,
    *,
    rank: int,
    world_size: int,
    device: torch.device,
    listener: RendezvousStore | None,
) -> ProcessGroup:
    """Join the other workers, if there are any; make `device` the current device."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if rendezvous is None:
        return ProcessGroup()
    address = None if on_one_machine() else own_address()
    return join_process_group(
        rendezvous, rank=rank, world_size=world_size, address=address, listener=listener
    )


def join_process_group(
    rendezvous: Rendezvous,
    *,
    rank: int,
    world_size: int,
    address: str | None = None,
    listener: RendezvousStore | None = None,
) -> ProcessGroup:
    """Join the other workers; return once all have joined.

    Args:
        rendezvous: rendezvous address of the workers.
        rank: this worker's rank.
        world_size: number of workers.
        address: address of this machine among the workers' machines; None if all workers are on this machine.
        listener: the store, if this process runs it.

    Raises:
        torch.distributed.DistError: not all workers joined within `rendezvous.timeout_s`.
        ConfigError: this process is already in a group.
    """
    if dist.is_initialized():
        raise ConfigError(
            "this process is already in a torch.distributed group and can't join another: shut down "
            "the TorchTrainer with use_local=True and several workers, or the group that the program created"
        )
    timeout = timedelta(seconds=rendezvous.timeout_s)
    store = (
        listener.store if listener is not None else rendezvous_store(rendezvous.place, world_size, timeout)
    )
    store.set_timeout(timeout)
    interface = _LOOPBACK if address is None else _interface_of(address)
    bound = {} if interface is None else dict.fromkeys(_INTERFACE, interface)
    with _defaults(bound):
        try:
            dist.init_process_group(
                _BACKENDS[rendezvous.backend], store=store, rank=rank, world_size=world_size, timeout=timeout
            )
        except BaseException:
            # torch names a group by a counter, which must be equal in new processes at the next attempt.
            dist.distributed_c10d._world.group_count = 0
            raise
    return TorchProcessGroup(rank, world_size, timeout, bound)


def _interface_of(address: str) -> str | None:
    """Return the network interface of `address`; None if torch must find it by the machine's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # This interface has no IPv4 address.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


@contextmanager
def _defaults(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables that are not set yet, for the duration of the block."""
    absent = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(absent)
    try:
        yield
    finally:
        for name in absent:
            os.environ.pop(name, None)


Complaint = Callable[[str], str]
"""Function that returns the message for the reason of a failure."""


@contextmanager
def agreed(group: ProcessGroup, complaint: Complaint) -> Iterator[None]:
    """Wait for all workers of `group` at the end of the block; if the block failed on one, raise on all.

    Raises:
        CheckpointError: the block failed on a worker; the message has the worker and the reason.
    """
    error: BaseException | None = None
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as raised:  # torch's CheckpointException is not a subclass of Exception.
        if lost_peer(raised):
            raise
        error = raised
    reasons = group.gather_values(None if error is None else _reason(error))
    failed = [(rank, reason) for rank, reason in enumerate(reasons) if reason is not None]
    if isinstance(error, CheckpointError):
        raise error
    if failed:
        rank, reason = failed[0]
        where = f"worker {rank}: " if group.world_size > 1 else ""
        raise CheckpointError(complaint(f"{where}{reason}")) from error


def _reason(error: BaseException) -> str:
    """Return the error as one line; if torch collected several workers' errors, the first of them."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, failure = next(iter(failures.items()))
        error = failure[0] if isinstance(failure, tuple) else failure
        return f"{message_of(error)} (on worker {rank})"
    return message_of(error) or type(error).__name__
