"""Actors' types and `exit_actor`, where Ray's scripts look for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

from trainkit.runtime.api import exit_actor, get_actor, method
from trainkit.runtime.remote import ActorClass, ActorMethod
from trainkit.runtime.remote import ActorHandle as _Handle

__all__ = ["ActorClass", "ActorHandle", "ActorMethod", "ActorProxy", "exit_actor", "get_actor", "method"]

T = TypeVar("T")

if TYPE_CHECKING:
    # To a checker, a handle is what its class's marked methods make of it; see `trainkit.runtime.typed`.
    ActorHandle = Annotated[T, _Handle]
    ActorProxy = Annotated[T, _Handle]
else:
    ActorHandle = ActorProxy = _Handle
