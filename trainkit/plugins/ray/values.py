"""Values, references and streams in the form that Ray transfers."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, cast

import ray

from trainkit.plugins.ray import errors
from trainkit.runtime.calls.futures import Callbacks
from trainkit.runtime.refs import DynamicObjectRefGenerator, ObjectRef, ObjectRefGenerator
from trainkit.runtime.serialize import Packed, attached, claim, deregister, pack, register, unpack
from trainkit.runtime.session import engine, put_again
from trainkit.runtime.specs import DYNAMIC, STREAMING


class Parcel:
    """Packed value that Ray can transfer.

    Args:
        payload: the pickle.
        buffers: out-of-band buffers of the pickle.
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
    """Return `packed` as a parcel for Ray."""
    return Parcel(bytes(packed.payload), list(packed.buffers), list(packed.handles))


def unwrap(parcel: Parcel) -> Packed:
    """Return the packed value of a parcel."""
    return Packed(parcel.payload, parcel.buffers, parcel.handles)


def seal(value: Any, what: str = "value") -> Parcel:
    """Pack `value` for Ray; raise SerializationError that names the part that can't be pickled."""
    return wrap(pack(value, what))


def unseal(value: Any) -> Any:
    """Return the value in a parcel.

    A value that is not in a parcel comes from another program, and is returned unchanged.
    """
    if isinstance(value, ray.DynamicObjectRefGenerator):
        return DynamicObjectRefGenerator(map(RayRef, value))
    return unpack(unwrap(value)) if isinstance(value, Parcel) else value


class RayRef(ObjectRef[Any]):
    """Reference of Ray.

    Attributes:
        ref: Ray's own reference.
        session: number of this process's session in which the reference was made or unpacked.
    """

    __slots__ = ("ref", "session")

    def __init__(self, ref: Any) -> None:
        self.ref = ref
        self.id = int.from_bytes(ref.binary(), "big")
        self.session = session

    def hex(self) -> str:
        return f"{self.id:0{2 * ray.ObjectRef.size()}x}"

    def __reduce__(self) -> Any:
        # a pickle that the user makes must contain the value
        return put_again, (engine().get([self], None)[0],)

    def future(self, into: Future[Any] | None = None) -> Future[Any]:
        ours: Future[Any] = into or Future()
        if into is None:
            ours.set_running_or_notify_cancel()

        def settle(theirs: Future[Any]) -> None:
            try:
                ours.set_result(unseal(theirs.result()))
            except BaseException as error:
                ours.set_exception(errors.translate(error))

        # A separate thread runs the callbacks, because they may wait for other references, and Ray's thread
        # must stay free to read the answers.
        _callbacks.expect()
        self.ref.future().add_done_callback(lambda theirs: _callbacks.put(lambda: settle(theirs)))
        return ours


_callbacks = Callbacks()


class RayActor:
    """Actor of Ray behind a handle. The actor ends when Ray notices that its last handle is gone.

    Attributes:
        handle: Ray's own handle.
        name: name of the actor in errors and logs.
    """

    __slots__ = ("handle", "name")

    def __init__(self, handle: Any, name: str) -> None:
        self.handle = handle
        self.name = name

    @property
    def actor_id(self) -> str:
        """Id of the actor in hexadecimal digits."""
        return str(self.handle._actor_id.hex())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RayActor) and self.handle._actor_id == other.handle._actor_id

    def __hash__(self) -> int:
        return hash(self.handle._actor_id)

    def __reduce__(self) -> Any:
        return RayActor, (self.handle, self.name)


session = 0
"""Number of the current session of this process.

A reference that has a different number belongs to an earlier session, and must not be looked up.
"""


def next_session() -> int:
    """Begin a new session in this process, and return its number."""
    global session
    session += 1
    return session


def _claim_ref(index: int) -> RayRef:
    return RayRef(claim(index))


def _claim_actor(index: int, name: str) -> RayActor:
    return RayActor(claim(index), name)


def attach_rays_own(kept: bool = True) -> None:
    """Register reducers for Ray's own references and actor handles, so that Ray tracks them inside user
    values, such as a Ray Dataset.

    Args:
        kept: False to remove the reducers after the session, so that values of other engines
            are pickled in Ray's way.
    """
    for kind in (ray.ObjectRef, ray.actor.ActorHandle):
        if kept:
            register(kind, attached)
        else:
            deregister(kind)


attach_rays_own()  # a worker packs results before it has an engine that would register the reducers
register(RayRef, lambda pickler, ref: (_claim_ref, (pickler.attach(cast("Any", ref.ref)),)))
register(
    RayActor, lambda pickler, actor: (_claim_actor, (pickler.attach(cast("Any", actor.handle)), actor.name))
)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Placeholder in a call's arguments for the value of reference number `index`."""

    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Call for a worker, with placeholders for references, whose values Ray supplies.

    Attributes:
        where: name of the called code, for error messages.
        arguments: packed positional and keyword arguments, with placeholders for references.
        num_returns: number of results, or STREAMING.
        method: name of the actor's method; "" for a task.
        folder: folder to run in; None keeps the current folder of the process.
        retries: exceptions after which a method call is retried; None for no retries.
    """

    where: str
    arguments: Parcel
    num_returns: int
    method: str = ""
    folder: str | None = None
    retries: Parcel | None = None

    def resolved(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments, with each reference replaced by its value from `values`."""
        args, kwargs = unseal(self.arguments)

        def fill(item: Any) -> Any:
            return unseal(values[item.index]) if type(item) is _Slot else item

        return tuple(fill(item) for item in args), {key: fill(item) for key, item in kwargs.items()}


def split_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], where: str) -> tuple[Parcel, list[Any]]:
    """Return the packed arguments with placeholders for references, and a list of these
    references for Ray to resolve.
    """
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
    """Ray's generator in the role of a reference, which `ray.wait` reports as done
    while the next value exists.
    """

    __slots__ = ()

    def __init__(self, generator: Any) -> None:
        super().__init__(generator.completed())
        self.ref = generator


class RayStream(ObjectRefGenerator[Any]):
    """Wrapper of Ray's generator that yields trainkit's references.

    Attributes:
        generator: Ray's own generator.
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
    """Return Ray's function or method with `num_returns` in Ray's spelling, and with the other `options`."""
    if num_returns != DYNAMIC:
        return body.options(num_returns="streaming" if num_returns == STREAMING else num_returns, **options)
    with warnings.catch_warnings():
        # Ray's warning that "dynamic" is deprecated is hidden, because "dynamic" still works, so the user
        # needs no warning.
        warnings.filterwarnings("ignore", "num_returns='dynamic'")
        return body.options(num_returns="dynamic", **options)


def handed_out(started: Any) -> list[ObjectRef[Any]]:
    """Return the result of Ray's `remote` as the list of references that `Engine.submit` returns."""
    if isinstance(started, ray.ObjectRefGenerator):
        return [RayStream(started)]  # type: ignore[list-item]
    if started is None:
        return []
    return [RayRef(ref) for ref in (started if isinstance(started, list) else [started])]
