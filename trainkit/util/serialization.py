"""Serializers of classes, by the names of `ray.util.serialization`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainkit.runtime import serialize

_own: set[type] = set()


def register_serializer(
    cls: type, *, serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]
) -> None:
    """Send instances of exactly `cls` by functions of the user's; holds for this process.

    Args:
        cls: the class.
        serializer: makes a value that can be pickled of an instance.
        deserializer: makes an instance of that value. It travels with each of them.
    """
    serialize.register(cls, lambda _, instance: (deserializer, (serializer(instance),)))
    _own.add(cls)


def deregister_serializer(cls: type) -> None:
    """Send instances of `cls` by pickle again; without effect if nothing was registered for it."""
    if cls in _own:
        _own.discard(cls)
        serialize.deregister(cls)
