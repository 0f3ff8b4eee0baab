"""Options of `@remote`, `.options()` and `@method`, validated when they are given."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from trainkit.errors import ArgumentTypeError, ConfigError, did_you_mean
from trainkit.resources import checked_names, normalize
from trainkit.runtime import specs
from trainkit.runtime.labels import Condition, NodeLabelSchedulingStrategy, selected_by
from trainkit.runtime.scheduling import PlacementGroupSchedulingStrategy, SchedulingStrategy, checked_strategy
from trainkit.runtime.session import environment_of

if TYPE_CHECKING:
    from typing import Unpack

    from trainkit.runtime.calls.typed import MarkMethod, Method, MethodOptions, Unknown
    from trainkit.runtime.refs import ObjectRef, ObjectRefGenerator
    from trainkit.runtime.scheduling import PlacementGroup


P = ParamSpec("P")
R = TypeVar("R")
Y = TypeVar("Y")
_MARK = "__trainkit_method__"


@overload
def method(
    function: Callable[Concatenate[Any, P], Unknown], /
) -> Method[Callable[..., ObjectRef[Any]], Callable[..., Any]]: ...
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
) -> Method[Callable[P, ObjectRef[R]], Callable[P, Coroutine[Any, Any, R]]]: ...
@overload
def method(
    function: Callable[Concatenate[Any, P], R], /
) -> Method[Callable[P, ObjectRef[R]], Callable[P, R]]: ...
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
    """Set how a method of a remote class is called, as a decorator with or without options.

    Without options, the decorator only informs type checkers, which then check the arguments of the
    method's `.remote(...)` and know the type of the returned reference. Inside the class, the
    method is called as usual.

    Args:
        function: the method, if the decorator is used without parentheses.
        num_returns: number of references that a call returns; see `Options.num_returns`.
        concurrency_group: name of the group in `concurrency_groups` in which the method runs.
        max_task_retries: number of retries of a call, see `Options.max_task_retries`;
            None uses the actor's value.
        retry_exceptions: exceptions after which a call is also retried, as a list of classes;
            True means any exception.
        enable_task_events: no effect, because trainkit does not record the events that this option controls
            in Ray.

    Raises:
        ConfigError: the argument is not a method, or `num_returns` is invalid.
    """
    returns_of(num_returns, generator=False)  # this call reports an invalid value where the decorator is used
    kinds = retried(retry_exceptions)

    def mark(marked: Any) -> Any:
        if not inspect.isroutine(marked):
            raise ConfigError(f"method() must decorate a method, not {marked!r}; pass options by name")
        plain = getattr(marked, "__func__", marked)  # a staticmethod or classmethod object wraps the function
        setattr(plain, _MARK, (num_returns, concurrency_group, max_task_retries, kinds))
        return marked

    return mark if function is None else mark(function)


def retried(kinds: bool | Sequence[type[BaseException]]) -> bool | tuple[type[BaseException], ...]:
    """Return the option `retry_exceptions` as a bool or a tuple of classes.

    Raise ArgumentTypeError if the option is invalid.
    """
    if isinstance(kinds, bool):
        return kinds
    if not isinstance(kinds, Sequence) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    ):
        raise ArgumentTypeError(f"retry_exceptions must be True or a list of classes, not {kinds!r}")
    return tuple(kinds)


def is_generator(function: Any) -> bool:
    """Return True if a call of the function yields its results one by one."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def returns_of(num_returns: int | Literal["streaming", "dynamic"] | None, *, generator: bool) -> int:
    """Return the option `num_returns` as a number.

    The numbers STREAMING and DYNAMIC mean as many results as the function yields.
    """
    if num_returns is None:
        return specs.STREAMING if generator else 1
    if num_returns == "streaming":
        return specs.STREAMING
    if num_returns == "dynamic":
        return specs.DYNAMIC
    message = f"num_returns must be 0 or more, 'streaming' or 'dynamic', not {num_returns!r}"
    if isinstance(num_returns, bool) or not isinstance(num_returns, int):
        raise ArgumentTypeError(message)
    if num_returns < 0:
        raise ConfigError(message)
    return num_returns


