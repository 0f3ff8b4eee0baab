"""Formation of a trainer's worker groups, with as many workers as there are resources for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from trainkit.errors import GangError, InfeasibleError
from trainkit.runtime import api as runtime
from trainkit.runtime import holdings
from trainkit.train.keys import BATCH_SIZE
from trainkit.train.options import TrainerOptions
from trainkit.train.strategies.base import named_strategy
from trainkit.train.workers import recovery
from trainkit.train.workers.member import GroupMember
from trainkit.train.workers.placement import WorkerPlacement, allowed_sizes, time_to_wait_s
from trainkit.train.workers.worker_group import WorkerGroup, remote_ranks, worker_label

M = TypeVar("M", bound=GroupMember)


class GroupFormation(Generic[M]):
    """Formation of a trainer's worker groups, with as many workers as there are resources for.

    Args:
        options: arguments of the trainer, with "auto" resolved.
        placement: resources of the trainer, which all its groups use one after the other.
        member: class of the workers.

    Attributes:
        sizes: numbers of workers that are allowed, the largest first.
    """

    def __init__(self, options: TrainerOptions, placement: WorkerPlacement, member: type[M]) -> None:
        sizes = allowed_sizes(options.num_workers, options.min_workers)
        self.sizes = tuple(size for size in sizes if _is_allowed(options, size))
        self._options = options
        self._placement = placement
        self._member = member
        self._label = worker_label.get()
        self._formed = False

    def group_of(self, size: int, config: Mapping[str, Any] | None = None) -> WorkerGroup[M]:
        """Return a group of `size` workers in the reserved resources; `config` replaces the configuration."""
        config = self._options.config if config is None else config
        options = replace(self._options, num_workers=size, config=config)
        return WorkerGroup(options, self._placement, self._label, self._member)

    def placed(self, *, again: bool) -> WorkerGroup[M]:
        """Form a group of as many workers as fit; they are not set up yet.

        Args:
            again: True if the group replaces a lost group. The new group uses the same resources if they
                still exist.

        Raises:
            InfeasibleError: the machine does not have enough resources for the smallest size, even when idle.
            GangError: too few resources are free.
        """
        sizes, options = self.sizes, self._options
        if not remote_ranks(options):
            return self.group_of(options.num_workers)
        timeout_s = options.timeout_s
        if again and self._placement.still_there():
            group = self.group_of(len(self._placement))
            # The resources may have been lost with their machine, although the cluster has not noticed the
            # loss yet.
            if group.gathered(recovery.REFORM_WAIT_S if len(sizes) > 1 else timeout_s):
                return group
            group.close(force=True)
        # The first group waits without a time limit, so it must not wait for resources that this program
        # itself holds.
        last_s = timeout_s if again else None
        if not again and runtime.get_current_placement_group() is None:
            smallest = [options.bundle] * sizes[-1]
            who = "a TorchTrainer that was interrupted" if self._formed else "a new TorchTrainer"
            holdings.make_room(smallest, runtime.cluster_resources(), who)
        for size in sizes:
            wait_s = time_to_wait_s(size, sizes, full_s=recovery.REFORM_WAIT_S, last_s=last_s)
            try:
                if self._placement.take(size, wait_s):
                    self._formed = True
                    return self.group_of(size)
            except InfeasibleError as error:
                if size == sizes[-1]:
                    asked = options.num_cpus_per_worker, options.devices_per_worker or 0
                    existing = runtime.cluster_resources()
                    wrote = "num_workers" if size == options.num_workers else "min_workers"
                    refused = InfeasibleError(f"TorchTrainer({wrote}={size}): {error}")
                    refused.add_note(recovery.infeasible_text(size, *asked, existing))
                    raise refused from None
        raise GangError(recovery.no_room_text(sizes[-1], timeout_s))


def _is_allowed(options: TrainerOptions, size: int) -> bool:
    """Return True if the model and the batches can be divided among `size` workers."""
    spec = named_strategy(options.strategy, num_workers=size)
    devices = options.devices_per_worker or 1
    if any(spec.mistakes(num_workers=size, devices_per_worker=devices, step=options.step)):
        return False
    return bool(allowed_sizes(size, model_ways=spec.model_ways, batch_size=options.config.get(BATCH_SIZE)))
