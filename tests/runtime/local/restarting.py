"""What tests of actors that are made anew do again and again."""

from __future__ import annotations

import os
import signal
from typing import Any

import psutil

import trainkit
from tests.runtime.local.restartable import Restartable
from trainkit.errors import ActorDiedError


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def restartable(*args: Any, max_restarts: int = -1, **options: Any) -> Any:
    return trainkit.remote(max_restarts=max_restarts, **options)(Restartable).remote(*args)


def pid_of(actor: Any) -> int:
    return int(trainkit.get(actor.pid.remote(), timeout=60))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


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
