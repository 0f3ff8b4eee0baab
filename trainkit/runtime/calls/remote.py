"""Remote functions, actor classes, and the handles of actors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast, get_origin, overload

from trainkit.errors import ArgumentTypeError, ConfigError, did_you_mean
from trainkit.registry import loaded
from trainkit.runtime.calls.methods import BUILT_IN
from trainkit.runtime.calls.options import (
    ACTORS_ONLY,
    TASKS_ONLY,
    Options,
    interface_of,
    is_generator,
    retried,
    returns_of,
)
from trainkit.runtime.ids import ActorID
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import engine
from trainkit.runtime.specs import ActorSpec, Interface, MethodSpec, TaskSpec, arity_of

if TYPE_CHECKING:
    from typing import Unpack

    from trainkit.runtime.calls import typed
    from trainkit.runtime.calls.typed import ActorOptions, AnyOptions, C, TaskOptions, Unknown
    from trainkit.runtime.refs import ObjectRefGenerator

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Y = TypeVar("Y")


class RemoteFunction(Generic[P, R]):
    """Function whose method `.remote(...)` starts a call in a worker
    process and returns a reference at once.
    """

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        self._function = function
        self._options = options
        self._name = options.name or str(getattr(function, "__qualname__", type(function).__name__))
        self._num_returns = returns_of(options.num_returns, generator=is_generator(function))
        self._placement = options.placement(default_cpus=1)
        self._retry_exceptions = retried(options.retry_exceptions)
        self._max_calls = int(bool(options.num_gpus)) if options.max_calls is None else options.max_calls
        self._arity = arity_of(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = self._name
        raise TypeError(f"{name} is a remote function: call {name}.remote(...), or use the plain function")

    def options(self, **changes: Any) -> RemoteFunction[P, R]:
        """Return a copy of the function with other options; see `Options`."""
        return RemoteFunction(self._function, self._options.updated(changes, foreign=ACTORS_ONLY))

    def remote(self, /, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R]:
        """Start a call. Return one reference, a list of references, or None, depending on `num_returns`."""
        arity = self._arity
        if kwargs or not arity.least <= len(args) <= arity.most:
            arity.require(self._name, args, kwargs)
        refs = engine().submit(
            TaskSpec(
                self._function,
                self._name,
                args,
                kwargs,
                self._num_returns,
                self._placement,
                self._options.max_retries,
                self._retry_exceptions,
                self._max_calls,
            )
        )
        return refs[0] if len(refs) == 1 else cast("ObjectRef[R]", refs or None)

    def bind(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return a graph node that calls the function with these arguments; see `trainkit.dag`."""
        return loaded("trainkit.graphs", "function")(self, args, kwargs)

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Start a call with these arguments and options, through Ray's older interface."""
        return _with(self, options).remote(*(args or ()), **(kwargs or {}))


