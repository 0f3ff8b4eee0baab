"""Frozen values that cross the boundary between the public functions and an engine."""

from __future__ import annotations

import inspect
import os
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future


_ENDLESS = 1 << 30


class Arity(NamedTuple):
    """The arguments that a function takes.

    Attributes:
        least: how many arguments by place suffice alone.
        most: how many may be given by place. A function that needs an argument by name has none between
            `least` and `most`.
        places: the names of the arguments by place, in order.
        required: so many of `places` have no default.
        nameless: so many of `places` can only be given by place.
        names: the names of the arguments that can only be given by name.
        required_names: those of `names` that have no default.
        any_name: arguments of any other name are taken.
    """

    least: int
    most: int
    places: tuple[str, ...] = ()
    required: int = 0
    nameless: int = 0
    names: tuple[str, ...] = ()
    required_names: tuple[str, ...] = ()
    any_name: bool = False

    def require(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise TypeError, as a direct call would, if the arguments don't fit.

        Args:
            function: its name.
            args: the arguments by place.
            kwargs: the arguments by name.
        """
        given = len(args)
        endless = self.most == _ENDLESS
        if given > len(self.places) and not endless:
            raise TypeError(f"{function}(): too many positional arguments")
        by_name = self.places[self.nameless :]
        twice = [name for name in self.places[self.nameless : given] if name in kwargs]
        if twice:
            raise TypeError(f"{function}(): multiple values for argument {twice[0]!r}")
        for index, name in enumerate(self.places[given : self.required], given):
            if index < self.nameless or name not in kwargs:
                raise TypeError(f"{function}(): missing a required argument: {name!r}")
        for name in self.required_names:
            if name not in kwargs:
                raise TypeError(f"{function}(): missing a required argument: {name!r}")
        if not self.any_name:
            for name in kwargs:
                if name not in by_name and name not in self.names:
                    raise TypeError(f"{function}(): got an unexpected keyword argument {name!r}")


ANY = Arity(0, _ENDLESS, any_name=True)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def arity_of(function: Callable[..., Any], *, bound: bool = False) -> Arity:
    """Return the arguments that `function` takes; ANY if it doesn't tell.

    Args:
        function: what will be called. A decorator's own signature counts, not that of what it wraps.
        bound: its first argument is the object it is a method of.
    """
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # written in C, without a signature
        return ANY
    kinds = {item.kind for item in parameters}
    places = [item for item in parameters if item.kind in _BY_PLACE][int(bound) :]
    named = [item for item in parameters if item.kind is item.KEYWORD_ONLY]
    required = sum(item.default is item.empty for item in places)
    required_names = tuple(item.name for item in named if item.default is item.empty)
    most = _ENDLESS if inspect.Parameter.VAR_POSITIONAL in kinds else len(places)
    return Arity(
        least=_ENDLESS + 1 if required_names else required,
        most=most,
        places=tuple(item.name for item in places),
        required=required,
        nameless=sum(item.kind is item.POSITIONAL_ONLY for item in places),
        names=tuple(item.name for item in named),
        required_names=required_names,
        any_name=inspect.Parameter.VAR_KEYWORD in kinds,
    )


T_co = TypeVar("T_co", covariant=True)


class Uncopied:
    """Base of an object that stands for something elsewhere: a copy of it is the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class ObjectRef(Uncopied, Generic[T_co]):
    """A value that is, or will be, somewhere: give it to `get`, `wait`, or as an argument to a call.

    Two references are equal when they stand for the same value, whatever process they were sent to. One that
    is pickled by hand, into a file, say, is waited for and takes its value along: what is unpickled refers to
    a copy of it, also in another session.

    Attributes:
        id: unique among all references of a session.
    """

    __slots__ = ("__weakref__", "id")

    id: int

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ObjectRef) and self.id == other.id)

    def __hash__(self) -> int:
        return self.id

    def hex(self) -> str:
        """Its id as text."""
        return f"{self.id:016x}"

    def binary(self) -> bytes:
        """Its id as bytes."""
        return bytes.fromhex(self.hex())

    def size(self) -> int:
        """Return the length of the id in bytes."""
        return len(self.binary())

    def is_nil(self) -> bool:
        """Return False: it stands for a value."""
        return False

    def __repr__(self) -> str:
        return f"ObjectRef({self.id:016x})"

    def __iter__(self) -> Any:
        raise TypeError("an ObjectRef is not its value yet: use trainkit.get(ref)")

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for the value on an event loop, as in `await ref`; raises what `get` would."""
        return self.as_future().__await__()

    @abstractmethod
    def future(self, into: Future[Any] | None = None) -> Future[T_co]:
        """Return a future of the value; what `get` would raise is its exception.

        Args:
            into: a future that runs, to be settled in place of a new one. Its callbacks must not wait.
        """

    def as_future(self) -> asyncio.Future[T_co]:
        """Return the same future for the event loop that runs, as `await` uses it."""
        import asyncio  # an import of a tenth of a second, for those who have an event loop anyway

        return asyncio.wrap_future(self.future())


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementGroupId:
    """Names a reserved list of bundles and one of them; index None means any that fits.

    Attributes:
        capture: what is started there starts its own tasks and actors there too, unless told otherwise.
    """

    group: int
    bundle: int | None = None
    capture: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Requirements of a process before it may start.

    Attributes:
        resources: amounts by canonical name, see `trainkit.resources.normalize`; "memory" in bytes.
        group: the reserved bundle to take them from; None takes them from the machine.
        env: variables added to the driver's before user code runs.
        cwd: the folder that it runs in; None is that of who asks for it.
        outside: also if who asks is in a group that captures what it starts.
        spread: rather on a node where little runs; without effect on one machine.
        labels: conditions on those of the node, see `labels.Condition`.
        soft_labels: conditions that are rather met than not.
    """

    resources: Mapping[str, float] = field(default_factory=dict)
    group: PlacementGroupId | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    outside: bool = False
    spread: bool = False
    labels: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    soft_labels: tuple[tuple[str, str, tuple[str, ...]], ...] = ()


