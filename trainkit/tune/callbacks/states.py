"""What callbacks want back when their experiment goes on: asked for now and then, kept as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from trainkit.tune.callbacks.base import Callback

KEEP_S = 5.0
"""Between two times that callbacks are asked."""


class States:
    """The states of callbacks; one is told from another by its class, and its place among those of that.

    Args:
        callbacks: all of them; asked are those that override `get_state`.
        keep: takes the states by name, when one has changed.
        complain: is told of a callback's method that raised, and what.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        keep: Callable[[dict[str, str]], None],
        complain: Callable[[Callback, str, Exception], None],
    ) -> None:
        self._named: dict[str, Callback] = {}
        for callback in callbacks:
            kind = type(callback).__qualname__
            place = sum(type(each).__qualname__ == kind for each in self._named.values())
            self._named[f"{kind}/{place}"] = callback
        self._asked = {
            name: each for name, each in self._named.items() if type(each).get_state is not Callback.get_state
        }
        self._keep = keep
        self._complain = complain
        self._kept: dict[str, str] = {}
        self._last: float | None = None

    def give_back(self, kept: Mapping[str, str]) -> None:
        """Hand each callback the state that was kept of it."""
        self._kept = dict(kept)
        for name, text in kept.items():
            callback = self._named.get(name)
            if callback is not None:
                with self._told_of(callback, "set_state"):
                    callback.set_state(json.loads(text))

    def keep_when_due(self, now: float) -> None:
        """Keep the states if it is time."""
        if self._asked and (self._last is None or now - self._last >= KEEP_S):
            self._last = now
            self.keep_now()

    def keep_now(self) -> None:
        """Ask for the states, and keep them if one has changed."""
        found = dict(self._kept)
        for name, callback in self._asked.items():
            with self._told_of(callback, "get_state"):
                state = callback.get_state()
                if state is not None:
                    found[name] = json.dumps(state)
        if found != self._kept:
            self._keep(found)
            self._kept = found

    @contextmanager
    def _told_of(self, callback: Callback, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._complain(callback, method, error)
