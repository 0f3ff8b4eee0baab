"""An actor that counts and limits its process's descriptors.

In a module of its own, so that its workers import little.
"""

from __future__ import annotations

import itertools
import os
import resource
import time
from pathlib import Path
from typing import Any

import trainkit


def limit_for(pid: int, spare: int) -> int:
    """The limit by which a process may open `spare` descriptors more; each is the lowest free number."""
    folder = Path(f"/proc/{pid}/fd")
    taken = {int(fd) for fd in os.listdir(folder) if (folder / fd).is_symlink()}  # not that of the listing
    return next(itertools.islice((fd for fd in itertools.count() if fd not in taken), spare, None))


class Crowded:
    def __init__(self, *kept: Any) -> None:
        self.kept = kept

    def pid(self) -> int:
        return os.getpid()

    def same(self, value: Any) -> Any:
        return value

    def set(self, *actors: Any) -> Any:
        self.kept = (*self.kept, *actors)
        return trainkit.get(self.kept[0].set.remote())

    def first(self, values: Any) -> Any:
        return trainkit.get(values[0])

    def take(self, values: Any) -> int:
        return len(values)

    def occupy(self, began: str, until: str) -> None:
        """Be busy, and wait for nothing of trainkit's, until there is a file `until`."""
        Path(began).touch()
        while not Path(until).exists():
            time.sleep(0.005)

    def allow(self, spare: int) -> None:
        """Let this process open as many descriptors more as said, and no others."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(os.getpid(), spare), hard))

    def allow_all(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def ask(self, name: str) -> Any:
        """Call the actor of that name."""
        return trainkit.get(trainkit.get_actor(name).same.remote(1), timeout=60)

    def call(self, actors: list[Any]) -> Any:
        return trainkit.get(actors[0].same.remote(1), timeout=60)

    def give(self, what: str) -> list[Any]:
        if what == "handle":
            return [trainkit.remote(Crowded).remote() for _ in range(2)]
        return [trainkit.put(bytes(1 << 20)) for _ in range(2)]

    def run_task(self, cpus: int) -> int:
        """Return the pid of a task's process."""
        return int(trainkit.get(trainkit.remote(num_cpus=cpus)(os.getpid).remote(), timeout=60))


def occupy(began: str, until: str, dies: bool = False) -> None:
    Crowded().occupy(began, until)
    if dies:
        os._exit(7)


def exhaust() -> int:
    """Leave this process no descriptor."""
    Crowded().allow(0)
    return os.getpid()
