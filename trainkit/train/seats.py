"""Where a gang's workers start: bundles of a placement group of their own, or of the trial's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from trainkit.errors import ConfigError
from trainkit.resources import Bundle, total
from trainkit.runtime import api as runtime
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.train.sizes import AT_ONCE_S, fitting


class Seats:
    """Places for the workers of one trainer, kept while its gang is formed again.

    Args:
        bundle: what each worker needs.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._held = contextlib.ExitStack()
        self._places: list[tuple[PlacementGroup, int]] = []
        self._own = 0

    def __len__(self) -> int:
        return len(self._places)

    def reserved(self) -> Bundle:
        """Return the resources that are held of the machine; none where the places are a trial's."""
        return total([self._bundle] * self._own)

    def __getitem__(self, rank: int) -> tuple[PlacementGroup, int]:
        """The group of the place, and its bundle there."""
        return self._places[rank]

    def take(self, workers: int, timeout_s: float | None = None) -> bool:
        """Hold places for so many workers, and only these; within a trial, the trial's own.

        Returns:
            False, with nothing held, if there is no room within `timeout_s`.

        Raises:
            InfeasibleError: the machine could never hold them.
        """
        self.give_back()
        if (trial := runtime.get_current_placement_group()) is not None:
            bundles = bundles_of_trial(trial.bundle_specs, self._bundle, workers)
            if bundles is not None:
                self._places = [(trial, bundle) for bundle in bundles]
                return True
        return self._reserve(workers, timeout_s)

    def add(self, workers: int) -> bool:
        """Hold places for so many more, if they can be had at once; False, and nothing changed, if not."""
        if (trial := runtime.get_current_placement_group()) is not None:
            bundles = bundles_of_trial(trial.bundle_specs, self._bundle, len(self) + workers)
            if bundles is not None:
                self._places = [(trial, bundle) for bundle in bundles]
            return bundles is not None
        return self._reserve(workers, AT_ONCE_S)

    def more(self) -> int:
        """How many places seem to be free beside those that are held."""
        if (trial := runtime.get_current_placement_group()) is not None:
            return max(0, len(_fitting_bundles(trial.bundle_specs, self._bundle)) - len(self))
        return fitting(runtime.available_resources(), self._bundle)

    def still_there(self) -> bool:
        """Whether those that are held, if any, can go on being used; nothing is held if not."""
        try:
            there = all(
                group.wait(AT_ONCE_S) for group in {id(group): group for group, _ in self._places}.values()
            )
        except ConfigError:  # A group was removed, by whoever needed what it held.
            there = False
        if not there:
            self.give_back()
        return bool(self._places)

    def give_back(self) -> None:
        """Free what is held; what runs in it is ended. A trial's places stay the trial's."""
        self._held.close()
        self._places, self._own = [], 0

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
    """Indices of the bundles of a trial's group that its gang starts in; None if they don't fit.

    Args:
        specs: the trial's bundles; the last ones are taken, as the first is its head's, if it has one.
        needs: what each worker needs.
        workers: how many there are.
    """
    found = _fitting_bundles(specs, needs)
    return found[-workers:] if len(found) >= workers else None


def _fitting_bundles(specs: Sequence[Bundle], needs: Bundle) -> list[int]:
    return [
        index
        for index, spec in enumerate(specs)
        if all(spec.get(name, 0) >= amount for name, amount in needs.items())
    ]
