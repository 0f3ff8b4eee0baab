"""What tests of actors that are made anew do again and again."""

from __future__ import annotations

import os
import signal
from typing import Any

import trainkit
from tests.runtime.local.restartable import Restartable
from trainkit.errors import ActorDiedError


def restartable(*args: Any, max_restarts: int = -1, **options: Any) -> Any:
    return trainkit.remote(max_restarts=max_restarts, **options)(Restartable).remote(*args)


def pid_of(actor: Any) -> int:
    return int(trainkit.get(actor.pid.remote(), timeout=60))


def kill(actor: Any) -> int:
    """Kill an actor's process, which may be given by its pid; returns the pid."""
    pid = actor if isinstance(actor, int) else pid_of(actor)
    os.kill(pid, signal.SIGKILL)
    return pid


def assert_born_again(actor: Any) -> None:
    """Kill the process of an actor, and wait for the next one."""
    old = kill(actor)
    assert stable_pid_after(actor, old) != old


def stable_pid_after(actor: Any, old: int) -> int:
    """The pid of the process that was made in place of `old`, which may not be dead yet."""
    while True:
        try:
            pid = pid_of(actor)
        except ActorDiedError as error:
            assert "being restarted" in str(error)
            continue
        if pid != old:
            return pid
