"""Process groups, in which workers join and exchange values by gloo and NCCL.

Workers of one machine find each other through a file and communicate over the loopback interface. With
several machines, worker 0 runs a key-value store where the workers meet, and each worker listens only at its
machine's address in the cluster.
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
"""Environment variables for the network interface that the backends use; values of the user are kept."""

_LOOPBACK = "lo"
"""Network interface for workers that are all on one machine, because they must not listen on the network."""

_SIOCGIFADDR = 0x8915

_FEW = 4095
"""Number of integers in a broadcast's first message.

A message of this size, 32 KiB, is sent as fast as a single integer.
"""

_BACKENDS = {"gloo": "gloo", "nccl": "cpu:gloo,cuda:nccl"}
"""Backends in torch's notation; with NCCL, values on the CPU, such as sample orders, still use gloo."""


class ProcessGroup:
    """Connection of one worker to the workers that it trains with; this base class is for a single worker.

    Attributes:
        rank: this worker's rank, from 0.
        world_size: number of workers.
        members: number of processes in collectives; above `world_size` if several processes count as one
            worker.
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
        """Return every worker's `value`, by rank: containers of plain values and tensors on the CPU."""
        return [value]

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite `tensors` with worker 0's values."""

    def subgroup(self, parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Make torch's process groups of the ranks in `parts`, on all workers; return this worker's group.

        Raises:
            ConfigError: this group has only one worker.
        """
        raise ConfigError("one worker alone has no process group: use num_workers=2 or more")

    def leave(self) -> None:
        """Leave the other workers; the group can no longer be used."""


class TorchProcessGroup(ProcessGroup):
    """Process group of several workers, joined with torch.distributed.

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
        # Workers must wait for each message of a broadcast. So the first message contains the number of
        # values, and if the values are few, also the values.
        first, sends = torch.zeros(_FEW + 1, dtype=torch.int64), self.rank == 0
        data = torch.frombuffer(array("q", [len(values), *values]), dtype=torch.int64) if sends else first
        first[: len(data)] = data[: len(first)]
        # Worker 0 does not wait for the other workers here. If other workers are lost or never receive the
        # values, `end_sending` raises an error.
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

    def broadcast_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def subgroup(self, parts: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        with _defaults(self._bound):
            # Without `timeout`, the subgroups would use torch's default of half an hour.
            own, _ = dist.new_subgroups_by_enumeration(  # type: ignore[no-untyped-call]
                [list(part) for part in parts], timeout=self._timeout
            )
        return cast(dist.ProcessGroup, own)

    def leave(self) -> None:
        # Only the first call destroys the group, because at a later call, the process may be in the group of
        # a different trainer.
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
    """Make `device` the current CUDA device, and join the other workers, if any."""
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
    """Join the other workers, and return after all workers have joined.

    Args:
        rendezvous: address and settings with which the workers find each other.
        rank: this worker's rank.
        world_size: number of workers.
        address: address at which the other machines reach this machine; None if all workers are on this
            machine.
        listener: store where the workers meet, if it runs in this process.

    Raises:
        torch.distributed.DistError: not all workers joined within `rendezvous.timeout_s`.
        ConfigError: this process is already in a group of torch.distributed.
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
            # torch names groups by a counter, which must be equal on all workers. At the next attempt, some
            # workers may be new processes, in which the counter begins at 0. So the counter is reset.
            dist.distributed_c10d._world.group_count = 0
            raise
    return TorchProcessGroup(rank, world_size, timeout, bound)


def _interface_of(address: str) -> str | None:
    """Return the network interface that has `address`; None lets torch find it by the machine's name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # ioctl fails if an interface has no IPv4 address.
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
"""Function that makes an error message from the reason of a failure."""


@contextmanager
def agreed(group: ProcessGroup, complaint: Complaint) -> Iterator[None]:
    """Wait for all workers of `group` at the end of the block.

    If the block failed on one worker, raise an error on all workers.

    Raises:
        CheckpointError: the block failed on a worker; the message names the worker and the reason.
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
    """Return the text of `error`; if torch collected errors of several workers, only the first text."""
    failures = getattr(error, "failures", None)
    if isinstance(failures, dict) and failures:
        rank, failure = next(iter(failures.items()))
        error = failure[0] if isinstance(failure, tuple) else failure
        return f"{message_of(error)} (on worker {rank})"
    return message_of(error) or type(error).__name__
