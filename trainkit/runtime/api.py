"""Functions that users call: `init`, `shutdown`, `put`, `get`, `wait`, `kill`, `cancel` and the others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, overload

from trainkit.errors import AlreadyInitializedError, ArgumentTypeError, ConfigError
from trainkit.runtime import scheduling as groups
from trainkit.runtime import session
from trainkit.runtime.context import (
    SessionContext,
    available_resources,
    cluster_resources,
    get_gpu_ids,
    get_runtime_context,
    list_actors,
    list_objects,
    list_placement_groups,
    list_tasks,
    nodes,
    promises,
)
from trainkit.runtime.observability.timeline import timeline
from trainkit.runtime.options import method
from trainkit.runtime.remote import ActorHandle, RemoteFunction, remote
from trainkit.runtime.scheduling import PlacementGroup
from trainkit.runtime.serialize import pack
from trainkit.runtime.session import RAY_PRIVATE, engine_name, linked, renew, session_spec, shutdown
from trainkit.runtime.specs import ObjectRef
from trainkit.runtime.streams import ObjectRefGenerator

__all__ = [
    "available_resources",
    "cancel",
    "cluster_resources",
    "ensure_serializable",
    "exit_actor",
    "get",
    "get_actor",
    "get_current_placement_group",
    "get_gpu_ids",
    "get_placement_group",
    "get_runtime_context",
    "init",
    "is_initialized",
    "kill",
    "linked",
    "list_actors",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "method",
    "nodes",
    "placement_group",
    "promises",
    "put",
    "remote",
    "remove_placement_group",
    "renew",
    "scratch_dir",
    "shutdown",
    "timeline",
    "wait",
]

T = TypeVar("T")


def init(
    address: str | None = None,
    *,
    engine: str | None = None,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    memory: float | None = None,
    object_store_memory: float | None = None,
    object_spilling_directory: str | os.PathLike[str] | Literal[False] | None = None,
    local_mode: bool = False,
    ignore_reinit_error: bool = False,
    include_dashboard: bool | None = None,
    dashboard_host: str | None = None,
    dashboard_port: int | None = None,
    job_config: Any = None,
    configure_logging: bool | None = None,
    logging_level: int | str | None = None,
    logging_format: str | None = None,
    logging_config: Any = None,
    log_to_driver: bool | None = None,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    enable_resource_isolation: bool | None = None,
    cgroup_path: str | None = None,
    system_reserved_cpu: float | None = None,
    system_reserved_memory: int | None = None,
    proxy_server_url: str | None = None,
    preload: Sequence[str] = (),
    **private: Any,
) -> SessionContext:
    """Start the runtime; the first call that needs it does so by itself with the defaults.

    In a worker it has no effect: that is part of its session, and may import a module that calls this.
    `with trainkit.init():` ends the session behind the block.

    Args:
        address: a Ray cluster's, such as "auto" or "ray://host:10001", to run on it; None or "local" runs
            on this machine alone.
        engine: "local" runs calls in forked processes of this machine; "inline" runs them in this
            process, in order, for a debugger and for fast tests; "ray" runs them on Ray. Or the name of one
            that a package adds. Default: "ray" with an `address`, else "local".
        num_cpus: CPUs to share out; default, those this process may use.
        num_gpus: GPUs to share out; default, those this process may see. A number larger than the
            machine's is taken at its word, so that placement can be tried without hardware.
        resources: custom resources by name, such as {"licence": 2}.
        labels: of this machine, such as {"region": "eu"}, for `label_selector` and
            `NodeLabelSchedulingStrategy`.
        memory: bytes to share out among those that ask for `memory=`; default, all that the machine has.
        object_store_memory: bytes of memory that large objects may take together, 1 MiB or more; default,
            three tenths of the machine's memory.
        object_spilling_directory: where those that find no room in memory are written, on a disk; default,
            the temporary folder, or /var/tmp if that lies in memory. False refuses: a full store is an
            error then.
        local_mode: the same as engine="inline".
        ignore_reinit_error: leave a running runtime as it is instead of raising.
        include_dashboard: Ray's; without effect on the other engines, as a log line then says once. So are
            the arguments that refer to this one.
        dashboard_host: see `include_dashboard`.
        dashboard_port: see `include_dashboard`.
        job_config: see `include_dashboard`.
        configure_logging: False leaves the level of the log as it is.
        logging_level: of trainkit's log, such as "warning" or `logging.WARNING`.
        logging_format: see `include_dashboard`.
        logging_config: see `include_dashboard`.
        log_to_driver: print the workers' output lines here, with the name and pid of the worker; None is
            True.
        namespace: of this program's named actors; default, one for all programs of a user.
        runtime_env: {"env_vars": {...}} for all workers, and "working_dir" for a folder that they run in.
        enable_resource_isolation: see `include_dashboard`.
        cgroup_path: see `include_dashboard`.
        system_reserved_cpu: see `include_dashboard`.
        system_reserved_memory: see `include_dashboard`.
        proxy_server_url: see `include_dashboard`.
        preload: modules that are imported once, and forked with every worker, besides those of the
            well-known heavy ones that this process has imported. Called before a script's own
            imports, as in `trainkit.init(preload=["torch"])`, both go on at the same time.
        **private: arguments of Ray's with an underscore, such as `_temp_dir`. `_memory` is `memory` and
            `_object_spilling_directory` is `object_spilling_directory`; for the others see
            `include_dashboard`.

    Returns:
        Facts about the session, such as `context["node_id"]`.

    Raises:
        AlreadyInitializedError: it is running already.
        ConfigError: an argument is wrong.
        MissingDependencyError: Ray is asked for and not installed.
    """
    unknown = sorted(set(private) - RAY_PRIVATE)
    if unknown:
        raise TypeError(f"init() got an unexpected keyword argument {unknown[0]!r}")
    with session.starting:
        here = session.running()
        if here is not None and here.alive:
            if ignore_reinit_error or here.is_worker:
                return SessionContext(here.address_info(), shutdown)
            raise AlreadyInitializedError(
                "trainkit is already running; call shutdown() first, or pass ignore_reinit_error=True"
            )
        chosen = engine_name(engine, address, local_mode)
        spilling = private.pop("_object_spilling_directory", None)
        if object_spilling_directory is not None:
            spilling = object_spilling_directory
        spec = session_spec(
            address=address,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            labels=labels,
            memory=private.pop("_memory", None) if memory is None else memory,
            object_store_memory=object_store_memory,
            object_spilling_directory=spilling,
            log_to_driver=log_to_driver is not False,
            namespace=namespace,
            runtime_env=runtime_env,
            preload=preload,
            extra={
                "include_dashboard": include_dashboard,
                "dashboard_host": dashboard_host,
                "dashboard_port": dashboard_port,
                "job_config": job_config,
                "configure_logging": configure_logging,
                "logging_level": logging_level,
                "logging_format": logging_format,
                "logging_config": logging_config,
                "enable_resource_isolation": enable_resource_isolation,
                "cgroup_path": cgroup_path,
                "system_reserved_cpu": system_reserved_cpu,
                "system_reserved_memory": system_reserved_memory,
                "proxy_server_url": proxy_server_url,
                **private,
            },
        )
        return SessionContext(session.begin(chosen, spec).address_info(), shutdown)


def is_initialized() -> bool:
    """Return whether the runtime is running in this process."""
    return session.running() is not None


def put(value: T) -> ObjectRef[T]:
    """Keep `value` for other processes; large ones are written to shared memory once.

    Raises:
        SerializationError: the value can't be pickled; the message names the part.
    """
    if isinstance(value, ObjectRef):
        raise ArgumentTypeError(
            "put() was given a reference: pass the reference itself on, it can be sent anywhere"
        )
    return session.engine().put(value)


@overload
def get(refs: ObjectRef[T], *, timeout: float | None = None) -> T: ...
@overload
def get(refs: Sequence[ObjectRef[T]], *, timeout: float | None = None) -> list[T]: ...
def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Wait for one reference or several and return the value or values.

    Args:
        refs: a reference, or a sequence of them.
        timeout: seconds; None, or less than 0 as in Ray, waits as long as it takes.

    Raises:
        TaskError: user code raised; also an instance of the class it raised.
        ActorDiedError, WorkerDiedError: the process that owed the value ended.
        GetTimeoutError: `timeout` passed; the value can be asked for again.
    """
    if timeout is not None:
        _require_seconds("get", timeout)
        if timeout < 0:
            timeout = None
    if isinstance(refs, ObjectRef):
        return session.engine().get([refs], timeout)[0]
    return session.engine().get(_checked(refs, "get"), timeout)


