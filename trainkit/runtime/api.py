"""The verbs: `init`, `shutdown`, `put`, `get`, `wait`, `kill` and what tells of the machine."""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast, overload

from trainkit.errors import ConfigError, NotInitializedError
from trainkit.resources import Bundle, normalize
from trainkit.runtime import current
from trainkit.runtime import placement_group as groups
from trainkit.runtime.engine import Engine
from trainkit.runtime.local import devices
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.runtime.remote import ActorHandle, remote
from trainkit.runtime.specs import ObjectRef

__all__ = [
    "available_resources",
    "cluster_resources",
    "ensure_serializable",
    "get",
    "get_current_placement_group",
    "get_gpu_ids",
    "init",
    "is_initialized",
    "kill",
    "placement_group",
    "put",
    "remote",
    "remove_placement_group",
    "scratch_dir",
    "shutdown",
    "wait",
]

T = TypeVar("T")

_current: Engine | None = None
_lock = threading.RLock()


def init(
    *,
    engine: str = "local",
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    resources: Mapping[str, float] | None = None,
    ignore_reinit_error: bool = False,
    log_to_driver: bool = True,
    preload: Sequence[str] = (),
) -> None:
    """Start the runtime; the first call that needs it does so by itself with the defaults.

    In a worker it has no effect: that is part of its session, and may import a module that calls this.

    Args:
        engine: "local" runs calls in forked processes of this machine; "inline" runs them in this
            process, in order, for a debugger and for fast tests.
        num_cpus: CPUs to share out; default, those this process may use.
        num_gpus: GPUs to share out; default, those this process may see. A number larger than the
            machine's is taken at its word, so that placement can be tried without hardware.
        resources: custom resources by name, such as {"licence": 2}.
        ignore_reinit_error: leave a running runtime as it is instead of raising.
        log_to_driver: print the workers' output lines here, with the name and pid of the worker.
        preload: modules that are imported once, and forked with every worker, besides those of the
            well-known heavy ones that this process has imported. Called before a script's own
            imports, as in `trainkit.init(preload=["torch"])`, both go on at the same time.

    Raises:
        ConfigError: it is running already, or an argument is wrong.
    """
    global _current
    with _lock:
        if _current is not None and _current.alive:
            if ignore_reinit_error or _current.is_worker:
                return
            raise ConfigError(
                "trainkit is already running; call shutdown() first, or pass ignore_reinit_error=True"
            )
        shutdown()  # of a session whose node died
        totals = normalize(
            {
                **(resources or {}),
                "CPU": devices.cpu_count() if num_cpus is None else num_cpus,
                "GPU": devices.gpu_count() if num_gpus is None else num_gpus,
            },
            what="init",
        )
        if totals.get("GPU", 0) != int(totals.get("GPU", 0)):
            raise ConfigError(f"num_gpus={num_gpus}: a machine has whole GPUs; actors may ask for fractions")
        _current = _start(engine, totals, log_to_driver, preload)
        atexit.register(shutdown)


def _start(engine: str, totals: Bundle, log_to_driver: bool, modules: Sequence[str]) -> Engine:
    if isinstance(modules, str) or not all(isinstance(module, str) for module in modules):
        raise ConfigError(f"preload={modules!r}: give a list of module names")
    for module in modules:
        if find_spec(module.partition(".")[0]) is None:
            raise ConfigError(f"preload={list(modules)!r}: there is no module {module!r} on sys.path")
    # Each engine is imported when it is chosen: the local one needs what only Linux has.
    if engine == "inline":
        inline = importlib.import_module("trainkit.runtime.inline")
        return cast("Engine", inline.InlineEngine(totals))
    if engine != "local":
        raise ConfigError(f"engine={engine!r}; there are 'local' and 'inline'")
    if sys.platform != "linux":
        raise ConfigError(
            f"the local engine needs Linux, and this is {sys.platform}; trainkit.init(engine='inline') runs "
            "everything in this process"
        )
    local = importlib.import_module("trainkit.runtime.local.client")
    return cast("Engine", local.LocalEngine.start(totals, log_to_driver, frozenset(modules)))


def adopt(engine: Engine) -> None:
    """Use `engine`, which exists already: how a worker process gets the verbs."""
    global _current
    _current = engine


def shutdown() -> None:
    """End all workers and free all objects; without effect if nothing is running."""
    global _current
    with _lock:
        if _current is not None:
            engine, _current = _current, None
            atexit.unregister(shutdown)
            engine.close()


def is_initialized() -> bool:
    """Whether the runtime is running in this process."""
    return _current is not None


