"""Options of `@remote`, `.options()` and `@method`, checked when they are given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from trainkit.errors import ArgumentTypeError, ConfigError, did_you_mean
from trainkit.resources import checked_names, normalize
from trainkit.runtime import specs
from trainkit.runtime.placement import Condition, NodeLabelSchedulingStrategy, selected_by
from trainkit.runtime.scheduling import PlacementGroupSchedulingStrategy, SchedulingStrategy, checked_strategy
from trainkit.runtime.session import engine, environment_of

if TYPE_CHECKING:
    from typing import Unpack

    from trainkit.runtime.scheduling import PlacementGroup
    from trainkit.runtime.streams import ObjectRefGenerator
    from trainkit.runtime.typed import MarkMethod, Method, MethodOptions, Unknown


P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
_MARK = "__trainkit_method__"


@overload
def method(
    function: Callable[Concatenate[Any, P], Unknown], /
) -> Method[Callable[..., specs.ObjectRef[Any]], Callable[..., Any]]: ...
@overload
def method(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[Any, P], AsyncIterator[Y]], /
) -> Method[Callable[P, ObjectRefGenerator[Y]], Callable[P, AsyncIterator[Y]]]: ...
@overload
def method(  # type: ignore[overload-overlap]
    function: Callable[Concatenate[Any, P], Iterator[Y]], /
) -> Method[Callable[P, ObjectRefGenerator[Y]], Callable[P, Iterator[Y]]]: ...
@overload
def method(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /
) -> Method[Callable[P, specs.ObjectRef[R]], Callable[P, Coroutine[Any, Any, R]]]: ...
@overload
def method(
    function: Callable[Concatenate[Any, P], R], /
) -> Method[Callable[P, specs.ObjectRef[R]], Callable[P, R]]: ...
@overload
def method(**options: Unpack[MethodOptions]) -> MarkMethod: ...
def method(
    function: Any = None,
    /,
    *,
    num_returns: int | Literal["streaming", "dynamic"] | None = None,
    concurrency_group: str | None = None,
    max_task_retries: int | None = None,
    retry_exceptions: bool | Sequence[type[BaseException]] = False,
    enable_task_events: bool = True,
) -> Any:
    """Say how a method of a remote class is called, as a decorator with or without options.

    Without options it changes nothing but what type checkers know: a marked method's `.remote(...)` has
    its arguments checked, and returns a reference to a value of the right type. Inside the class it is
    called as any other method.

    Args:
        function: the method, if the decorator stands without parentheses.
        num_returns: how many references a call returns; see `Options.num_returns`.
        concurrency_group: the group of `concurrency_groups` that it runs in.
        max_task_retries: see `Options.max_task_retries`; None is the actor's own.
        retry_exceptions: such a call is also made again when it raises: True for any exception, or a list of
            classes.
        enable_task_events: without effect: what Ray can do without for it is not recorded here.

    Raises:
        ConfigError: it is given something else than a method, or an impossible `num_returns`.
    """
    returns_of(num_returns, generator=False)  # a wrong one is told where it stands
    kinds = retried(retry_exceptions)

    def mark(marked: Any) -> Any:
        if not inspect.isroutine(marked):
            raise ConfigError(f"method() takes a method of a class, not {marked!r}; give options by name")
        plain = getattr(marked, "__func__", marked)  # of a staticmethod or classmethod, what the class shows
        setattr(plain, _MARK, (num_returns, concurrency_group, max_task_retries, kinds))
        return marked

    return mark if function is None else mark(function)


def retried(kinds: bool | Sequence[type[BaseException]]) -> bool | tuple[type[BaseException], ...]:
    """Return `retry_exceptions` in a form that a call can carry; raises ArgumentTypeError if it is none."""
    if isinstance(kinds, bool):
        return kinds
    if not isinstance(kinds, Sequence) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise ArgumentTypeError(f"retry_exceptions={kinds!r}: give True or a list of classes")
    return tuple(kinds)


def is_generator(function: Any) -> bool:
    """Return True if a call yields its results one by one."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def returns_of(num_returns: int | Literal["streaming", "dynamic"] | None, *, generator: bool) -> int:
    """`num_returns` as a number; STREAMING or DYNAMIC for as many as the function yields."""
    if num_returns is None:
        return specs.STREAMING if generator else 1
    if num_returns == "streaming":
        return specs.STREAMING
    if num_returns == "dynamic":
        return specs.DYNAMIC
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise ArgumentTypeError(f"num_returns={num_returns!r}: give 0 or more, 'streaming' or 'dynamic'")
    if num_returns < 0:
        raise ConfigError(f"num_returns={num_returns!r}: give 0 or more, 'streaming' or 'dynamic'")
    return num_returns