def wait(
    refs: Sequence[ObjectRef[T]],
    *,
    num_returns: int = 1,
    timeout: float | None = None,
    fetch_local: bool = True,
) -> tuple[list[ObjectRef[T]], list[ObjectRef[T]]]:
    """Wait until `num_returns` of `refs` are done, or `timeout` seconds have passed.

    Args:
        refs: references, each once; and generators of references, which are done as long as their next
            reference, or their end, is there.
        num_returns: how many to wait for.
        timeout: seconds; None waits as long as it takes.
        fetch_local: without effect on one machine, where every value is at hand.

    Returns:
        The done ones, at most `num_returns`, and the rest; both in the order of `refs`. A failed
        call counts as done.
    """
    generators: dict[int, Any] = {}
    if isinstance(refs, Sequence) and any(isinstance(ref, ObjectRefGenerator) for ref in refs):
        refs = list(refs)
        for index, each in enumerate(refs):
            if isinstance(each, ObjectRefGenerator):
                if any(each is other for other in generators.values()):
                    raise ConfigError("wait() was given the same reference twice")
                refs[index] = each.upcoming()
                generators[refs[index].id] = each
    checked = _checked(refs, "wait")
    if not checked:
        return [], []
    if type(num_returns) is not int:
        raise ArgumentTypeError(f"wait(num_returns={num_returns!r}): give a whole number")
    if timeout is not None:
        _require_seconds("wait", timeout)
        if not timeout >= 0:
            raise ConfigError(f"wait(timeout={timeout!r}): give 0 or more seconds")
    if not 1 <= num_returns <= len(checked):
        raise ConfigError(
            f"wait(num_returns={num_returns}) of {len(checked)} references: give 1 to {len(checked)}"
        )
    if len({ref.id for ref in checked}) != len(checked):
        raise ConfigError("wait() was given the same reference twice")
    ready, rest = session.engine().wait(checked, num_returns, timeout)
    if generators:
        ready, rest = ([generators.get(ref.id, ref) for ref in part] for part in (ready, rest))
    return ready, rest


