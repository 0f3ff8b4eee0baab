"""What the inline engine has, as plain data."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime.inline_actors import Actors
from trainkit.runtime.inline_calls import Caller
from trainkit.runtime.inline_frames import Frame
from trainkit.runtime.inline_places import Places
from trainkit.runtime.inline_refs import InlineRef

KINDS = ("nodes", "actors", "tasks", "workers", "logs", "objects", "placement_groups", "requests")


class Listing:
    """Answers for `Engine.state`.

    Args:
        node_id: this process's, as it stands for the machine.
        places: the machine and its groups.
        actors: the living and the ended.
        caller: what runs now.
        large: values of a size that elsewhere lies in shared memory.
        labels: this machine's.
    """

    def __init__(
        self,
        node_id: str,
        places: Places,
        actors: Actors,
        caller: Caller,
        large: Iterable[InlineRef],
        labels: Mapping[str, str],
    ) -> None:
        self._labels = labels
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
            case "workers":
                return [self._worker()]
            case "requests" | "logs":
                return []  # nothing waits, and what is printed goes where the program prints
        raise ConfigError(f"state({kind!r}); there are {', '.join(KINDS)}")

    def _worker(self) -> dict[str, Any]:
        return {
            "worker_id": f"{os.getpid():016x}",
            "name": "driver",
            "worker_type": "DRIVER",
            "pid": os.getpid(),
            "is_alive": True,
            "node_id": self._node_id,
            "ip": "127.0.0.1",
        }

    def _node(self) -> dict[str, Any]:
        return {
            "node_id": self._node_id,
            "alive": True,
            "hostname": socket.gethostname(),
            "address": "127.0.0.1",
            "pid": os.getpid(),
            "labels": {**self._labels, "ray.io/node-id": self._node_id},
            "resources": dict(self._places.totals),
            "available": self._places.available(),
            "object_store": None,
        }


def _task(frame: Frame) -> dict[str, Any]:
    return {
        "task_id": None if frame.number is None else f"{frame.number:016x}",
        "worker_id": f"{os.getpid():016x}",
        "name": frame.name,
        "state": "RUNNING",
        "pid": os.getpid(),
        "resources": dict(frame.placement.resources),
        "owner_pid": os.getpid(),
    }


def _object(ref: InlineRef) -> dict[str, Any]:
    return {"object_id": f"{ref.id:016x}", "size_bytes": ref.packed.size_bytes, "pids": [os.getpid()]}
