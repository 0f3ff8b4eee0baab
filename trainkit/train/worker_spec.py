"""What a worker is told when it starts, and how it becomes one of several by it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainkit.train import meeting, process_group
from trainkit.train.meeting import Locality
from trainkit.train.options import TrainerOptions
from trainkit.train.process_group import Listener, Rendezvous, WorkerGroup
from trainkit.train.strategies.base import Place, Strategy


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What a worker is told when it starts.

    Attributes:
        options: the trainer's, resolved.
        rank: this worker's number, from 0.
        locality: its number among those of its machine.
        rendezvous: where the workers meet; None if there is one.
        seed: for the generators, the same on all workers while they set up; None leaves them alone.
    """

    options: TrainerOptions
    rank: int
    locality: Locality
    rendezvous: Rendezvous | None
    seed: int | None


def joined_strategy(spec: WorkerSpec, listener: Listener | None) -> Strategy:
    """Meet the other workers; returns this one's part of the strategy.

    Args:
        spec: the worker's.
        listener: where they meet, if it is in this process.
    """
    options = spec.options
    devices: tuple[torch.device, ...] = (torch.device("cpu"),)
    if options.devices_per_worker:
        devices = tuple(torch.device("cuda", index) for index in range(options.devices_per_worker))
        torch.cuda.set_device(devices[0])
    group = WorkerGroup()
    if spec.rendezvous is not None:
        group = process_group.join(
            spec.rendezvous,
            rank=spec.rank,
            world_size=options.num_workers,
            address=None if meeting.on_one_machine() else meeting.own_address(),
            listener=listener,
        )
    place = Place(
        devices=devices, group=group, step=options.step, wrap=options.wrap_ddp, split=options.add_dist_sampler
    )
    return options.spec.build(place)
