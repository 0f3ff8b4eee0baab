"""What an actor's handle holds, and how it travels."""

from __future__ import annotations

import socket
import threading
import weakref
from typing import Any

from trainkit.runtime import serialize
from trainkit.runtime.local.actor_peer import ActorPeer
from trainkit.runtime.local.channel import HANDLE_KINDS
from trainkit.runtime.local.refs import current_engine

ACTOR = 2


class Endpoint:
    """What an actor's handle holds: as long as one of them is somewhere, the actor stays.

    Each is one connection of its own, so the actor's process sees the last of them close, also when
    it was lost on the way or its holder crashed. Those of one process lead over one connection, see `shared`.
    """

    kind = ACTOR
    __slots__ = ("__weakref__", "peer")

    def __init__(self, peer: ActorPeer) -> None:
        self.peer = peer
        with sharing:
            peer.endpoints += 1

    @property
    def actor_id(self) -> str:
        """The actor's id, in hexadecimal."""
        return f"{self.peer.worker_id or 0:016x}"

    def __eq__(self, other: object) -> bool:
        """Whether both lead to the same actor."""
        if self is other or not isinstance(other, Endpoint):
            return self is other
        ours, theirs = self.peer, other.peer
        return ours.worker_id is not None and (ours.worker_id, ours.home) == (theirs.worker_id, theirs.home)

    def __hash__(self) -> int:
        return hash(self.peer.worker_id)

    def __copy__(self) -> Endpoint:
        return self

    def __deepcopy__(self, memo: object) -> Endpoint:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("an actor's handle can only be sent as an argument or a result, not pickled by hand")

    def open_fd(self) -> int:
        return self.peer.open_fd()

    def __del__(self) -> None:
        with sharing:
            self.peer.endpoints -= 1
            is_last = not self.peer.endpoints
        if is_last:  # answers to the calls already sent may still be read
            self.peer.finish_sending()


_known: weakref.WeakValueDictionary[tuple[str | None, int | None], ActorPeer] = weakref.WeakValueDictionary()
sharing = threading.RLock()
"""Held while endpoints are counted: the last may go in one thread as another finds it."""


def living_peer(home: str | None, worker_id: int | None) -> ActorPeer | None:
    """Return the connection of this process to an actor, if handles lead over one.

    The caller holds `sharing`.

    Args:
        home: the mark of the actor's session.
        worker_id: of the actor.
    """
    peer = _known.get((home, worker_id))
    return None if peer is None or peer.closed or not peer.endpoints else peer


def shared(endpoint: Endpoint) -> Endpoint:
    """Return `endpoint`, which leads over the connection that this process has to the actor already, if any.

    So the calls of one process reach an actor in the order made, whichever handle they were made by.
    """
    peer = endpoint.peer
    with sharing:
        known = living_peer(peer.home, peer.worker_id)
        if known is None or known is peer:
            _known[peer.home, peer.worker_id] = peer
            return endpoint
        endpoint.peer = known
        known.endpoints += 1
        peer.endpoints -= 1
    peer.finish_sending()
    return endpoint


def actor_peers() -> list[ActorPeer]:
    """Return the connections of this process to actors."""
    with sharing:
        return list(_known.values())


HANDLE_KINDS[ACTOR] = lambda fd: Endpoint(ActorPeer(socket.socket(fileno=fd)))


def _reduce_endpoint(pickler: Any, endpoint: Endpoint) -> Any:
    peer = endpoint.peer
    home = peer.home or current_engine().mark
    details = (peer.name, peer.worker_id, home, peer.in_order, peer.max_task_retries)
    return _load_endpoint, (pickler.attach(endpoint), *details)


def _load_endpoint(
    position: int, name: str, worker_id: int | None, home: str, in_order: bool, max_task_retries: int
) -> Endpoint:
    endpoint: Any = serialize.claim(position)
    peer = endpoint.peer
    peer.name, peer.worker_id, peer.home = name, worker_id, home
    peer.in_order, peer.max_task_retries = in_order, max_task_retries
    return shared(endpoint)


serialize.register(Endpoint, _reduce_endpoint)