class ActorMethod:
    """Method of an actor, whose `.remote(...)` sends a call and returns its reference at once."""

    __slots__ = ("_actor", "_name", "_spec")

    def __init__(self, actor: Any, name: str, spec: MethodSpec) -> None:
        self._actor = actor
        self._name = name
        self._spec = spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._name} runs in the actor's process: call {self._name}.remote(...)")

    def options(
        self,
        *,
        num_returns: int | Literal["streaming", "dynamic"] | None = None,
        concurrency_group: str | None = None,
        max_task_retries: int | None = None,
        retry_exceptions: bool | Sequence[type[BaseException]] | None = None,
        enable_task_events: bool = True,
        name: str | None = None,
    ) -> ActorMethod:
        """Return the method with other options for its calls.

        Args:
            num_returns: see `trainkit.method`.
            concurrency_group: see `trainkit.method`.
            max_task_retries: see `trainkit.method`.
            retry_exceptions: see `trainkit.method`.
            enable_task_events: see `trainkit.method`.
            name: name of the call, which `get_task_name()` returns inside the call;
                None means "Class.method".
        """
        spec = self._spec
        if num_returns is not None:
            spec = replace(spec, num_returns=returns_of(num_returns, generator=False))
        if concurrency_group is not None:
            spec = replace(spec, concurrency_group=concurrency_group)
        if max_task_retries is not None:
            spec = replace(spec, max_task_retries=max_task_retries)
        if retry_exceptions is not None:
            spec = replace(spec, retry_exceptions=retried(retry_exceptions))
        if name is not None:
            if not isinstance(name, str):
                raise ArgumentTypeError(f"name must be a string, not {name!r}")
            spec = replace(spec, name=name)
        return ActorMethod(self._actor, self._name, spec)

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Send a call. Calls run one at a time in the order sent, unless the class allows concurrency."""
        arity = self._spec.arity
        if kwargs or not arity.least <= len(args) <= arity.most:
            arity.require(self._name, args, kwargs)
        refs = engine().call(self._actor, self._name, args, kwargs, self._spec)
        return refs[0] if len(refs) == 1 else refs or None

    def bind(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return a graph node that calls the method with these arguments; see `trainkit.dag`."""
        return loaded("trainkit.graphs", "method")(
            lambda _: self, args, kwargs, label=self._name, actor=self._actor
        )

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        """Send a call with these arguments and options, through Ray's older interface."""
        return _with(self, options).remote(*(args or ()), **(kwargs or {}))


class ActorHandle:
    """Handle of an actor. The actor ends when its last handle is gone and its calls are done."""

    def __init__(self, actor: Any, interface: Interface) -> None:
        self._actor = actor
        self._interface = interface

    def __getattr__(self, name: str) -> ActorMethod:
        # Python calls this method only for names missing in `__dict__`, so each ActorMethod is made only
        # once.
        interface = self.__dict__.get("_interface")
        spec = None if interface is None else interface.methods.get(name) or BUILT_IN.get(name)
        if spec is None:
            owner, methods = (interface.name, interface.methods) if interface else ("actor", ())
            raise AttributeError(f"{owner} has no method {name!r}.{did_you_mean(name, methods)}")
        found = self.__dict__[name] = ActorMethod(self._actor, name, spec)
        return found

    def __dir__(self) -> list[str]:
        return sorted({*self._interface.methods, *BUILT_IN})

    @property
    def _actor_id(self) -> ActorID:
        """Id of the actor, under the name that Ray's handles use."""
        return ActorID.from_hex(self._actor.actor_id)

    _ray_actor_id = _actor_id

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        return GenericAlias(cls, item)  # only annotations need this method, such as ActorHandle[Counter]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActorHandle) and self._actor == other._actor

    def __hash__(self) -> int:
        return hash(self._actor)

    def __repr__(self) -> str:
        return f"ActorHandle({self._interface.name})"

    def __reduce__(self) -> Any:
        return ActorHandle, (self._actor, self._interface)


