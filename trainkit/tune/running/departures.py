"""Trials' processes on their way out: told to end, waited for, and killed if that takes too long."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trainkit.errors import NodeDiedError, TrainkitError
from trainkit.runtime import api
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.runtime.remote import ActorHandle
from trainkit.runtime.specs import ObjectRef

logger = logging.getLogger("trainkit.tune")


@dataclass(slots=True)
class _Leaving:
    """A process that has been told to end: `ref` is done once it has, which it must by `deadline`."""

    actor: ActorHandle
    group: PlacementGroup | None
    ref: ObjectRef[Any]
    deadline: float


class Departures:
    """See the module.

    Args:
        now: the time, in seconds, which never falls.
        leave_s: how long a process may take to end.
    """

    def __init__(self, *, now: Callable[[], float], leave_s: float) -> None:
        self._now = now
        self._leave_s = leave_s
        self._leaving: list[_Leaving] = []

    def __len__(self) -> int:
        return len(self._leaving)

    def let_leave(self, actor: ActorHandle, group: PlacementGroup | None) -> None:
        """Have a process end in order, which frees what it holds.

        Told in so many words: it would also end with the last handle to it, but whoever keeps an
        exception may keep one.
        """
        ref = actor.leave.remote(os.getpid())
        self._leaving.append(_Leaving(actor, group, ref, self._now() + self._leave_s))

    def see_off(self) -> None:
        """Forget the processes that have ended, and kill those that are overdue."""
        if not self._leaving:
            return
        refs = [leaving.ref for leaving in self._leaving]
        gone = set(api.wait(refs, num_returns=len(refs), timeout=0)[0])
        now, staying = self._now(), []
        for leaving in self._leaving:
            if leaving.ref not in gone and now < leaving.deadline:
                staying.append(leaving)
            elif leaving.ref not in gone:
                logger.warning("%r did not end within %g s and is killed", leaving.actor, self._leave_s)
                end_now(leaving.actor, leaving.group)
            elif leaving.group is not None:
                _give_back(leaving.group)
        self._leaving = staying

    def wait(self) -> None:
        """Return when one has ended, or is overdue."""
        overdue_s = self.deadline - self._now()
        refs = [leaving.ref for leaving in self._leaving]
        api.wait(refs, num_returns=1, timeout=max(0.0, overdue_s) if math.isfinite(overdue_s) else None)

    @property
    def deadline(self) -> float:
        """By when the first of them must have ended; infinity: none must."""
        return min((leaving.deadline for leaving in self._leaving), default=math.inf)

    def with_bundles(self) -> list[ObjectRef[Any]]:
        """Of those whose bundles others may wait for: a process gives back by itself what it alone held."""
        return [leaving.ref for leaving in self._leaving if leaving.group is not None]

    def take_all(self) -> list[tuple[ActorHandle, PlacementGroup | None]]:
        """Hand over those that have not ended, to be ended at once."""
        doomed, self._leaving = self._leaving, []
        return [(leaving.actor, leaving.group) for leaving in doomed]


def end_now(actor: ActorHandle, group: PlacementGroup | None) -> None:
    """Kill a process and give its bundles back."""
    with contextlib.suppress(NodeDiedError):  # it is dead then, and holds nothing
        api.kill(actor)
    if group is not None:
        _give_back(group)


def _give_back(group: PlacementGroup) -> None:
    with contextlib.suppress(NodeDiedError):
        api.remove_placement_group(group)


def end_all_now(doomed: list[tuple[ActorHandle, PlacementGroup | None]]) -> None:
    """Kill processes, each for itself: one that can't be ended must not save the others."""
    for actor, group in doomed:
        try:
            end_now(actor, group)
        except TrainkitError:
            logger.warning("%r could not be ended", actor, exc_info=True)
