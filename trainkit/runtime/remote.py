"""`@remote`: functions and classes whose calls run elsewhere, and the handles to what runs there."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast, overload

from trainkit.errors import ConfigError
from trainkit.resources import normalize
from trainkit.runtime.current import engine
from trainkit.runtime.specs import (
    ActorSpec,
    ObjectRef,
    Placement,
    PlacementGroupId,
    TaskSpec,
)

if TYPE_CHECKING:
    from trainkit.runtime.placement_group import PlacementGroup

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `@remote` and `.options()` take; checked when given, not when used.

    Attributes:
        num_cpus: CPUs held while running; None means 1 for a task and 0 for an actor. The worker's
            thread pools follow it.
        num_gpus: GPUs held: a whole number, or a fraction of one.
        resources: custom resources by name, as declared in `init(resources=)`.
        num_returns: how many references one call returns; its value is then a sequence of as many.
        max_retries: runs of a task again after its process died; default 3.
        name: shown in errors, logs and state listings; default the function's or class's name.
        env: environment variables added for the process.
        placement_group: where the resources are taken from; None takes them from the machine.
        placement_group_bundle_index: which bundle of the group; -1 any that fits.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    num_returns: int = 1
    max_retries: int = 3
    name: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    placement_group: PlacementGroup | None = None
    placement_group_bundle_index: int = -1

    def __post_init__(self) -> None:
        self.placement(default_cpus=0)
        if self.num_returns < 1:
            raise ConfigError(f"num_returns={self.num_returns}: give 1 or more")
        if self.max_retries < 0:
            raise ConfigError(f"max_retries={self.max_retries}: give 0 or more")
        wrong = {name: value for name, value in self.env.items() if {type(name), type(value)} != {str}}
        if wrong:
            raise ConfigError(f"env holds {wrong!r}: names and values must be strings")

    def placement(self, *, default_cpus: float) -> Placement:
        """The request for a process, with `default_cpus` where the user gave none."""
        amounts = dict(self.resources)
        for key in ("CPU", "GPU", "cpu", "gpu"):
            if key in amounts:
                raise ConfigError(f"resources={dict(self.resources)!r}: give {key} as num_{key.lower()}s")
        amounts["CPU"] = default_cpus if self.num_cpus is None else self.num_cpus
        amounts["GPU"] = self.num_gpus or 0
        group = None
        if self.placement_group is not None:
            index = self.placement_group_bundle_index
            count = len(self.placement_group.bundle_specs)
            if not -1 <= index < count:
                raise ConfigError(f"placement_group_bundle_index={index}: the group has {count} bundles")
            group = PlacementGroupId(group=self.placement_group.id, bundle=None if index < 0 else index)
            self.placement_group.require_room(normalize(amounts), index)
        return Placement(resources=normalize(amounts), group=group, env=dict(self.env))

    def updated(self, changes: Mapping[str, Any]) -> Options:
        """A copy with `changes`; raises ConfigError naming an option that doesn't exist."""
        known = {item.name for item in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ConfigError(f"unknown option {', '.join(unknown)}; there are {', '.join(sorted(known))}")
        return replace(self, **changes)


class RemoteFunction(Generic[P, R]):
    """A function whose `.remote(...)` runs in a worker process and returns a reference at once."""

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        self._function = function
        self._options = options
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        name = self._function.__qualname__
        raise TypeError(f"{name} is a remote function: call {name}.remote(...), or use the plain function")

    def options(self, **changes: Any) -> RemoteFunction[P, R]:
        """The same function with other options, see `Options`."""
        return RemoteFunction(self._function, self._options.updated(changes))

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R]:
        """Start a call; returns its reference, or a list of them if `num_returns` is more than 1."""
        options = self._options
        refs = engine().submit(
            TaskSpec(
                function=self._function,
                name=options.name or self._function.__qualname__,
                args=args,
                kwargs=kwargs,
                num_returns=options.num_returns,
                placement=options.placement(default_cpus=1),
                max_retries=options.max_retries,
            )
        )
        return refs[0] if options.num_returns == 1 else cast("ObjectRef[R]", refs)


