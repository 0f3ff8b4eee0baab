"""Placement of workers: how many fit, and the placement groups that reserve their resources."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from trainkit.errors import ConfigError
from trainkit.resources import QUANTUM, Bundle, total
from trainkit.runtime import api as runtime
from trainkit.runtime.scheduling import PlacementGroup

AT_ONCE_S = 2.0
"""Seconds that are long enough to get free resources, even from a machine under load."""


def allowed_sizes(
    num_workers: int, min_workers: int | None = None, *, model_ways: int = 1, batch_size: int | None = None
) -> tuple[int, ...]:
    """Return the possible numbers of workers in a group, the largest first.

    Args:
        num_workers: largest number of workers.
        min_workers: smallest number of workers; None means `num_workers`.
        model_ways: number of workers that hold one copy of the model together; all results are multiples of
            this number.
        batch_size: global batch size, of which each copy of the model gets at least one sample; None if each
            worker has its own batch size.
    """
    fewest = num_workers if min_workers is None else min_workers
    sizes = [size for size in range(num_workers, fewest - 1, -1) if size % model_ways == 0]
    return tuple(size for size in sizes if batch_size is None or batch_size >= size // model_ways)


def fitting(free: Bundle, bundle: Bundle) -> int:
    """Return how many times `bundle` fits into the resources `free`, as if all resources were on one
    machine.
    """
    asked = {name: round(amount * QUANTUM) for name, amount in bundle.items() if amount > 0}
    if not asked:
        raise ValueError(f"the bundle {bundle} requests no resources: request a positive amount")
    return max(0, min(round(free.get(name, 0) * QUANTUM) // amount for name, amount in asked.items()))


def larger_size(allowed: Sequence[int], current: int, more: int) -> int | None:
    """Return the largest allowed number of workers that can be reached with at most `more` additional
    workers; None if no allowed number can be reached.
    """
    return next((size for size in sorted(allowed, reverse=True) if current < size <= current + more), None)


def time_to_wait_s(size: int, allowed: Sequence[int], *, full_s: float, last_s: float | None) -> float | None:
    """Return the seconds to wait for resources for `size` workers before a smaller number of workers is
    tried.

    For the largest number of workers, the wait is `full_s`, because resources may soon be free again. For all
    numbers between the largest and the smallest number, the wait is short. For the smallest number, the wait
    is `last_s`, because no smaller number is left to try.
    """
    if size == min(allowed):
        return last_s
    return full_s if size == max(allowed) else AT_ONCE_S


class WorkerPlacement:
    """Resource bundles for a trainer's workers.

    The bundles stay reserved when a new worker group replaces the previous group.

    Args:
        bundle: resources of each worker.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._held = contextlib.ExitStack()
        self._places: list[tuple[PlacementGroup, int]] = []
        self._own = 0

    def __len__(self) -> int:
        return len(self._places)

    def reserved(self) -> Bundle:
        """Return the resources that this object has reserved; {} if the bundles belong to a trial."""
        return total([self._bundle] * self._own)

    def __getitem__(self, rank: int) -> tuple[PlacementGroup, int]:
        """Return the placement group of the worker `rank`, and the index of its bundle in this group."""
        return self._places[rank]

    def take(self, workers: int, timeout_s: float | None = None) -> bool:
        """Reserve `workers` bundles; inside a trial, use bundles of the trial instead.

        Returns:
            True if the bundles are reserved. False, with nothing reserved, if too few resources are free
            within `timeout_s`.

        Raises:
            InfeasibleError: the machine can never hold the workers.
        """
        self.give_back()
        return self._take_of_trial(workers) or self._reserve(workers, timeout_s)

    def add(self, workers: int) -> bool:
        """Reserve `workers` more bundles if they are free now; otherwise change nothing and return False."""
        held = self._take_of_trial(len(self) + workers)
        return self._reserve(workers, AT_ONCE_S) if held is None else held

    def more(self) -> int:
        """Return the number of further bundles that seem to be free, in addition to the reserved bundles."""
        if (trial := runtime.get_current_placement_group()) is not None:
            return max(0, len(_fitting_bundles(trial.bundle_specs, self._bundle)) - len(self))
        return fitting(runtime.available_resources(), self._bundle)

    def still_there(self) -> bool:
        """Return True if the reserved bundles are still usable; otherwise release them."""
        try:
            groups = {id(group): group for group, _ in self._places}
            there = all(group.wait(AT_ONCE_S) for group in groups.values())
        except ConfigError:  # The group was removed, because another program needed its resources.
            there = False
        if not there:
            self.give_back()
        return bool(self._places)

    def give_back(self) -> None:
        """Release the reserved bundles and end the processes in them; bundles of a trial stay reserved."""
        self._held.close()
        self._places, self._own = [], 0

    def _take_of_trial(self, workers: int) -> bool | None:
        """Use `workers` bundles of the trial.

        Return False if the trial has too few bundles, None outside of a trial.
        """
        if (trial := runtime.get_current_placement_group()) is None:
            return None
        bundles = bundles_of_trial(trial.bundle_specs, self._bundle, workers)
        if bundles is not None:
            self._places = [(trial, bundle) for bundle in bundles]
        return bundles is not None

    def _reserve(self, workers: int, timeout_s: float | None) -> bool:
        group = runtime.placement_group([self._bundle] * workers)
        with contextlib.ExitStack() as undone:
            undone.callback(_give_back, group)
            if not group.wait(timeout_s):
                return False
            self._held.push(undone.pop_all())
        self._places += [(group, bundle) for bundle in range(workers)]
        self._own += workers
        return True


def _give_back(group: PlacementGroup) -> None:
    if runtime.is_initialized():
        runtime.remove_placement_group(group)


def bundles_of_trial(specs: Sequence[Bundle], needs: Bundle, workers: int) -> list[int] | None:
    """Return the indices of a trial's bundles for its workers; None if too few bundles of the trial are large
    enough.

    Args:
        specs: resources of the trial's bundles; the last bundles are used, because the first bundle belongs
            to the trial's own process.
        needs: resources of each worker.
        workers: number of workers.
    """
    found = _fitting_bundles(specs, needs)
    return found[-workers:] if len(found) >= workers else None


def _fitting_bundles(specs: Sequence[Bundle], needs: Bundle) -> list[int]:
    fits = [all(spec.get(name, 0) >= amount for name, amount in needs.items()) for spec in specs]
    return [index for index, each in enumerate(fits) if each]
