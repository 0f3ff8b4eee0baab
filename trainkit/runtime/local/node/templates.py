"""Template processes of a session: one for each set of imports worth a process."""

from __future__ import annotations

import functools
import socket
from collections import Counter
from collections.abc import Callable, Collection

from trainkit.runtime.local.node.loop import try_send
from trainkit.runtime.local.wire.channel import Connection, Descriptor
from trainkit.runtime.local.wire.frames import NOTICE, Frame
from trainkit.runtime.local.wire.messages import ForkTemplate, packed

Imports = frozenset[str]

_SLOW = "torch"
"""Package that takes seconds to import, where the rest takes tenths."""

_KINDS = 256
"""Kinds of workers of which it is remembered what they import."""

_WORTH_IT = 4
"""Workers that want the same imports, until a template with just these is worth its memory."""


def choose(wanted: Imports, existing: Collection[Imports], ready: Collection[Imports]) -> Imports:
    """Return the imports of the template to fork a worker from that will want `wanted`.

    A worker does not wait for a template that would spare it some tenths of a second, if there is one
    that has what takes seconds; what is missing it imports itself, if it uses it at all.

    Args:
        wanted: what the worker's owner has imported.
        existing: the templates there are, those that are still importing among them.
        ready: those that could fork now.
    """
    if wanted in ready or _SLOW not in wanted:
        return wanted
    near = [have for have in existing if _SLOW in have and have <= wanted]
    return max(near, key=lambda have: (have in ready, len(have)), default=frozenset({_SLOW}))


class Templates:
    """The connections to the template processes, by what they have imported.

    Args:
        connect: makes a connection of the node's loop.
        on_frame: called with a template's imports and a frame from it.
        on_gone: called with the imports of a template that has ended.
        plain: the socket to the template that imports nothing.
    """

    def __init__(
        self,
        connect: Callable[[socket.socket, Callable[[Frame], None], Callable[[], None]], Connection],
        on_frame: Callable[[Imports, Frame], None],
        on_gone: Callable[[Imports], None],
        plain: socket.socket,
    ) -> None:
        self._connect = connect
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._learned: dict[str, Imports] = {}
        self._asked: Counter[Imports] = Counter()
        self._ready: set[Imports] = {frozenset()}
        self._conns: dict[Imports, Connection] = {}
        self._unusable: dict[Imports, str] = {}
        """Why a template with these imports can't be had."""
        self._add(frozenset(), plain)

    def _add(self, imports: Imports, sock: socket.socket) -> None:
        on_frame = functools.partial(self._on_frame, imports)
        self._conns[imports] = self._connect(sock, on_frame, functools.partial(self._gone, imports))

    def _gone(self, imports: Imports) -> None:
        self._conns.pop(imports, None)
        self._ready.discard(imports)
        self._on_gone(imports)

    def mark_ready(self, imports: Imports) -> None:
        """Note that a template has done its imports."""
        self._ready.add(imports)

    def mark_unusable(self, imports: Imports, reason: str) -> None:
        """Note that a template with these imports can't be had."""
        self._unusable[imports] = reason

    def why_ended(self, imports: Imports) -> str:
        """Return why the template with these imports ended."""
        return self._unusable.get(imports, f"the template with {', '.join(sorted(imports))} ended")

    def can_fork(self, imports: Imports) -> bool:
        """Return whether the template with these imports has done them."""
        return imports in self._ready

    def warm(self, imports: Imports) -> None:
        """Start a template with exactly these imports, unless there is one."""
        if imports in self._conns or imports in self._unusable:
            return
        # From the template that has most of it already, so that the rest takes the least time.
        base = max((have for have in self._conns if have <= imports), key=len)
        ours, theirs = socket.socketpair()
        self._add(imports, ours)
        try_send(self._conns[base], NOTICE, 0, packed(ForkTemplate(imports), [Descriptor(theirs.detach())]))

    def connections(self) -> list[Connection]:
        """Return the connections to all templates."""
        return list(self._conns.values())

    def learn(self, kind: str, imports: Imports) -> None:
        """Note what workers of a kind import themselves, and have a template with it for the next ones."""
        known = self._learned.pop(kind, frozenset())
        self._learned[kind] = wanted = known | imports
        if len(self._learned) > _KINDS:
            del self._learned[next(iter(self._learned))]
        self.warm(choose(wanted, self._conns, self._ready))

    def for_worker(self, wanted: Imports, kind: str = "") -> tuple[Imports, Connection]:
        """Return the template to fork a worker of `kind` from, whose owner has imported `wanted`."""
        wanted |= self._learned.get(kind, frozenset())
        self._asked[wanted] += 1
        if self._asked[wanted] >= _WORTH_IT:
            self.warm(wanted)
        chosen = choose(wanted, self._conns, self._ready)
        self.warm(chosen)
        if chosen in self._unusable:
            chosen = frozenset()
        return chosen, self._conns[chosen]
