"""Results that come one by one from a Ray worker."""

from __future__ import annotations

from typing import Any, Literal

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


def ray_num_returns(num_returns: int) -> int | Literal["streaming", "dynamic"]:
    """Ray's word for `num_returns`."""
    if num_returns == DYNAMIC:
        return "dynamic"
    return "streaming" if num_returns == STREAMING else num_returns


def handed_out(started: Any) -> list[ObjectRef[Any]]:
    """What Ray returned for a call, as `Engine.submit` and `Engine.call` return it."""
    if isinstance(started, ray.ObjectRefGenerator):
        return [RayStream(started)]  # type: ignore[list-item]
    if started is None:
        return []
    return [RayRef(ref) for ref in (started if isinstance(started, list) else [started])]
