"""Where a gang's workers start: bundles of a placement group of their own, or of the trial's."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from trainkit.errors import ConfigError
from trainkit.resources import Bundle
from trainkit.runtime import api as runtime
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.train.sizes import AT_ONCE_S, fitting


class Seats:
    """Resources for the workers of one trainer, kept while its gang is formed again.

    Args:
        bundle: what each worker needs.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._held = contextlib.ExitStack()
        self.group: PlacementGroup | None = None
        self.bundles: Sequence[int] = ()
        self.of_trial = False

    @property
    def count(self) -> int:
        """How many workers have a place."""
        return len(self.bundles)

    def take(self, workers: int, timeout_s: float | None = None) -> bool:
        """Reserve places for `workers`, in place of those that are held; within a trial, the trial's own.

        Returns:
            False, with nothing held, if there is no room within `timeout_s`.

        Raises:
            InfeasibleError: the machine could never hold them.
        """
        self.give_back()
        if (trial := runtime.get_current_placement_group()) is not None:
            bundles = bundles_of_trial(trial.bundle_specs, self._bundle, workers)
            if bundles is not None:
                self.group, self.bundles, self.of_trial = trial, bundles, True
                return True
        group = runtime.placement_group([self._bundle] * workers)
        self._held.callback(_give_back, group)
        if not group.wait(timeout_s):
            self.give_back()
            return False
        self.group, self.bundles = group, range(workers)
        return True

    def more(self) -> int:
        """How many places there are beside those that are held, nobody else being in line for them."""
        if (trial := runtime.get_current_placement_group()) is not None:
            return max(0, len(_fitting_bundles(trial.bundle_specs, self._bundle)) - self.count)
        return fitting(runtime.available_resources(), self._bundle)

    def keep(self) -> bool:
        """Go on with the places that are held; False if they can't be had any more."""
        if self.group is None:
            return False
        try:
            return self.group.wait(AT_ONCE_S)
        except ConfigError:  # The group was removed, by whoever needed what it held.
            self.give_back()
            return False

    def give_back(self) -> None:
        """Free what is held; what runs in it is ended. A trial's places stay the trial's."""
        self._held.close()
        self.group, self.bundles, self.of_trial = None, (), False


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
