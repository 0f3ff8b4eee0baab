"""Ids by Ray's class names: hexadecimal digits that say what they are of."""

from __future__ import annotations

import os
from typing import Self

_BYTES = 8


class BaseID:
    """Id of one thing of a session. Two ids of one class are equal when their digits are.

    Args:
        data: the id as bytes.
    """

    __slots__ = ("_digits",)

    def __init__(self, data: bytes) -> None:
        self._digits = data.hex()

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Make the id of hexadecimal `digits`."""
        return cls(bytes.fromhex(digits))

    @classmethod
    def from_binary(cls, data: bytes) -> Self:
        """Make the id of `data`."""
        return cls(data)

    @classmethod
    def from_random(cls) -> Self:
        """Make an id that nothing has."""
        return cls(os.urandom(_BYTES))

    @classmethod
    def nil(cls) -> Self:
        """Make the id that stands for nothing."""
        return cls(b"\xff" * _BYTES)

    def hex(self) -> str:
        """Return the id as hexadecimal digits."""
        return self._digits

    def binary(self) -> bytes:
        """Return the id as bytes."""
        return bytes.fromhex(self._digits)

    def is_nil(self) -> bool:
        """Return whether this stands for nothing."""
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
    """Id of an actor, the same however often its process is made anew."""

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


class PlacementGroupID(int):
    """Id of a placement group; a number, as engines know groups by theirs."""

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Make the id of hexadecimal `digits`."""
        return cls(int(digits, 16))

    def hex(self) -> str:
        """Return the id as hexadecimal digits, as listings of groups show it."""
        return f"{self:016x}"

    def binary(self) -> bytes:
        """Return the id as bytes."""
        digits = self.hex()
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))

    def is_nil(self) -> bool:
        """Return False: a group that there is has an id."""
        return False

    def __repr__(self) -> str:
        return f"PlacementGroupID({self.hex()})"

    def __str__(self) -> str:
        return repr(self)