def _engine() -> Engine:
    engine = _current
    if engine is None:
        with _lock:
            init(ignore_reinit_error=True)
            engine = _current
    if engine is None:
        raise NotInitializedError("the runtime was shut down by another thread while it was being started")
    engine.require_usable()
    return engine


current.bind(_engine)


def put(value: T) -> ObjectRef[T]:
    """Keep `value` for other processes; large ones are written to shared memory once.

    Raises:
        SerializationError: the value can't be pickled; the message names the part.
    """
    if isinstance(value, ObjectRef):
        raise ConfigError(
            "put() was given a reference: pass the reference itself on, it can be sent anywhere"
        )
    return _engine().put(value)


@overload
def get(refs: ObjectRef[T], *, timeout: float | None = None) -> T: ...
@overload
def get(refs: Sequence[ObjectRef[T]], *, timeout: float | None = None) -> list[T]: ...
def get(refs: Any, *, timeout: float | None = None) -> Any:
    """Wait for one reference or several and return the value or values.

    Args:
        refs: a reference, or a sequence of them.
        timeout: seconds; None waits as long as it takes.

    Raises:
        TaskError: user code raised; also an instance of the class it raised.
        ActorDiedError, WorkerDiedError: the process that owed the value ended.
        GetTimeoutError: `timeout` passed; the value can be asked for again.
    """
    if isinstance(refs, ObjectRef):
        return _engine().get([refs], timeout)[0]
    return _engine().get(_checked(refs, "get"), timeout)


def wait(
    refs: Sequence[ObjectRef[T]], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[ObjectRef[T]], list[ObjectRef[T]]]:
    """Wait until `num_returns` of `refs` are done, or `timeout` seconds have passed.

    Returns:
        The done ones, at most `num_returns`, and the rest; both in the order of `refs`. A failed
        call counts as done.
    """
    checked = _checked(refs, "wait")
    if not 1 <= num_returns <= len(checked):
        raise ConfigError(f"wait(num_returns={num_returns}) of {len(checked)} references")
    if len(set(checked)) != len(checked):
        raise ConfigError("wait() was given the same reference twice")
    return _engine().wait(checked, num_returns, timeout)


def _checked(refs: Any, verb: str) -> list[ObjectRef[Any]]:
    listed = list(refs) if isinstance(refs, Sequence) and not isinstance(refs, (str, bytes)) else None
    if listed is None or not all(isinstance(ref, ObjectRef) for ref in listed):
        raise ConfigError(
            f"{verb}() takes references, as .remote() and put() return them; it was given {refs!r}"
        )
    return listed


def kill(actor: ActorHandle) -> None:
    """End an actor and all its descendants at once; calls waiting on it fail with ActorDiedError."""
    if not isinstance(actor, ActorHandle):
        raise ConfigError(f"kill() takes an actor's handle, not {actor!r}")
    _engine().kill(actor._actor)


def placement_group(bundles: Sequence[Mapping[str, float]]) -> PlacementGroup:
    """Reserve `bundles`, all or none; returns at once, see `PlacementGroup.wait`.

    Args:
        bundles: one mapping of amounts a worker, such as [{"CPU": 1}, {"CPU": 1, "GPU": 1}].

    Raises:
        InfeasibleError: together they exceed the machine.
    """
    return groups.reserve(bundles)


def remove_placement_group(group: PlacementGroup) -> None:
    """Give the bundles back; what runs in them is ended."""
    _engine().release(group.id)


def get_current_placement_group() -> PlacementGroup | None:
    """The group that this worker was started in; None in the driver and outside any group."""
    engine = _current
    found = engine.current_group() if engine is not None else None
    if found is None:
        return None
    where, bundles = found
    return PlacementGroup(where.group, bundles)


def cluster_resources() -> dict[str, float]:
    """All resources of the session, such as {"CPU": 4.0}."""
    return dict(_engine().cluster_resources())


def available_resources() -> dict[str, float]:
    """The resources that nobody holds now."""
    return dict(_engine().available_resources())


def get_gpu_ids() -> list[int]:
    """Indices of the GPUs given to this worker, as the machine counts them."""
    return _engine().gpu_ids()


def scratch_dir() -> Path:
    """A private folder for files that the session's processes share; it goes with the session."""
    return _engine().scratch_dir()


def ensure_serializable(value: Any, what: str) -> None:
    """Raise SerializationError, naming the part at fault, if `value` can't be sent to a worker."""
    _engine().ensure_serializable(value, what)
