"""Results that come one by one from a Ray worker."""

from __future__ import annotations

from typing import Any

from trainkit.runtime.ray_values import RayRef
from trainkit.runtime.specs import ObjectRef
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
