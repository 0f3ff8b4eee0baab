"""What the inline engine has, as plain data."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime.inline_actors import Actors
from trainkit.runtime.inline_calls import Caller
from trainkit.runtime.inline_frames import Frame
from trainkit.runtime.inline_places import Places
from trainkit.runtime.inline_refs import InlineRef

KINDS = ("nodes", "actors", "tasks", "objects", "placement_groups", "requests")


class Listing:
    """Answers for `Engine.state`.

    Args:
        node_id: this process's, as it stands for the machine.
        places: the machine and its groups.
        actors: the living and the ended.
        caller: what runs now.
        large: values of a size that elsewhere lies in shared memory.
    """

    def __init__(
        self, node_id: str, places: Places, actors: Actors, caller: Caller, large: Iterable[InlineRef]
    ) -> None:
        self._node_id = node_id
        self._places = places
        self._actors = actors
        self._caller = caller
        self._large = large

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """What there is of `kind`; raises ConfigError if there is no such kind."""
        match kind:
            case "nodes":
                return [self._node()]
            case "actors":
                return self._actors.rows()
            case "tasks":
                return [_task(frame) for frame in self._caller.running if frame.life is None]
            case "objects":
                return [_object(ref) for ref in list(self._large)]
            case "placement_groups":
                return self._places.rows()
            case "requests":
                return []  # nothing waits
        raise ConfigError(f"state({kind!r}); there are {', '.join(KINDS)}")

    def _node(self) -> dict[str, Any]:
        return {
            "node_id": self._node_id,
            "alive": True,
            "hostname": socket.gethostname(),
            "address": "127.0.0.1",
            "pid": os.getpid(),
            "resources": dict(self._places.totals),
            "available": self._places.available(),
            "object_store": None,
        }


def _task(frame: Frame) -> dict[str, Any]:
    return {
        "name": frame.name,
        "state": "RUNNING",
        "pid": os.getpid(),
        "resources": dict(frame.placement.resources),
        "owner_pid": os.getpid(),
    }


def _object(ref: InlineRef) -> dict[str, Any]:
    return {"object_id": f"{ref.id:016x}", "size_bytes": ref.packed.size_bytes, "pids": [os.getpid()]}
