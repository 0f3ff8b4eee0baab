"""Values, references and streams on their way through Ray."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

import ray

from trainkit.runtime.ray import errors
from trainkit.runtime.serialize import Packed, attached, claim, deregister, pack, register, unpack
from trainkit.runtime.session import engine, put_again
from trainkit.runtime.specs import DYNAMIC, STREAMING, ObjectRef
from trainkit.runtime.streams import Callbacks, DynamicObjectRefGenerator, ObjectRefGenerator


class Parcel:
    """A packed value in the form that Ray carries.

    Args:
        payload: the pickle.
        buffers: what it refers to out of band.
        handles: Ray's references and actor handles in the value.
    """

    __slots__ = ("buffers", "handles", "payload")

    def __init__(self, payload: bytes, buffers: Sequence[Any], handles: Sequence[Any]) -> None:
        self.payload = payload
        self.buffers = buffers
        self.handles = handles

    def __reduce__(self) -> Any:
        return Parcel, (self.payload, [pickle.PickleBuffer(b) for b in self.buffers], self.handles)


def wrap(packed: Packed) -> Parcel:
    """`packed` for Ray."""
    return Parcel(bytes(packed.payload), list(packed.buffers), list(packed.handles))


def unwrap(parcel: Parcel) -> Packed:
    """The opposite of `wrap`."""
    return Packed(parcel.payload, parcel.buffers, parcel.handles)


def seal(value: Any, what: str = "value") -> Parcel:
    """Pack `value` for Ray; raises SerializationError, naming the part that can't be pickled."""
    return wrap(pack(value, what))


def unseal(value: Any) -> Any:
    """The value in a parcel; what is no parcel was put there by other programs, and is itself."""
    if isinstance(value, ray.DynamicObjectRefGenerator):
        return DynamicObjectRefGenerator(map(RayRef, value))
    return unpack(unwrap(value)) if isinstance(value, Parcel) else value


class RayRef(ObjectRef[Any]):
    """A reference of Ray's.

    Attributes:
        ref: Ray's own.
        session: which of this process's sessions it was made or unpacked in.
    """

    __slots__ = ("ref", "session")

    def __init__(self, ref: Any) -> None:
        self.ref = ref
        self.id = int.from_bytes(ref.binary(), "big")
        self.session = session

    def hex(self) -> str:
        return f"{self.id:0{2 * ray.ObjectRef.size()}x}"

    def __reduce__(self) -> Any:
        return put_again, (engine().get([self], None)[0],)  # by hand, so with its value

    def future(self, into: Future[Any] | None = None) -> Future[Any]:
        ours: Future[Any] = into or Future()
        if into is None:
            ours.set_running_or_notify_cancel()

        def settle(theirs: Future[Any]) -> None:
            try:
                ours.set_result(unseal(theirs.result()))
            except BaseException as error:
                ours.set_exception(errors.translate(error))

        # Callbacks of ours may wait for other references, whose answers Ray's thread has to read meanwhile.
        _callbacks.expect()
        self.ref.future().add_done_callback(lambda theirs: _callbacks.put(lambda: settle(theirs)))
        return ours


_callbacks = Callbacks()


class RayActor:
    """An actor of Ray's behind a handle; it ends when Ray sees its last handle gone.

    Attributes:
        handle: Ray's own.
        name: what stands for the actor in errors and logs.
    """

    __slots__ = ("handle", "name")

    def __init__(self, handle: Any, name: str) -> None:
        self.handle = handle
        self.name = name

    @property
    def actor_id(self) -> str:
        """The actor's id, in hexadecimal."""
        return str(self.handle._actor_id.hex())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayActor) and self.handle._actor_id == other.handle._actor_id

    def __hash__(self) -> int:
        return hash(self.handle._actor_id)

    def __reduce__(self) -> Any:
        return RayActor, (self.handle, self.name)


session = 0
"""Counts the sessions of this process: a reference of an ended one must not be looked for in the next."""


def next_session() -> int:
    """Begin another session in this process."""
    global session
    session += 1
    return session


def _claim_ref(index: int) -> RayRef:
    return RayRef(claim(index))


def _claim_actor(index: int, name: str) -> RayActor:
    return RayActor(claim(index), name)


def attach_rays_own(kept: bool = True) -> None:
    """Have Ray learn who else refers to what a user's value holds of Ray itself, such as a Ray Dataset.

    Args:
        kept: False once the session is over: another engine's values are pickled as Ray does it.
    """
    for kind in (ray.ObjectRef, ray.actor.ActorHandle):
        if kept:
            register(kind, attached)
        else:
            deregister(kind)


attach_rays_own()  # a worker packs results before it has an engine
register(RayRef, lambda pickler, ref: (_claim_ref, (pickler.attach(cast("Any", ref.ref)),)))
register(
    RayActor, lambda pickler, actor: (_claim_actor, (pickler.attach(cast("Any", actor.handle)), actor.name))
)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands in a call's arguments for the value of its reference number `index`."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Call for a worker, without the values of the references among its arguments.

    Attributes:
        where: what runs, for errors.
        arguments: positional and keyword arguments, references among them replaced by slots.
        num_returns: of the call, or STREAMING.
        method: of the actor; "" for a task.
        folder: to run in; None stays where the process is.
        retries: of a method: the exceptions that the call is made again for; None for none.
    """

    where: str
    arguments: Parcel
    num_returns: int
    method: str = ""
    folder: str | None = None
    retries: Parcel | None = None

    def resolved(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, with the values of their references in their places."""
        args, kwargs = unseal(self.arguments)

        def fill(item: Any) -> Any:
            return unseal(values[item.index]) if type(item) is _Slot else item

        return tuple(fill(item) for item in args), {key: fill(item) for key, item in kwargs.items()}


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> tuple[Parcel, list[Any]]:
    """The arguments with slots for the references among them, and those references, for Ray to resolve."""
    refs: list[Any] = []

    def cut(item: Any) -> Any:
        if isinstance(item, RayRef):
            refs.append(item.ref)
            return _Slot(len(refs) - 1)
        return item

    cut_args = tuple(cut(item) for item in args)
    cut_kwargs = {key: cut(item) for key, item in kwargs.items()}
    return seal((cut_args, cut_kwargs), f"the arguments of {where}"), refs


class _Upcoming(RayRef):
    """Ray's generator in the place of a reference: to `ray.wait` it is done while its next value is there."""

    __slots__ = ()

    def __init__(self, generator: Any) -> None:
        super().__init__(generator.completed())
        self.ref = generator


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

    def upcoming(self) -> ObjectRef[Any]:
        return _Upcoming(self.generator)

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
    """Return Ray's references of a call in the form of `Engine.submit` and `Engine.call`."""
    if isinstance(started, ray.ObjectRefGenerator):
        return [RayStream(started)]  # type: ignore[list-item]
    if started is None:
        return []
    return [RayRef(ref) for ref in (started if isinstance(started, list) else [started])]
