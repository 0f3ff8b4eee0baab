"""Values that the public functions pass to an engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

_ENDLESS = 1 << 30


class Arity(NamedTuple):
    """Arguments that a function takes.

    Attributes:
        least: smallest number of positional arguments that is sufficient without keyword arguments.
        most: largest number of positional arguments. If a keyword-only argument is required, `least` is
            larger than `most`.
        places: names of the positional arguments, in order.
        required: number of arguments in `places` without a default.
        nameless: number of arguments in `places` that are positional-only.
        names: names of the keyword-only arguments.
        required_names: names of the keyword-only arguments without a default.
        any_name: True if keyword arguments of other names are accepted.
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
        """Raise the TypeError that a direct call would raise if the arguments don't fit.

        Args:
            function: name of the function.
            args: positional arguments.
            kwargs: keyword arguments.
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
    """Return the arguments that `function` takes; ANY if the function has no signature.

    Args:
        function: function to be called. For a decorated function, the signature of the wrapper counts.
        bound: True to leave out the first argument, which is the object of the method.
    """
    try:
        parameters = list(inspect.signature(function, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):  # a C function may have no signature
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementGroupId:
    """Reference to a placement group and to one of its bundles.

    If `bundle` is None, the process may use any bundle in which its request fits.

    Attributes:
        capture: True if tasks and actors in the group also start their children in the group by default.
    """

    group: int
    bundle: int | None = None
    capture: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Requirements for the start of a process.

    Attributes:
        resources: requested amounts by canonical resource name, see
            `trainkit.resources.normalize`; "memory" in bytes.
        group: placement group that provides the resources; None means the machine.
        env: environment variables to add to the driver's variables before user code runs.
        cwd: folder to run in; None means the folder of the requesting process.
        outside: True to use the machine, even if the requesting process's placement
            group captures child tasks.
        spread: True to prefer a node with little load; no effect on one machine.
        labels: conditions on the node's labels, see `trainkit.runtime.labels.Condition`.
        soft_labels: conditions that the node should meet if possible.
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
"""Special value of `num_returns`: the call has as many results as the function yields, and returns them one
by one through a generator.
"""

DYNAMIC = -2
"""Special value of `num_returns`: the result is one generator of references to the yielded values."""


@dataclass(slots=True)
class TaskSpec:
    """Call of a function in another process. A TaskSpec must not be changed.

    The class is a plain dataclass, because every call makes a TaskSpec, and named tuples and frozen
    dataclasses take longer to make.

    Attributes:
        num_returns: number of references that the call returns, or STREAMING or DYNAMIC.
        max_retries: number of retries after the task's process died; -1 means no limit.
        retry_exceptions: classes of exceptions after which the task is also retried;
            True means any exception.
        max_calls: number of runs of the function after which the worker ends; 0 means never.
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
    """Options for calls of an actor's method.

    Attributes:
        num_returns: number of references that a call returns, or STREAMING or DYNAMIC.
        concurrency_group: group in which the method runs; None means the default group.
        max_task_retries: number of retries of a call that the actor's death interrupted, or that raised an
            exception in `retry_exceptions`; -1 means no limit; None means the actor's option.
        retry_exceptions: classes of exceptions after which a call is also retried; True means any exception.
        is_plain: True if all options have their defaults and a call returns one reference.
        name: name of a call, which `get_task_name()` and Ray's listings show; None means "Class.method".
        arity: arguments that the method takes.
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
    """Name and methods of an actor, for its handles.

    Attributes:
        name: name of the class, or the label that replaces this name in errors and logs.
        methods: the methods by name.
        is_async: True if the class has `async def` methods.
    """

    name: str
    methods: Mapping[str, MethodSpec]
    is_async: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Registration:
    """Name under which other processes find an actor, and its lifetime.

    Attributes:
        namespace: namespace of the name; None means the session's namespace.
    """

    name: str
    namespace: str | None
    detached: bool
    get_if_exists: bool


def taken_message(name: str, namespace: str, holder: str) -> str:
    """Return the error message for a name that `holder` already has."""
    return (
        f"the name {name!r} is taken in the namespace {namespace!r} by {holder}; choose another name or "
        "namespace, end that actor with trainkit.kill(trainkit.get_actor(...)), or pass get_if_exists=True "
        "to get its handle"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Concurrency:
    """Limits on the concurrent calls of an actor.

    Attributes:
        max_concurrency: limit for methods without a group; None means 1, or 1,000 for a class with `async
            def` methods.
        groups: limits for groups of methods, by group name.
    """

    max_concurrency: int | None = None
    groups: Mapping[str, int] = field(default_factory=dict)

    @property
    def in_order(self) -> bool:
        """True if calls of each caller begin in the order sent, unless methods are `async`."""
        return (self.max_concurrency or 1) == 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ActorSpec:
    """Request for an actor, which is one object in its own process.

    Attributes:
        max_restarts: number of restarts after the actor's process died; -1 means no limit.
        max_task_retries: number of retries of a call that the actor's death interrupted; -1 means no limit.
        registration: name and lifetime of the actor; None if only handles can reach the actor.
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
        """Name of the actor for errors and logs."""
        return self.interface.name


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionSpec:
    """Settings of a session at its start.

    Attributes:
        totals: total amounts by resource name, with "memory" in bytes.
        namespace: namespace of the session's named actors.
        labels: labels of this machine.
        log_to_driver: True to show the output of workers in the driver.
        preload: modules to import before workers are forked.
        environment: environment variables for all workers, in addition to the driver's variables.
        working_dir: folder in which workers run; None means the driver's folder.
        object_store_bytes: memory limit for large objects; None means three tenths of the machine's memory.
        object_spilling_directory: folder for objects that do not fit in memory; None means a default folder
            on disk, False turns spilling off.
        address: address of the cluster, for an engine that joins a cluster.
        extra: arguments for one engine only, such as arguments for Ray's dashboard.
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
    """Ids and names of a process, its actor and its running call. Ids are hexadecimal.

    Attributes:
        job_id: id of the program that started the session.
        actor_id: id of the actor; None outside an actor.
        actor_name: name for `get_actor`; "" for an unnamed actor, None outside an actor.
        task_id: id of the running call; None outside a call.
        task_name: name of the running call, such as "Class.method"; None outside a call.
        was_restarted: True if this actor was restarted after its process died.
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