def _ready(actor: Any) -> bool:
    return True


def _call(actor: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(actor, *args, **kwargs)


def _terminate(actor: Any) -> None:
    engine().exit_actor()


_BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "__ray_ready__": _ready,
    "__ray_call__": _call,
    "__ray_terminate__": _terminate,
}
BUILT_IN: Mapping[str, specs.MethodSpec] = {
    name: specs.MethodSpec(arity=specs.arity_of(function, bound=True)) for name, function in _BUILT_IN.items()
}
"""The methods that every actor has: it is there; it calls a function with its object; it ends."""


def method_of(instance: Any, name: str) -> Callable[..., Any]:
    """Return the method of that name, bound to `instance`.

    It is looked up on the class, so that an attribute of the same name does not hide it.
    """
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return functools.partial(built_in, instance)
    kind = type(instance)
    for base in kind.__mro__:
        if name in vars(base):
            found = vars(base)[name]
            bind = getattr(type(found), "__get__", None)
            return found if bind is None else bind(found, instance, kind)  # type: ignore[no-any-return]
    return getattr(instance, name)  # type: ignore[no-any-return]


def _takes_self(cls: type, name: str) -> bool:
    """Return True if a method takes the object as its first argument, and is not bound to it already."""
    return inspect.isfunction(inspect.getattr_static(cls, name))


def has_async_init(cls: Any) -> bool:
    """Return True if an instance is made by an `async def __init__`, on its event loop."""
    return inspect.iscoroutinefunction(inspect.getattr_static(cls, "__init__", None))


def interface_of(cls: type, label: str) -> specs.Interface:
    """Return the interface of `cls` for its handles."""
    methods = {}
    is_async = has_async_init(cls)
    for name, function in inspect.getmembers(cls, callable):
        if name.startswith("__") and name != "__call__":
            continue
        returns, group, retries, kinds = getattr(function, _MARK, (None, None, None, False))
        methods[name] = specs.MethodSpec(
            num_returns=returns_of(returns, generator=is_generator(function)),
            concurrency_group=group,
            max_task_retries=retries,
            retry_exceptions=kinds,
            arity=specs.arity_of(function, bound=_takes_self(cls, name)),
        )
        is_async |= inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return specs.Interface(name=label, methods=methods, is_async=is_async)