def _require_seconds(verb: str, timeout: Any) -> None:
    if type(timeout) is bool or not isinstance(timeout, (int, float)):
        raise ArgumentTypeError(f"{verb}(timeout={timeout!r}): give seconds, or None to wait without end")


def _checked(refs: Any, verb: str) -> list[ObjectRef[Any]]:
    if isinstance(refs, ObjectRef):
        raise ArgumentTypeError(f"{verb}() takes a list of references: give {verb}([ref])")
    sequence = isinstance(refs, Sequence) and not isinstance(refs, (str, bytes))
    listed: list[Any] = list(refs) if sequence else [None]
    for ref in listed:
        if not isinstance(ref, ObjectRef):
            raise ArgumentTypeError(
                f"{verb}() takes references, as .remote() and put() return them; it was given {refs!r}"
            )
    return listed


def kill(actor: Any, *, no_restart: bool = True) -> None:
    """End an actor and all its descendants at once; calls waiting on it fail with ActorDiedError.

    Args:
        actor: its handle.
        no_restart: False lets an actor with `max_restarts` be made anew.
    """
    if not isinstance(actor, ActorHandle):
        raise ArgumentTypeError(f"kill() takes an actor's handle, not {actor!r}")
    session.engine().kill(actor._actor, no_restart)