def has_async_init(cls: Any) -> bool:
    """Return True if the class has an `async def __init__`, which runs on the actor's event loop."""
    return inspect.iscoroutinefunction(inspect.getattr_static(cls, "__init__", None))


def interface_of(cls: type, label: str) -> specs.Interface:
    """Return the name and the methods of `cls`, for handles of its actors."""
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
            # A plain function takes the object as its first argument.
            arity=specs.arity_of(function, bound=inspect.isfunction(inspect.getattr_static(cls, name))),
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
    "accelerator_type": "declare the GPU type as a resource, init(resources={'A100': 4}), and request "
    "resources={'A100': 1}",
    "max_pending_calls": "to keep at most n calls running, wait for one of n with "
    "wait(refs, num_returns=1) before the next call",
}
"""Options of Ray that are not supported, with an alternative to each."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a remote function or class.

    Attributes:
        num_cpus: number of CPUs reserved; None means 1 for a task and 0 for an actor. Numerical libraries in
            the worker use this number of threads, at least 1.
        num_gpus: number of GPUs reserved, a whole number or a fraction of one GPU.
        memory: number of bytes reserved, which is also a limit. A worker is killed when the worker and its
            descendants use more unshared memory than the limit.
        resources: custom resources by name, as declared in `init(resources=)`.
        num_returns: for tasks. Number of references that one call returns. The function must then return a
            sequence of that length or yield that number of values. With 0, `.remote()` returns None.
            "streaming" returns a generator of references. "dynamic" returns one reference to a generator of
            references; the generator is available when the function has ended. None means "streaming" for
            generator functions and 1 for other functions.
        max_retries: for tasks. Number of retries after the task's process died, or after an exception that
            `retry_exceptions` names; -1 means no limit.
        retry_exceptions: for tasks. Exceptions after which the task is also retried, as a list of classes;
            True means any exception.
        max_calls: for tasks. Number of runs of the function after which its worker ends; 0 means
            no limit. None means 1 for tasks with GPUs, so that GPU memory is free after the
            task, and 0 for other tasks.
        name: for tasks: name shown in errors, logs and state listings. For actors: name for `get_actor`,
            unique among the living actors of the namespace.
        label: for actors. Name shown in errors and logs instead of the class's name.
        namespace: for named actors. Namespace of the name; None means the session's namespace.
        lifetime: for actors. "detached" keeps the actor after its last handle is gone and its program has
            ended.
        get_if_exists: for named actors. True to let `.remote()` return an existing actor with the same name
            instead of making a new actor.
        max_restarts: for actors. Number of restarts of the actor after its process died; -1 means no limit.
        max_task_retries: for actors. Number of retries of a call that the actor's death interrupted, or that
            raised an exception in the method's `retry_exceptions`; -1 means no limit.
        max_concurrency: for actors. Number of concurrent calls, in threads, or on the event loop if the class
            has `async def` methods; None means 1, or 1,000 with `async def` methods.
        concurrency_groups: for actors. Names of groups of methods, with the number of concurrent calls of
            each group.
        env: environment variables to add for the process of the task or actor.
        runtime_env: environment in Ray's form: {"env_vars": {...}} means `env`, and "working_dir" is the
            folder to run in.
        scheduling_strategy: "DEFAULT", "SPREAD", or an object of `trainkit.util.scheduling_strategies`.
        label_selector: required labels of the node, such as {"region": "eu"}. "!eu" requires a different
            value, and "in(eu,us)" one of several values. See `init(labels=)`.
        placement_group: group that provides the resources; None means the machine.
        placement_group_bundle_index: bundle of the group to use; -1 means any bundle that fits.
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
            _require_count(name, getattr(self, name), least=-1, more=", or -1 for unlimited")
        if self.max_calls is not None:
            _require_count("max_calls", self.max_calls, least=0)
        if self.max_concurrency is not None:
            _require_count("max_concurrency", self.max_concurrency, least=1)
        if not isinstance(self.concurrency_groups, Mapping):
            raise ArgumentTypeError(
                f"concurrency_groups must map group names to call limits, not {self.concurrency_groups!r}"
            )
        for group, count in self.concurrency_groups.items():
            _require_count(f"concurrency_groups[{group!r}]", count, least=1)
        if self.lifetime not in (None, "detached", "non_detached"):
            raise ConfigError(f"lifetime must be 'detached', 'non_detached' or None, not {self.lifetime!r}")
        for name in ("name", "namespace"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ArgumentTypeError(f"{name} must be a string, not {value!r}")
            if value == "":
                raise ConfigError(f"{name} must not be an empty string")
        if not isinstance(self.get_if_exists, bool):
            raise ArgumentTypeError(f"get_if_exists must be True or False, not {self.get_if_exists!r}")
        if self.get_if_exists and self.name is None:
            raise ConfigError("get_if_exists=True needs a name to look for")
        retried(self.retry_exceptions)

    def placement(self, *, default_cpus: float) -> specs.Placement:
        """Return the requirements for a process, with `default_cpus` if the user gave no number of CPUs."""
        amounts = dict(checked_names(self.resources, what="resources"))
        for key in ("CPU", "GPU", "cpu", "gpu", "memory"):
            if key in amounts:
                option = key.lower() if key == "memory" else f"num_{key.lower()}s"
                raise ConfigError(f"resources={amounts!r} must not contain {key}: pass the option {option}")
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
            raise ConfigError(f"placement_group must be a result of placement_group(), not {group!r}")
        count = len(group.bundle_specs)
        if not -1 <= index < count:
            raise ConfigError(f"placement_group_bundle_index={index}: the group has {count} bundles")
        group.require_room(normalize(amounts), index)
        return specs.PlacementGroupId(group=group.id, bundle=None if index < 0 else index, capture=capture)

    def registration(self) -> specs.Registration | None:
        """Return the name and lifetime under which an actor is registered; None for an actor without a name.

        Raises:
            ConfigError: the actor is detached and has no name.
        """
        if self.name is None:
            if self.lifetime == "detached":
                raise ConfigError("lifetime='detached' needs a name, by which get_actor() finds the actor")
            return None
        return specs.Registration(
            name=self.name,
            namespace=self.namespace,
            detached=self.lifetime == "detached",
            get_if_exists=self.get_if_exists,
        )

    def concurrency(self) -> specs.Concurrency:
        """Return the limits on concurrent calls of an actor."""
        return specs.Concurrency(max_concurrency=self.max_concurrency, groups=dict(self.concurrency_groups))

    def updated(self, changes: Mapping[str, Any], *, foreign: frozenset[str] = frozenset()) -> Options:
        """Return a copy of these options with `changes`. Raise ConfigError that names an unknown option.

        Args:
            changes: options by name.
            foreign: options that the decorated function or class does not support, although `Options` has
                them.
        """
        known = {item.name for item in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            hints = [f"{name} is not supported: {_NOT_HERE[name]}" for name in unknown if name in _NOT_HERE]
            if len(hints) < len(unknown):
                hints.append(f"the options are {', '.join(sorted(known))}")
            meant = did_you_mean(unknown[0], known)
            raise ConfigError(
                f"unknown option {', '.join(unknown)}; {'; '.join(hints)}{meant and '.' + meant}"
            )
        misplaced = sorted(set(changes) & foreign)
        if misplaced:
            owner = "classes" if misplaced[0] in ACTORS_ONLY else "functions"
            raise ConfigError(f"only remote {owner} have the option {', '.join(misplaced)}")
        return replace(self, **changes)


def _require_count(name: str, value: Any, *, least: int, more: str = "") -> None:
    message = f"{name} must be an integer of at least {max(least, 0)}{more}, not {value!r}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentTypeError(message)
    if value < least:
        raise ConfigError(message)
