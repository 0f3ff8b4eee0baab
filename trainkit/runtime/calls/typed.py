"""Types of remote functions, actor classes and methods, for type checkers only.

A call's arguments are checked like those of the plain call. Each of the first eight positional arguments may
also be a reference to a value of its type. The result has the type of the referenced value, which is the
awaited value of an `async def`, or the yielded values of a generator. The types work as follows:

- `Remote[F]` has a function type as its parameter. `F` has the parameters of the call, and returns the result
  of `.remote()`. Functions, classes and methods use the same list of overloads. Overload number n has n
  arguments that may be references; the types of further arguments do not change.
- For a type checker, the handle of an actor is an instance of the class, in which methods marked with
  `@method` have a `.remote`. The methods keep their types, because Python's type system can't express "each
  method of T, but remote". An unmarked method of a handle has no `.remote` for a type checker: mark the
  method, or declare the handle as `Any`.

Types do not cover everything. Type checkers do not know that `num_returns` changes the result of a call, and
let the result be unpacked into values of type `Any`. Type checkers refuse a reference as a keyword argument,
and do not check calls of a function that returns `Any`. Mypy does not check calls of a generic function. For
mypy, which ignores class decorators, write `RemoteCounter = trainkit.remote(Counter)`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypedDict, TypeVar, Unpack, overload

from trainkit.runtime.refs import ObjectRef, ObjectRefGenerator
from trainkit.runtime.scheduling import PlacementGroup, SchedulingStrategy

P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)
Plain_co = TypeVar("Plain_co", bound=Callable[..., Any], covariant=True)
C = TypeVar("C", bound=type[Any])

A0 = TypeVar("A0")
A1 = TypeVar("A1")
A2 = TypeVar("A2")
A3 = TypeVar("A3")
A4 = TypeVar("A4")
A5 = TypeVar("A5")
A6 = TypeVar("A6")
A7 = TypeVar("A7")


class Unknown:
    """Return type that no function has.

    Overloads with this return type match only functions that return `Any`.
    """


class CommonOptions(TypedDict, total=False):
    """Options that functions and classes have in common; see `Options`."""

    num_cpus: float | None
    num_gpus: float | None
    memory: float | None
    resources: Mapping[str, float] | None
    name: str | None
    env: Mapping[str, str]
    runtime_env: Mapping[str, Any] | None
    scheduling_strategy: SchedulingStrategy
    label_selector: Mapping[str, str] | None
    placement_group: PlacementGroup | None
    placement_group_bundle_index: int


class TaskOptions(CommonOptions, total=False):
    """Options of functions; see `Options`."""

    num_returns: int | Literal["streaming", "dynamic"] | None
    max_retries: int
    retry_exceptions: bool | Sequence[type[BaseException]]
    max_calls: int | None


class ActorOptions(CommonOptions, total=False):
    """Options of classes; see `Options`."""

    label: str | None
    namespace: str | None
    lifetime: Literal["detached", "non_detached"] | None
    get_if_exists: bool
    max_restarts: int
    max_task_retries: int
    max_concurrency: int | None
    concurrency_groups: Mapping[str, int]


class AnyOptions(TaskOptions, ActorOptions, total=False):
    """Options of a decorator whose target is not yet known."""


class MethodOptions(TypedDict, total=False):
    """Options of methods; see `trainkit.method`."""

    num_returns: int | Literal["streaming", "dynamic"] | None
    concurrency_group: str | None
    max_task_retries: int | None
    retry_exceptions: bool | Sequence[type[BaseException]]
    enable_task_events: bool


class CallOptions(MethodOptions, total=False):
    """Options of one call of a method."""

    name: str | None


class Remote(Protocol[F_co]):
    """Type of objects with a method `.remote(...)`."""

    @overload
    def remote(self: Remote[Callable[P, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, P], R]],
        a0: A0 | ObjectRef[A0],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, A2, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        a2: A2 | ObjectRef[A2],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, A2, A3, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        a2: A2 | ObjectRef[A2],
        a3: A3 | ObjectRef[A3],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, A2, A3, A4, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        a2: A2 | ObjectRef[A2],
        a3: A3 | ObjectRef[A3],
        a4: A4 | ObjectRef[A4],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, A2, A3, A4, A5, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        a2: A2 | ObjectRef[A2],
        a3: A3 | ObjectRef[A3],
        a4: A4 | ObjectRef[A4],
        a5: A5 | ObjectRef[A5],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, A2, A3, A4, A5, A6, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        a2: A2 | ObjectRef[A2],
        a3: A3 | ObjectRef[A3],
        a4: A4 | ObjectRef[A4],
        a5: A5 | ObjectRef[A5],
        a6: A6 | ObjectRef[A6],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def remote(
        self: Remote[Callable[Concatenate[A0, A1, A2, A3, A4, A5, A6, A7, P], R]],
        a0: A0 | ObjectRef[A0],
        a1: A1 | ObjectRef[A1],
        a2: A2 | ObjectRef[A2],
        a3: A3 | ObjectRef[A3],
        a4: A4 | ObjectRef[A4],
        a5: A5 | ObjectRef[A5],
        a6: A6 | ObjectRef[A6],
        a7: A7 | ObjectRef[A7],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...


class TypedRemoteFunction(Remote[F_co], Protocol[F_co]):
    """Type of `trainkit.runtime.calls.remote.RemoteFunction`."""

    def options(self, **changes: Unpack[TaskOptions]) -> Self: ...
    def bind(self, *args: Any, **kwargs: Any) -> Any: ...


class TypedActorClass(Remote[F_co], Protocol[F_co]):
    """Type of `trainkit.runtime.calls.remote.ActorClass`.

    The handles of an actor class have the type that a call of the class `F_co` returns.
    """

    def options(self, **changes: Unpack[ActorOptions]) -> Self: ...
    def bind(self, *args: Any, **kwargs: Any) -> Any: ...


class Method(Remote[F_co], Protocol[F_co, Plain_co]):
    """Type of a method marked with `@method`.

    Handles call the method by `.remote(...)`; code in the class calls it directly.
    """

    def __call__(self: Method[Any, Callable[P, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...

    def options(self, **changes: Unpack[CallOptions]) -> Self: ...
    def bind(self, *args: Any, **kwargs: Any) -> Any: ...


class MakeRemote(Protocol):
    """Type of the decorator that `remote(**options)` returns."""

    @overload
    def __call__(self, target: C, /) -> TypedActorClass[C]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(
        self, target: Callable[P, Unknown], /
    ) -> TypedRemoteFunction[Callable[..., ObjectRef[Any]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, target: Callable[P, Iterator[Y] | AsyncIterator[Y]], /
    ) -> TypedRemoteFunction[Callable[P, ObjectRefGenerator[Y]]]: ...
    @overload
    def __call__(
        self, target: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TypedRemoteFunction[Callable[P, ObjectRef[R]]]: ...
    @overload
    def __call__(self, target: Callable[P, R], /) -> TypedRemoteFunction[Callable[P, ObjectRef[R]]]: ...


class MarkMethod(Protocol):
    """Type of the decorator that `method(**options)` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Unknown], /
    ) -> Method[Callable[..., ObjectRef[Any]], Callable[..., Any]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Any, P], AsyncIterator[Y]], /
    ) -> Method[Callable[P, ObjectRefGenerator[Y]], Callable[P, AsyncIterator[Y]]]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Any, P], Iterator[Y]], /
    ) -> Method[Callable[P, ObjectRefGenerator[Y]], Callable[P, Iterator[Y]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
    ) -> Method[Callable[P, ObjectRef[R]], Callable[P, Coroutine[Any, Any, R]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Any, P], R], /
    ) -> Method[Callable[P, ObjectRef[R]], Callable[P, R]]: ...