STREAMING = -1
"""In place of a number of results: they come one by one, and are handed out by a generator."""

DYNAMIC = -2
"""In place of a number of results: one, a generator of references to what the function yielded."""


@dataclass(slots=True)
class TaskSpec:
    """One call of a function in another process; nobody changes it.

    Each call makes one. That takes less time than a named tuple or a frozen dataclass.

    Attributes:
        num_returns: how many references it returns, or STREAMING, or DYNAMIC.
        max_retries: how often the call is run again when its process dies; -1 without end.
        retry_exceptions: also when it raises: any exception, or one of these.
        max_calls: its worker ends after so many runs of the function; 0 never.
    """

    function: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    num_returns: int
    placement: Placement
    max_retries: int
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    max_calls: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSpec:
    """How an actor's method is called.

    Attributes:
        num_returns: how many references a call returns, or STREAMING, or DYNAMIC.
        concurrency_group: the group of methods it runs in; None for the rest's.
        max_task_retries: how often a call that the actor's death interrupted, or that raised what
            `retry_exceptions` names, is made again; -1 without end; None as often as the actor's option says.
        retry_exceptions: also when it raises: any exception, or one of these.
        is_plain: it says nothing of all that, and a call returns one reference.
        name: of a call, for the call itself and in Ray's listings; None for "Class.method".
        arity: the arguments that it takes.
    """

    num_returns: int = 1
    concurrency_group: str | None = None
    max_task_retries: int | None = None
    retry_exceptions: bool | tuple[type[BaseException], ...] = False
    name: str | None = None
    arity: Arity = ANY
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        said = (self.concurrency_group, self.max_task_retries, self.retry_exceptions or None, self.name)
        object.__setattr__(self, "is_plain", self.num_returns == 1 and said == (None, None, None, None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """Methods and name of an actor, as its handles know them.

    Attributes:
        name: of the class, or what stands for it in errors and logs.
        methods: by name.
        is_async: the class has `async def` methods.
    """

    name: str
    methods: Mapping[str, MethodSpec]
    is_async: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """How an actor is found by others, and whether it outlives who made it.

    Attributes:
        namespace: None for the session's.
    """

    name: str
    namespace: str | None
    detached: bool
    get_if_exists: bool


def taken_message(name: str, namespace: str, holder: str) -> str:
    """Return the message for a request for a name that `holder` has."""
    return (
        f"the name {name!r} is taken in the namespace {namespace!r} by {holder}; choose another name or "
        "namespace, end that actor with trainkit.kill(trainkit.get_actor(...)), or pass get_if_exists=True "
        "to get its handle"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Concurrency:
    """How many calls of an actor run at once.

    Attributes:
        max_concurrency: of methods in no group; None is 1, or 1,000 for a class with `async def` methods.
        groups: names of groups of methods, and how many calls of each.
    """

    max_concurrency: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_order(self) -> bool:
        """True if the calls of each caller begin in the order made, unless methods are `async`."""
        return (self.max_concurrency or 1) == 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorSpec:
    """One object in a process of its own.

    Attributes:
        max_restarts: how often it is made anew when its process dies; -1 without end.
        max_task_retries: how often a call that its death interrupted is made again; -1 without end.
        registration: None for an actor that only its handles reach.
    """

    cls: type
    interface: Interface
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    placement: Placement
    max_restarts: int = 0
    max_task_retries: int = 0
    concurrency: Concurrency = field(default_factory=Concurrency)
    registration: Registration | None = None

    @property
    def name(self) -> str:
        """Return its name for errors and logs."""
        return self.interface.name


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSpec:
    """Settings of a session at its start.

    Attributes:
        totals: all resources, "memory" in bytes.
        namespace: of its named actors.
        labels: of this machine.
        log_to_driver: show what workers print.
        preload: modules that workers are forked with.
        environment: variables for all its workers, besides the driver's.
        working_dir: the folder that workers run in; None is the driver's.
        object_store_bytes: what large objects may take together; None is three tenths of the memory.
        object_spilling_directory: where those go that find no room; None is a folder on disk, False nowhere.
        address: of the cluster, for an engine that joins one.
        extra: arguments for the engine alone, such as Ray's dashboard's.
    """

    totals: Mapping[str, float]
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    log_to_driver: bool = True
    preload: frozenset[str] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    object_store_bytes: int | None = None
    object_spilling_directory: str | Literal[False] | None = None
    address: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class WhereAmI:
    """Position of a process in the session; ids are hexadecimal.

    Attributes:
        job_id: of the program that started the session.
        actor_id: None outside an actor.
        actor_name: by which `get_actor` finds it; "" for an actor without one, None outside an actor.
        task_id: None outside a call.
        task_name: of the call, "Class.method" in an actor; None outside a call.
        was_restarted: this actor was made anew after its process had died.
    """

    node_id: str
    worker_id: str
    namespace: str
    job_id: str
    actor_id: str | None = None
    actor_name: str | None = None
    task_id: str | None = None
    task_name: str | None = None
    was_restarted: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)


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
