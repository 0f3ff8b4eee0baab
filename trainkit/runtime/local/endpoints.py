"""What an actor's handle holds, and how it travels."""

from __future__ import annotations

import socket
from typing import Any

from trainkit.runtime import serialize
from trainkit.runtime.local.channel import HANDLE_KINDS
from trainkit.runtime.local.refs import Peer, current_engine

ACTOR = 2


class Endpoint:
    """What an actor's handle holds: as long as one of them is somewhere, the actor stays.

    Each is one connection of its own, so the actor's process sees the last of them close, also when
    it was lost on the way or its holder crashed.
    """

    kind = ACTOR
    __slots__ = ("__weakref__", "peer")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

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
        # Answers to the calls already sent may still be read.
        self.peer.finish_sending()


HANDLE_KINDS[ACTOR] = lambda fd: Endpoint(Peer(socket.socket(fileno=fd)))


def _reduce_endpoint(pickler: Any, endpoint: Endpoint) -> Any:
    peer = endpoint.peer
    home = peer.home or current_engine().mark
    return _load_endpoint, (pickler.attach(endpoint), peer.name, peer.worker_id, home)


def _load_endpoint(position: int, name: str, worker_id: int | None, home: str) -> Endpoint:
    endpoint: Any = serialize.claim(position)
    peer = endpoint.peer
    peer.name, peer.worker_id, peer.home = name, worker_id, home
    return endpoint  # type: ignore[no-any-return]


serialize.register(Endpoint, _reduce_endpoint)
