"""Frozen values that cross the boundary between the verbs and an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from trainkit.runtime.arity import ANY, Arity

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

T_co = TypeVar("T_co", covariant=True)


class ObjectRef(Generic[T_co]):
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

    def hex(self) -> str:
        """Its id as text."""
        return f"{self.id:016x}"

    def binary(self) -> bytes:
        """Its id as bytes."""
        return bytes.fromhex(self.hex())

    def __copy__(self) -> ObjectRef[T_co]:
        return self

    def __deepcopy__(self, memo: object) -> ObjectRef[T_co]:
        return self

    def __repr__(self) -> str:
        return f"ObjectRef({self.id:016x})"

    def __iter__(self) -> Any:
        raise TypeError("an ObjectRef is not its value yet: use trainkit.get(ref)")

    def __await__(self) -> Generator[Any, None, T_co]:
        """Wait for the value on an event loop, as in `await ref`; raises what `get` would."""
        return self.as_future().__await__()

    @abstractmethod
    def future(self) -> Future[T_co]:
        """A future of the value; what `get` would raise is its exception."""

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
    """What a process needs before it may start.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """One call of a function in another process.

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
    """What a handle knows of its actor.

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
        name: None for one that can't be found.
        namespace: None for the session's.
    """

    name: str | None
    namespace: str | None
    detached: bool
    get_if_exists: bool


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
        """What stands for it in errors and logs."""
        return self.interface.name


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSpec:
    """What a session is started with.

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
    """What a process knows of its place in the session; ids are hexadecimal.

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