TASKS_ONLY = frozenset({"num_returns", "max_retries", "retry_exceptions", "max_calls"})
ACTORS_ONLY = frozenset(
    {
        "concurrency_groups",
        "get_if_exists",
        "lifetime",
        "max_concurrency",
        "max_restarts",
        "max_task_retries",
        "namespace",
    }
)
_NOT_HERE = {
    "accelerator_type": "name the cards by a resource, init(resources={'A100': 4}), and ask for "
    "resources={'A100': 1}",
    "max_pending_calls": "to keep at most n calls under way, take one of n by "
    "wait(refs, num_returns=1) before the next",
}
"""Options of Ray's, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a remote function or class.

    Attributes:
        num_cpus: CPUs held while running; None means 1 for a task and 0 for an actor. The worker's
            thread pools follow it.
        num_gpus: GPUs held: a whole number, or a fraction of one.
        memory: bytes; the worker is ended when it and what it started hold more that is not shared.
        resources: custom resources by name, as declared in `init(resources=)`.
        num_returns: of a task: how many references one call returns, its value then being a sequence of
            as many, or a generator that yields as many; of 0, `.remote()` returns None. Or "streaming" for a
            generator of references, or "dynamic" for a reference to such a one, which is there when the
            function has ended. None means "streaming" for generator functions and 1 for others.
        max_retries: of a task: runs again after its process died, and after what `retry_exceptions` names;
            -1 without end.
        retry_exceptions: of a task: also run again when it raises: True for any exception, or a list of
            classes.
        max_calls: of a task: a worker ends after so many runs of this function; 0 never. None means 1 with
            GPUs, so that their memory is free when the task has ended, and 0 without.
        name: of a task: shown in errors, logs and state listings. Of an actor: `get_actor` finds it by
            this name, which no other living actor of its namespace may have.
        label: of an actor: shown in errors and logs instead of the class's name.
        namespace: of a named actor; None means the session's own.
        lifetime: of an actor: "detached" lets it outlive its handles and the program that made it.
        get_if_exists: of a named actor: `.remote()` returns the one of that name if there is one.
        max_restarts: of an actor: so often it is made anew when its process dies; -1 without end.
        max_task_retries: of an actor: calls that its death interrupted, or that raised what the method's
            `retry_exceptions` names, are made again so often; -1 without end.
        max_concurrency: of an actor: calls that run at once, in threads, or for a class with `async def`
            methods on its event loop; None means 1, or 1,000 for the latter.
        concurrency_groups: of an actor: names of groups of methods and how many calls of each run at once.
        env: environment variables added for the process.
        runtime_env: the same in Ray's words, {"env_vars": {...}}, with "working_dir" for a folder to run in.
        scheduling_strategy: "DEFAULT", "SPREAD", or an object of `trainkit.util.scheduling_strategies`.
        label_selector: labels that the node must have, such as {"region": "eu"}; "!eu" for another one,
            "in(eu,us)" for one of several. See `init(labels=)`.
        placement_group: where the resources are taken from; None takes them from the machine.
        placement_group_bundle_index: which bundle of the group; -1 any that fits.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: float | None = None
    resources: Mapping[str, float] | None = field(default_factory=dict)
    num_returns: int | Literal["streaming", "dynamic"] | None = None
    max_retries: int = 3
    retry_exceptions: bool | Sequence[type[BaseException]] = False
    max_calls: int | None = None
    name: str | None = None
    label: str | None = None
    namespace: str | None = None
    lifetime: Literal["detached", "non_detached"] | None = None
    get_if_exists: bool = False
    max_restarts: int = 0
    max_task_retries: int = 0
    max_concurrency: int | None = None
    concurrency_groups: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] | None = None
    scheduling_strategy: SchedulingStrategy = None
    label_selector: Mapping[str, str] | None = None
    placement_group: PlacementGroup | None = None
    placement_group_bundle_index: int = -1

    def __post_init__(self) -> None:
        self.placement(default_cpus=0)
        returns_of(self.num_returns, generator=False)
        for name in ("max_retries", "max_restarts", "max_task_retries"):
            _require_count(name, getattr(self, name), least=-1, meaning="or -1 for without end")
        if self.max_calls is not None:
            _require_count("max_calls", self.max_calls, least=0)
        if self.max_concurrency is not None:
            _require_count("max_concurrency", self.max_concurrency, least=1)
        if not isinstance(self.concurrency_groups, Mapping):
            raise ArgumentTypeError(
                f"concurrency_groups={self.concurrency_groups!r}: give the number of calls by group"
            )
        for group, count in self.concurrency_groups.items():
            _require_count(f"concurrency_groups[{group!r}]", count, least=1)
        if self.lifetime not in (None, "detached", "non_detached"):
            raise ConfigError(f"lifetime={self.lifetime!r}; there are 'detached', 'non_detached' and None")
        for name in ("name", "namespace"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ArgumentTypeError(f"{name}={value!r}: give a text")
            if value == "":
                raise ConfigError(f"{name}='': give a text that is not empty")
        if not isinstance(self.get_if_exists, bool):
            raise ArgumentTypeError(f"get_if_exists={self.get_if_exists!r}: give True or False")
        if self.get_if_exists and self.name is None:
            raise ConfigError("get_if_exists=True needs a name to look for")
        self.retries()

    def placement(self, *, default_cpus: float) -> specs.Placement:
        """The request for a process, with `default_cpus` where the user gave none."""
        amounts = dict(checked_names(self.resources, what="resources"))
        for key in ("CPU", "GPU", "cpu", "gpu", "memory"):
            if key in amounts:
                option = key.lower() if key == "memory" else f"num_{key.lower()}s"
                raise ConfigError(f"resources={amounts!r}: give {key} as {option}")
        amounts["CPU"] = default_cpus if self.num_cpus is None else self.num_cpus
        amounts["GPU"] = self.num_gpus or 0
        amounts["memory"] = self.memory or 0
        environment = environment_of(self.env, self.runtime_env)
        hard = selected_by(self.label_selector)
        soft: tuple[Condition, ...] = ()
        if isinstance(self.scheduling_strategy, NodeLabelSchedulingStrategy):
            hard, soft = (*hard, *self.scheduling_strategy.hard), self.scheduling_strategy.soft
        return specs.Placement(
            resources=normalize(amounts),
            labels=hard,
            soft_labels=soft,
            group=self._group(amounts),
            env=environment.variables,
            cwd=environment.working_dir,
            outside=isinstance(self.scheduling_strategy, PlacementGroupSchedulingStrategy)
            and self.scheduling_strategy.placement_group is None,
            spread=self.scheduling_strategy == "SPREAD",
        )

    def _group(self, amounts: Mapping[str, float]) -> specs.PlacementGroupId | None:
        strategy = checked_strategy(self.scheduling_strategy)
        group, index, capture = self.placement_group, self.placement_group_bundle_index, False
        if isinstance(strategy, PlacementGroupSchedulingStrategy):
            if group is not None:
                raise ConfigError("give placement_group or scheduling_strategy, not both")
            group, index = strategy.placement_group, strategy.placement_group_bundle_index
            capture = bool(strategy.placement_group_capture_child_tasks)
        if group is None:
            return None
        if not hasattr(group, "bundle_specs"):
            raise ConfigError(f"placement_group={group!r}: give what placement_group() returned")
        count = len(group.bundle_specs)
        if not -1 <= index < count:
            raise ConfigError(f"placement_group_bundle_index={index}: the group has {count} bundles")
        group.require_room(normalize(amounts), index)
        return specs.PlacementGroupId(group=group.id, bundle=None if index < 0 else index, capture=capture)

    def returns(self, *, is_generator: bool) -> int:
        """Return how many references a call returns; STREAMING or DYNAMIC for a generator of them."""
        return returns_of(self.num_returns, generator=is_generator)

    def registration(self) -> specs.Registration | None:
        """How an actor is to be found; None if only by its handles.

        Raises:
            ConfigError: it is detached and has no name.
        """
        if self.name is None:
            if self.lifetime == "detached":
                raise ConfigError(
                    "lifetime='detached' needs a name, or nobody could find the actor: give one"
                )
            return None
        return specs.Registration(
            name=self.name,
            namespace=self.namespace,
            detached=self.lifetime == "detached",
            get_if_exists=self.get_if_exists,
        )

    def concurrency(self) -> specs.Concurrency:
        """How many calls of an actor run at once."""
        return specs.Concurrency(max_concurrency=self.max_concurrency, groups=dict(self.concurrency_groups))

    def retries(self) -> bool | tuple[type[BaseException], ...]:
        """`retry_exceptions` in a form that a call can carry."""
        return retried(self.retry_exceptions)

    def updated(self, changes: Mapping[str, Any], *, foreign: frozenset[str] = frozenset()) -> Options:
        """A copy with `changes`; raises ConfigError naming an option that doesn't exist.

        Args:
            changes: options by name.
            foreign: those that what is asked for does not have.
        """
        known = {item.name for item in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            hints = [f"there is no {name} here: {_NOT_HERE[name]}" for name in unknown if name in _NOT_HERE]
            if len(hints) < len(unknown):
                hints.append(f"there are {', '.join(sorted(known))}")
            meant = did_you_mean(unknown[0], known)
            raise ConfigError(
                f"unknown option {', '.join(unknown)}; {'; '.join(hints)}{meant and '.' + meant}"
            )
        misplaced = sorted(set(changes) & foreign)
        if misplaced:
            owner = "classes" if misplaced[0] in ACTORS_ONLY else "functions"
            raise ConfigError(f"{', '.join(misplaced)}: only remote {owner} have this option")
        return replace(self, **changes)


def _require_count(name: str, value: Any, *, least: int, meaning: str = "") -> None:
    message = f"{name}={value!r}: give {max(least, 0)} or more{' ' * bool(meaning)}{meaning}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(message)
    if value < least:
        raise ConfigError(message)
