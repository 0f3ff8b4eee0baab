"""Results that come one by one from a Ray worker."""

from __future__ import annotations

import warnings
from typing import Any

import ray

from trainkit.runtime.ray_values import RayRef
from trainkit.runtime.specs import DYNAMIC, STREAMING, ObjectRef
from trainkit.runtime.streams import ObjectRefGenerator


class RayStream(ObjectRefGenerator[Any]):
    """Ray's generator of references, handing out ours.

    Attributes:
        generator: Ray's own.
    """

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __next__(self) -> ObjectRef[Any]:
        return RayRef(next(self.generator))

    async def __anext__(self) -> ObjectRef[Any]:
        return RayRef(await anext(self.generator))

    def completed(self) -> ObjectRef[None]:
        return RayRef(self.generator.completed())

    def hex(self) -> str:
        return str(self.generator.completed().hex())


def with_options(body: Any, num_returns: int, options: dict[str, Any]) -> Any:
    """Return Ray's function or method with `num_returns` in Ray's words, and other options of Ray's."""
    if num_returns != DYNAMIC:
        return body.options(num_returns="streaming" if num_returns == STREAMING else num_returns, **options)
    with warnings.catch_warnings():
        # Ray calls it deprecated; here it goes on working, so there is nothing to tell the user.
        warnings.filterwarnings("ignore", "num_returns='dynamic'")
        return body.options(num_returns="dynamic", **options)


def handed_out(started: Any) -> list[ObjectRef[Any]]:
    """What Ray returned for a call, as `Engine.submit` and `Engine.call` return it."""
    if isinstance(started, ray.ObjectRefGenerator):
        return [RayStream(started)]  # type: ignore[list-item]
    if started is None:
        return []
    return [RayRef(ref) for ref in (started if isinstance(started, list) else [started])]
