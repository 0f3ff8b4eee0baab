"""Public functions of the runtime: `init`, `shutdown`, `put`, `get`, `wait`, `kill`, `cancel` and others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, overload

from trainkit.errors import AlreadyInitializedError, ArgumentTypeError, ConfigError
from trainkit.runtime import scheduling as groups
from trainkit.runtime import session, signals
from trainkit.runtime.calls.context import get_runtime_context
from trainkit.runtime.calls.options import method
from trainkit.runtime.calls.remote import ActorHandle, RemoteFunction, remote
from trainkit.runtime.context import SessionContext, promises
from trainkit.runtime.observability.listings import (
    available_resources,
    cluster_resources,
    get_gpu_ids,
    list_actors,
    list_objects,
    list_placement_groups,
    list_tasks,
    nodes,
)
from trainkit.runtime.refs import ObjectRef, ObjectRefGenerator
from trainkit.runtime.scheduling import PlacementGroup
from trainkit.runtime.serialize import pack
from trainkit.runtime.session import RAY_PRIVATE, engine_name, linked, renew, session_spec, shutdown
from trainkit.settings import PreemptSettings

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
    preempt_signals: Sequence[str] | None = None,
    stop_before_s: float | None = None,
    **private: Any,
) -> SessionContext:
    """Start the runtime. Without `init`, the first call that needs the runtime starts it with the defaults.

    In a worker, `init` has no effect, because the worker already belongs to a session. So a module that a
    worker imports may call `init`. After the block `with trainkit.init():`, the session ends.

    Args:
        address: address of a Ray cluster to run on, such as "auto" or "ray://host:10001"; or hosts on which
            to start Ray over SSH, such as "ssh://host1,host2"; or a pool of Slurm jobs, such as
            "slurm://?max_jobs=20". None means all nodes of the Slurm job if this
            program is its batch script, else this machine. "local" means this machine only.
        engine: "local" runs calls in forked processes of this machine. "inline" runs calls in this process,
            one after the other, for debuggers and fast tests. "ray" runs calls on Ray. Other packages can add
            engines by name. Default: "ray" with an `address` and on several nodes, else "local".
        num_cpus: number of CPUs to schedule; default: the CPUs that this process may use.
        num_gpus: number of GPUs to schedule; default: the GPUs that this process may see. More GPUs than
            exist are accepted, so that placement can be tried without hardware.
        resources: custom resources by name, such as {"licence": 2}.
        labels: labels of this machine, such as {"region": "eu"}, for `label_selector` and
            `NodeLabelSchedulingStrategy`.
        memory: bytes to schedule for requests with `memory=`; default: all memory of the machine.
        object_store_memory: bytes of memory that all large objects together may take, at least 1 MiB;
            default: three tenths of the machine's memory.
        object_spilling_directory: folder on disk for objects that do not fit in memory; default: the
            temporary folder, or /var/tmp if the temporary folder is in memory. False turns spilling off, so
            that a full store is an error.
        local_mode: equivalent to engine="inline".
        ignore_reinit_error: True to keep a running runtime unchanged instead of raising an error.
        include_dashboard: argument of `ray.init`. On other engines than Ray, the argument has no effect and
            logs a warning once. Arguments below that refer to `include_dashboard` also have no effect on
            other engines than Ray.
        dashboard_host: see `include_dashboard`.
        dashboard_port: see `include_dashboard`.
        job_config: see `include_dashboard`.
        configure_logging: False leaves the log level unchanged.
        logging_level: level of trainkit's log, such as "warning" or `logging.WARNING`.
        logging_format: see `include_dashboard`.
        logging_config: see `include_dashboard`.
        log_to_driver: True to print the workers' output lines in this program, with the worker's name
            and pid; None means True.
        namespace: namespace of this program's named actors; default: a namespace that all programs of a user
            share.
        runtime_env: dictionary with "env_vars", the environment variables for all workers, and "working_dir",
            the folder in which they run.
        enable_resource_isolation: see `include_dashboard`.
        cgroup_path: see `include_dashboard`.
        system_reserved_cpu: see `include_dashboard`.
        system_reserved_memory: see `include_dashboard`.
        proxy_server_url: see `include_dashboard`.
        preload: modules to import once before workers are forked from them, in addition to the well-known
            heavy modules that this process has imported. If `trainkit.init(preload=["torch"])` comes before
            the script's own imports, the script and the session import torch at the same time.
        preempt_signals: names of signals that announce the end of the job, from SIGTERM, SIGUSR1 and SIGUSR2.
            These signals end the program cleanly, as SIGTERM always does. If your program has its own handler
            for a signal, only this handler acts. Default: TRAINKIT_PREEMPT_SIGNALS, such as USR1,USR2, else
            SIGTERM only.
        stop_before_s: number of seconds before the end of the job at which the program ends as if by SIGTERM.
            SLURM_JOB_END_TIME or TRAINKIT_JOB_END_TIME gives the end of the job as Unix time. Default:
            TRAINKIT_STOP_BEFORE_S, else off.
        **private: arguments of Ray that begin with an underscore, such as `_temp_dir`. `_memory` means
            `memory`, and `_object_spilling_directory` means `object_spilling_directory`; for the other
            arguments, see `include_dashboard`.

    Returns:
        Data about the session, such as `context["node_id"]`.

    Raises:
        AlreadyInitializedError: the runtime is already running.
        ConfigError: an argument is invalid.
        MissingDependencyError: the Ray engine is requested and Ray is not installed.
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
        preempt = PreemptSettings.of(preempt_signals, stop_before_s)
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
        signals.configure(preempt)
        return SessionContext(session.begin(chosen, spec).address_info(), shutdown)


