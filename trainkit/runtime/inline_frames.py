"""Where code of the inline engine stands: the calls that it runs in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainkit.runtime.inline_places import Place
from trainkit.runtime.specs import Placement

if TYPE_CHECKING:
    from trainkit.runtime.inline_actors import InlineActor, Life
    from trainkit.runtime.inline_loop import PrivateLoop


@dataclass(frozen=True, eq=False)
class Frame:
    """One call, or the place that the steps of one run in.

    Attributes:
        name: what runs, for errors.
        loop: for what is `async`.
        number: of the call; None where none is running.
        life: the instance whose method it is; None for a task.
        actor: whose instance that is, or was.
        given: the name that the call was given; None for its own.
    """

    name: str
    placement: Placement
    place: Place
    loop: PrivateLoop
    number: int | None = None
    life: Life | None = None
    actor: InlineActor | None = None
    given: str | None = None

    def leave(self) -> None:
        """Free what a task holds; an actor keeps it. To be called once."""
        if self.life is None:
            self.place.give_back()
            self.loop.close()


class _Stack(threading.local):
    # Not a context variable: what runs in a greenlet of its own is part of the call that switches to it.
    frames: tuple[Frame, ...] = ()


_stack = _Stack()


def frames() -> tuple[Frame, ...]:
    """The calls that this code runs in, the innermost last."""
    return _stack.frames


@contextlib.contextmanager
def standing_in(inside: tuple[Frame, ...]) -> Iterator[None]:
    """Let what runs here, in this thread, be part of those calls."""
    outer = _stack.frames
    _stack.frames = inside
    try:
        yield
    finally:
        _stack.frames = outer
