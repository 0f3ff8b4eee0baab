"""Pools with the names and arguments of Ray's `ray.util.multiprocessing` and `ray.util.joblib`."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import TimeoutError as TimeoutError
from typing import Any

from trainkit.plugins import pools
from trainkit.plugins.pools.pool import AsyncResult as AsyncResult
from trainkit.plugins.pools.pool import Pool as _Pool
from trainkit.runtime.api import init


class Pool(_Pool):
    """Pool of workers that takes the arguments of Ray's pool.

    Args:
        processes, initializer, initargs, maxtasksperchild, context: see `trainkit.plugins.pools.Pool`.
        ray_address: address that is passed to `trainkit.init` if no session is running.
        ray_remote_args: options for each call of the pool, such as {"num_gpus": 1}.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        maxtasksperchild: int | None = None,
        context: object = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        if ray_address is not None:
            init(address=ray_address, ignore_reinit_error=True)
        super().__init__(
            processes, initializer, initargs, maxtasksperchild, context, **(ray_remote_args or {})
        )


def register_ray() -> None:
    """Register joblib's backend under Ray's name: `with joblib.parallel_backend("ray"): ...`."""
    pools.register_trainkit("ray")