def is_initialized() -> bool:
    """Return True if the runtime is running in this process."""
    return session.running() is not None


def put(value: T) -> ObjectRef[T]:
    """Store `value` for other processes, in shared memory if it is large, and return a reference.

    Raises:
        SerializationError: the value can't be pickled. The message names the part that can't be pickled.
    """
    if isinstance(value, ObjectRef):
        raise ArgumentTypeError("put() takes no reference: pass the reference itself; any process can use it")
    return session.engine().put(value)


@overload
def get(refs: ObjectRef[T], *, timeout: float | None = None) -> T: ...
@overload
def get(refs: Sequence[ObjectRef[T]], *, timeout: float | None = None) -> list[T]: ...
def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Wait for one or several references and return their value or values.

    Args:
        refs: a reference, or a sequence of references.
        timeout: seconds to wait; None, or a number below 0 as in Ray, means no limit.

    Raises:
        TaskError: user code raised an exception. The error is also an instance of that exception's class.
        ActorDiedError, WorkerDiedError: the process that should have delivered the value ended.
        GetTimeoutError: `timeout` passed. The value can be requested again.
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
        refs: references without duplicates, or generators of references. A generator counts as done while its
            next reference or its end is available.
        num_returns: number of references to wait for.
        timeout: seconds to wait; None means no limit.
        fetch_local: no effect on one machine, where every value is local.

    Returns:
        At most `num_returns` done references, and the other references, both in the order of `refs`. A
        failed call counts as done.
    """
    generators: dict[int, Any] = {}
    # A list is tested first, because the check of an abstract class takes longer.
    if isinstance(refs, (list, Sequence)) and any(not isinstance(ref, ObjectRef) for ref in refs):
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
        raise ConfigError(f"wait(num_returns={num_returns}): give 1 to {len(checked)}, the number of refs")
    if len({ref.id for ref in checked}) != len(checked):
        raise ConfigError("wait() was given the same reference twice")
    ready, rest = session.engine().wait(checked, num_returns, timeout)
    if generators:
        ready, rest = ([generators.get(ref.id, ref) for ref in part] for part in (ready, rest))
    return ready, rest


def _require_seconds(verb: str, timeout: Any) -> None:
    if type(timeout) is bool or not isinstance(timeout, (int, float)):
        raise ArgumentTypeError(f"{verb}(timeout={timeout!r}): give seconds, or None for no limit")


def _checked(refs: Any, verb: str) -> list[ObjectRef[Any]]:
    if isinstance(refs, ObjectRef):
        raise ArgumentTypeError(f"{verb}() takes a list of references: give {verb}([ref])")
    sequence = isinstance(refs, (list, Sequence)) and not isinstance(refs, (str, bytes))
    listed: list[Any] = list(refs) if sequence else [None]
    for ref in listed:
        if not isinstance(ref, ObjectRef):
            raise ArgumentTypeError(f"{verb}() takes references from .remote() or put(), not {refs!r}")
    return listed


def kill(actor: Any, *, no_restart: bool = True) -> None:
    """End an actor's process and its descendants at once.

    Unfinished calls of the actor fail with ActorDiedError.

    Args:
        actor: handle of the actor.
        no_restart: False to restart the actor if its `max_restarts` allows a restart.
    """
    if not isinstance(actor, ActorHandle):
        raise ArgumentTypeError(f"kill() takes an actor's handle, not {actor!r}")
    session.engine().kill(actor._actor, no_restart)


def cancel(ref: Any, *, force: bool = False, recursive: bool = True) -> None:
    """Cancel the call that produces a result, so that `get` of the result raises TaskCancelledError.

    The effect depends on the call:

    - A call that has not begun never starts.
    - A running task receives one KeyboardInterrupt, so that its `finally` blocks run. If the task has its own
      SIGINT handler, this handler runs instead.
    - A generator is closed at its current `yield`.
    - A running `async def` method of an actor is cancelled like an asyncio task.
    - Any other running method continues.
    - A finished call keeps its result.

    Args:
        ref: a reference, or the generator of a streaming call.
        force: True to end the worker process of a running task. For actors, use `kill` instead.
        recursive: True to also cancel the calls that the task has started.

    Raises:
        ConfigError: `ref` is not a reference, or `force` is given for a call of an actor.
    """
    if not isinstance(ref, (ObjectRef, ObjectRefGenerator)):
        raise ArgumentTypeError(f"cancel() takes a reference, not {ref!r}")
    session.engine().cancel(ref, force, recursive)


def get_actor(name: str, namespace: str | None = None) -> Any:
    """Return the handle of a named actor of this session, or of a detached actor of any session of the user.

    To declare the actor's class for type checkers, write `counter: ActorProxy[Counter] =
    get_actor("counter")`, with `ActorProxy` from `trainkit.actor`.

    Args:
        name: name given to `.options(name=)`.
        namespace: namespace of the name; None means this session's namespace.

    Raises:
        ConfigError: no actor named `name` exists.
    """
    if not isinstance(name, str) or not name:
        raise ConfigError(f"get_actor({name!r}): give the name that .options(name=...) has set")
    return ActorHandle(*session.engine().find_actor(name, namespace))


def end_processes(function: RemoteFunction[..., Any]) -> None:
    """End the worker processes that the session keeps for a remote function, once the processes have finished
    their calls.

    Args:
        function: remote function, with the options of its earlier calls.
    """
    session.engine().end_processes(function._placement)


def exit_actor() -> NoReturn:
    """End the actor whose method calls this function.

    The running call and all later calls fail with ActorDiedError.

    Raises:
        ConfigError: the calling process is not an actor.
    """
    session.engine().exit_actor()


def placement_group(
    bundles: Sequence[Mapping[str, float]],
    strategy: str = "PACK",
    name: str = "",
    lifetime: str | None = None,
) -> PlacementGroup:
    """Reserve all of `bundles` together.

    The function returns before the resources are reserved; see `PlacementGroup.wait`.

    Args:
        bundles: one mapping of amounts per worker, such as [{"CPU": 1}, {"CPU": 1, "GPU": 1}].
        strategy: "PACK" uses few nodes, "SPREAD" many, "STRICT_PACK" only one, and "STRICT_SPREAD" a
            different node for each bundle. One machine is one node.
        name: name for `get_placement_group`.
        lifetime: "detached" keeps the group when this program ends.

    Raises:
        InfeasibleError: the bundles together exceed the existing resources, or the strategy can't be met.
        ConfigError: an argument is invalid, or the name is taken.
    """
    return groups.reserve(bundles, strategy, name, lifetime)


def get_placement_group(name: str) -> PlacementGroup:
    """Return the placement group named `name`; raise ConfigError if it does not exist."""
    return groups.find(name)


def remove_placement_group(group: PlacementGroup) -> None:
    """Free a group's bundles, and end all tasks and actors that run in them."""
    session.engine().release(group.id)


def get_current_placement_group() -> PlacementGroup | None:
    """Return the placement group in which this worker was started; None outside groups and in the driver."""
    engine = session.running()
    found = engine.current_group() if engine is not None else None
    if found is None:
        return None
    where, bundles = found
    return PlacementGroup(where.group, bundles)


def scratch_dir() -> Path:
    """Return a private folder that the session's processes share, and that is removed with the session."""
    return session.engine().scratch_dir()


def ensure_serializable(value: Any, what: str) -> None:
    """Raise SerializationError if `value` can't be sent to a worker.

    The message names the part that can't be pickled.
    """
    pack(value, what)