class ActorClass(Generic[T]):
    """Class whose method `.remote(...)` makes an instance in a separate process."""

    def __init__(self, cls: type[T], options: Options, known: ActorClass[T] | None = None) -> None:
        self._cls = cls
        self._options = options
        label = options.label or options.name or cls.__name__
        # Inspecting a class is slow, and options change only the name in the interface. So a known interface
        # is reused.
        if known is None:
            self._interface = interface_of(cls, label)
            self._arity = arity_of(cls.__init__, bound=True)
        else:
            self._interface, self._arity = replace(known._interface, name=label), known._arity
        self.__name__ = cls.__name__
        self.__doc__ = cls.__doc__

    def __getattr__(self, name: str) -> Any:
        """Return a constant or a static method of the class."""
        if name.startswith("__") or "_cls" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._cls, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._cls)})

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        name = self._cls.__name__
        raise TypeError(f"{name} is an actor class: create an actor with {name}.remote(...)")

    def __mro_entries__(self, _: Any) -> Any:
        name = self.__name__
        raise TypeError(f"{name} is an actor class: extend the plain class, and make the subclass remote")

    def options(self, **changes: Any) -> ActorClass[T]:
        """Return a copy of the class with other options; see `Options`."""
        return ActorClass(self._cls, self._options.updated(changes, foreign=TASKS_ONLY), known=self)

    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Request an actor and return its handle at once, before the actor's process has started."""
        options, methods = self._options, self._interface.methods
        unknown = {each.concurrency_group for each in methods.values()} - {None, *options.concurrency_groups}
        if unknown:
            raise ConfigError(
                f"methods of {self.__name__} use undeclared concurrency groups {sorted(map(str, unknown))}: "
                f"add them to concurrency_groups, which declares {sorted(options.concurrency_groups)}"
            )
        self._arity.require(self.__name__, args, kwargs)
        spec = ActorSpec(
            cls=self._cls,
            interface=self._interface,
            args=args,
            kwargs=kwargs,
            placement=options.placement(default_cpus=0),
            max_restarts=options.max_restarts,
            max_task_retries=options.max_task_retries,
            concurrency=options.concurrency(),
            registration=options.registration(),
        )
        return ActorHandle(engine().start_actor(spec), self._interface)

    def bind(self, /, *args: Any, **kwargs: Any) -> Any:
        """Return a graph node that makes an actor; see `trainkit.dag`."""
        return loaded("trainkit.graphs", "actor")(self, args, kwargs)

    def _remote(self, args: Any = None, kwargs: Any = None, **options: Any) -> ActorHandle:
        """Request an actor with these arguments and options, through Ray's older interface."""
        return _with(self, options).remote(*(args or ()), **(kwargs or {}))  # type: ignore[no-any-return]


def _with(target: Any, options: dict[str, Any]) -> Any:
    return target.options(**options) if options else target


@overload
def remote(target: C, /, **options: Unpack[ActorOptions]) -> typed.TypedActorClass[C]: ...  # type: ignore[overload-overlap]
@overload
def remote(
    target: Callable[P, Unknown], /, **options: Unpack[TaskOptions]
) -> typed.TypedRemoteFunction[Callable[..., ObjectRef[Any]]]: ...
@overload
def remote(  # type: ignore[overload-overlap]
    target: Callable[P, Iterator[Y] | AsyncIterator[Y]], /, **options: Unpack[TaskOptions]
) -> typed.TypedRemoteFunction[Callable[P, ObjectRefGenerator[Y]]]: ...
@overload
def remote(
    target: Callable[P, Coroutine[Any, Any, R]], /, **options: Unpack[TaskOptions]
) -> typed.TypedRemoteFunction[Callable[P, ObjectRef[R]]]: ...
@overload
def remote(
    target: Callable[P, R], /, **options: Unpack[TaskOptions]
) -> typed.TypedRemoteFunction[Callable[P, ObjectRef[R]]]: ...
@overload
def remote(**options: Unpack[AnyOptions]) -> typed.MakeRemote: ...
def remote(target: Any = None, /, **options: Any) -> Any:
    """Make a function or a class remote, as a decorator with or without options, or as a call.

    Args:
        target: a function or a class.
        **options: see `Options`.

    Raises:
        ConfigError: an option is unknown or has an invalid value.
    """
    # this call reports an invalid option where the decorator is used, before the target is known
    Options().updated(options)
    if target is None:
        return functools.partial(_make_remote, options=options)
    return _make_remote(target, options=options)


def _make_remote(target: Any, *, options: dict[str, Any]) -> Any:
    if inspect.isclass(get_origin(target)):
        # The parameter of a generic class, such as Box[int], is only for type checkers.
        target = get_origin(target)
    if inspect.isclass(target):
        return ActorClass(target, Options().updated(options, foreign=TASKS_ONLY))
    if inspect.iscoroutinefunction(target):
        raise ConfigError(
            f"{target.__qualname__} is an async def function, and a task has no event loop: make it a method "
            "of a remote class, or call asyncio.run() in a plain function"
        )
    if callable(target):
        return RemoteFunction(target, Options().updated(options, foreign=ACTORS_ONLY))
    raise ArgumentTypeError(f"remote() takes a function or a class, not {target!r}")
