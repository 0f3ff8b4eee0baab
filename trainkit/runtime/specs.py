"""Frozen values that cross the boundary between the verbs and an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ObjectRef(Generic[T]):
    """A value that is, or will be, somewhere: give it to `get`, `wait`, or as an argument to a call.

    Two references are equal when they stand for the same value, wherever they were unpickled.

    Attributes:
        id: unique among all references of a session.
    """

    __slots__ = ("__weakref__", "id")

    id: int

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ObjectRef) and self.id == other.id)

    def __hash__(self) -> int:
        return self.id

    def __copy__(self) -> ObjectRef[T]:
        return self

    def __deepcopy__(self, memo: object) -> ObjectRef[T]:
        return self

    def __repr__(self) -> str:
        return f"ObjectRef({self.id:016x})"

    def __iter__(self) -> Any:
        raise TypeError("an ObjectRef is not its value yet: use trainkit.get(ref)")


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementGroupId:
    """Names a reserved list of bundles and one of them; index None means any that fits."""

    group: int
    bundle: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """What a process needs before it may start.

    Attributes:
        resources: amounts by canonical name, see `trainkit.resources.normalize`.
        group: the reserved bundle to take them from; None takes them from the machine.
        env: variables added to the driver's before user code runs.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    group: PlacementGroupId | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """One call of a function in another process.

    Attributes:
        max_retries: how often the call is run again when its process dies (never when it raises).
    """

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    num_returns: int
    placement: Placement
    max_retries: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorSpec:
    """One object in a process of its own."""

    cls: type
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    placement: Placement