class ActorMethod:
    """A method of an actor; `.remote(...)` sends a call and returns its reference at once."""

    __slots__ = ("_handle", "_name", "_num_returns")

    def __init__(self, handle: ActorHandle, name: str, num_returns: int = 1) -> None:
        self._handle = handle
        self._name = name
        self._num_returns = num_returns

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self._name} runs in the actor's process: call {self._name}.remote(...)")

    def options(self, *, num_returns: int = 1) -> ActorMethod:
        """The same method, returning `num_returns` references a call."""
        return ActorMethod(self._handle, self._name, num_returns)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Send a call; methods run in the order sent, one at a time."""
        refs = engine().call(self._handle._actor, self._name, args, kwargs, self._num_returns)
        return refs[0] if self._num_returns == 1 else refs


class ActorHandle:
    """Stands for an actor; it ends when its last handle is gone and the calls sent are done."""

    def __init__(self, actor: Any, name: str, methods: frozenset[str]) -> None:
        self._actor = actor
        self._class_name = name
        self._methods = methods

    def __getattr__(self, name: str) -> ActorMethod:
        # Only reached for what __init__ did not set, so a method is made once and then found at once.
        if name not in self.__dict__.get("_methods", ()):
            raise AttributeError(f"{self.__dict__.get('_class_name', 'actor')} has no method {name!r}")
        return ActorMethod(self, name)

    def __repr__(self) -> str:
        return f"ActorHandle({self._class_name})"

    def __reduce__(self) -> Any:
        return ActorHandle, (self._actor, self._class_name, self._methods)


class ActorClass(Generic[T]):
    """A class whose `.remote(...)` makes an instance in a process of its own."""

    def __init__(self, cls: type[T], options: Options) -> None:
        self._cls = cls
        self._options = options
        self._methods = frozenset(
            name
            for name, _ in inspect.getmembers(cls, callable)
            if not name.startswith("__") or name == "__call__"
        )
        self.__name__ = cls.__name__
        self.__doc__ = cls.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        name = self._cls.__name__
        raise TypeError(f"{name} is an actor class: make one with {name}.remote(...)")

    def options(self, **changes: Any) -> ActorClass[T]:
        """The same class with other options, see `Options`."""
        return ActorClass(self._cls, self._options.updated(changes))

    def remote(self, *args: Any, **kwargs: Any) -> ActorHandle:
        """Ask for an actor; returns its handle at once, before its process has started."""
        options = self._options
        name = options.name or self._cls.__name__
        spec = ActorSpec(
            cls=self._cls,
            name=name,
            args=args,
            kwargs=kwargs,
            placement=options.placement(default_cpus=0),
        )
        return ActorHandle(engine().start_actor(spec), name, self._methods)


@overload
def remote(target: type[T], /) -> ActorClass[T]: ...  # type: ignore[overload-overlap]
@overload
def remote(target: Callable[P, R], /) -> RemoteFunction[P, R]: ...
@overload
def remote(**options: Any) -> Callable[[Any], Any]: ...
def remote(target: Any = None, /, **options: Any) -> Any:
    """Make a function or a class remote, as a decorator with or without options, or as a call.

    Args:
        target: a function or a class.
        **options: see `Options`.

    Raises:
        ConfigError: an option is unknown or has an impossible value.
    """
    checked = Options().updated(options)
    if target is None:
        return functools.partial(_make_remote, options=checked)
    return _make_remote(target, options=checked)


def _make_remote(target: Any, *, options: Options) -> Any:
    if inspect.isclass(target):
        return ActorClass(target, options)
    if callable(target):
        return RemoteFunction(target, options)
    raise ConfigError(f"remote() takes a function or a class, not {target!r}")