def cancel(ref: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Stop the call that owes a result; its `get` then raises TaskCancelledError.

    A call that has not begun never does. In a running task KeyboardInterrupt is raised, once, so that its
    `finally` blocks run to their end, unless it handles SIGINT itself; a generator is closed where it yields;
    a running `async def` method of an actor is cancelled as asyncio does it; another running method goes on.
    What is done already stays done.

    Args:
        ref: a reference, or the generator of a streaming call.
        force: end the worker process of a running task; not for actors, see `kill`.
        recursive: also cancel what the task has started.

    Raises:
        ConfigError: `ref` is none, or `force` is asked for an actor's call.
    """
    if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
        raise ArgumentTypeError(f"cancel() takes a reference, not {ref!r}")
    session.engine().cancel(ref, force, recursive)


def get_actor(name: str, namespace: str | None = None) -> Any:
    """The handle of a named actor of this session, or of a detached one of any of the user's sessions.

    Which class it is of, only the caller knows: `counter: ActorProxy[Counter] = get_actor("counter")`,
    with `ActorProxy` from `trainkit.actor`, lets type checkers know it too.

    Args:
        name: as given to `.options(name=)`.
        namespace: None means this session's.

    Raises:
        ConfigError: there is none of that name.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"get_actor({name!r}): give the name that the actor was given by .options(name=...)"
        )
    return ActorHandle(*session.engine().find_actor(name, namespace))


def end_processes(function: RemoteFunction[..., Any]) -> None:
    """Let the processes go that the session keeps for tasks like this one, as it does for what comes next.

    Args:
        function: after it was called; the same object.
    """
    session.engine().end_processes(function._placement)


def exit_actor() -> NoReturn:
    """End the actor whose method calls this; the call, and those behind it, fail with ActorDiedError.

    Raises:
        ConfigError: this is no actor.
    """
    session.engine().exit_actor()


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
) -> PlacementGroup:
    """Reserve `bundles`, all or none; returns at once, see `PlacementGroup.wait`.

    Args:
        bundles: one mapping of amounts a worker, such as [{"CPU": 1}, {"CPU": 1, "GPU": 1}].
        strategy: "PACK" on few nodes, "SPREAD" over many, "STRICT_PACK" on one, "STRICT_SPREAD" each on
            another; one machine is one node.
        name: by which `get_placement_group` finds it.
        lifetime: "detached" lets it outlive this program.

    Raises:
        InfeasibleError: together they exceed what there is, or the strategy can't be followed.
        ConfigError: an argument is wrong, or the name is taken.
    """
    return groups.reserve(bundles, strategy, name, lifetime)


def get_placement_group(name: str) -> PlacementGroup:
    """The placement group of that name; raises ConfigError if there is none."""
    return groups.find(name)


def remove_placement_group(group: PlacementGroup) -> None:
    """Give the bundles back; what runs in them is ended."""
    session.engine().release(group.id)


def get_current_placement_group() -> PlacementGroup | None:
    """The group that this worker was started in; None in the driver and outside any group."""
    engine = session.running()
    found = engine.current_group() if engine is not None else None
    if found is None:
        return None
    where, bundles = found
    return PlacementGroup(where.group, bundles)


def scratch_dir() -> Path:
    """A private folder for files that the session's processes share; it goes with the session."""
    return session.engine().scratch_dir()


def ensure_serializable(value: Any, what: str) -> None:
    """Raise SerializationError, naming the part at fault, if `value` can't be sent to a worker."""
    pack(value, what)
