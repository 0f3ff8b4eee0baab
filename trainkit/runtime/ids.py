"""Ids of actors, tasks, programs, machines and processes of a session."""

from __future__ import annotations

import os
from typing import Self

_BYTES = 8


class BaseID:
    """Base of the ids of a session. Ids of the same class with the same digits are equal.

    Args:
        data: the id as bytes.
    """

    __slots__ = ("_digits",)

    def __init__(self, data: bytes) -> None:
        self._digits = data.hex()

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Return the id with hexadecimal `digits`."""
        return cls(bytes.fromhex(digits))

    @classmethod
    def from_binary(cls, data: bytes) -> Self:
        """Return the id with the bytes `data`."""
        return cls(data)

    @classmethod
    def from_random(cls) -> Self:
        """Return a new random id."""
        return cls(os.urandom(_BYTES))

    @classmethod
    def nil(cls) -> Self:
        """Return the empty id, which refers to nothing."""
        return cls(b"\xff" * _BYTES)

    def hex(self) -> str:
        """Return the id as hexadecimal digits."""
        return self._digits

    def binary(self) -> bytes:
        """Return the id as bytes."""
        return bytes.fromhex(self._digits)

    def is_nil(self) -> bool:
        """Return True if the id is the empty id, which refers to nothing."""
        return not self._digits.strip("f")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.hex() == self.hex()

    def __hash__(self) -> int:
        return hash(self._digits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._digits})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self.binary(),)


class ActorID(BaseID):
    """Id of an actor, which stays the same when the actor is restarted."""

    __slots__ = ()


class TaskID(BaseID):
    """Id of one call of a function or method."""

    __slots__ = ()


class JobID(BaseID):
    """Id of a program that started a session."""

    __slots__ = ()


class NodeID(BaseID):
    """Id of a machine."""

    __slots__ = ()


class WorkerID(BaseID):
    """Id of a process."""

    __slots__ = ()
