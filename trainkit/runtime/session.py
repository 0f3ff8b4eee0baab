"""Current engine of a process, idle sessions kept between searches, and the environment of workers."""

from __future__ import annotations

import atexit
import contextlib
import logging
import numbers
import os
import sys
import threading
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from trainkit.errors import (
    ArgumentTypeError,
    ConfigError,
    MissingDependencyError,
    NodeDiedError,
    NotInitializedError,
)
from trainkit.registry import Registry, added
from trainkit.resources import checked_names, normalize
from trainkit.runtime import signals
from trainkit.runtime.engine import Engine, default_engine
from trainkit.runtime.labels import checked_labels
from trainkit.runtime.local.system import boot, devices
from trainkit.runtime.specs import SessionSpec
from trainkit.settings import ELSEWHERE, default_namespace

starting = threading.RLock()
"""Lock held while an engine is started or closed."""

leaving: set[str] = set()
"""Ids of actors whose nodes are about to end, for users of the actors. Engines' plugins add ids."""

_current: Engine | None = None
_is_closing = False
_started: tuple[str, SessionSpec] | None = None
_links: dict[Path, Path] = {}
_at_end: list[weakref.WeakMethod[Callable[[], None]]] = []
_before_end: list[Callable[[], None]] = []

PARKED_S = 300.0
"""Seconds that a search's session is kept for the next search, as long as joblib keeps its idle workers."""


class _Parked(NamedTuple):
    """Parked session, which is an idle session kept for a later `begin`.

    While a session is parked, no engine is current.
    """

    engine: Engine
    started: tuple[str, SessionSpec]
    variables: Mapping[str, str]
    pid: int
    timer: threading.Timer

    def taken(self) -> Engine:
        """Return the engine, and cancel the timer that would end the session."""
        self.timer.cancel()
        return self.engine


_parked: _Parked | None = None


def current() -> Engine | None:
    """Return the engine of this process, even while the engine is being closed; None if no engine exists."""
    return _current


def running() -> Engine | None:
    """Return the engine of this process; None if no engine exists or it is being closed."""
    return None if _is_closing else _current


def engine() -> Engine:
    """Return the running engine; start an engine with the defaults if none is running.

    Raises:
        ObjectLostError: this process was forked from the engine's process.
    """
    found = _current
    if found is None or _is_closing:
        with starting:
            found = running() or begin(engine_name(None, None, False), session_spec())
    found.require_usable()
    return found


def put_again(value: Any) -> Any:
    """Store the value of an unpickled reference, and return a new reference.

    The user's pickles call this function.
    """
    return engine().put(value)


def begin(name: str, spec: SessionSpec) -> Engine:
    """Make the engine of a parked session with the same settings current, or else start a new engine.

    A new engine replaces an engine whose node has died.
    """
    global _current, _started
    config = spec.extra.get("_system_config", {})
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"_system_config must be a dictionary, not {config!r}")
    with starting:
        if name != "ray":  # the other engines do not use Ray's arguments
            _warn_of_system_config(name, config)
            _heed_logging(spec.extra)
            _tell_of_no_effect(name, spec.extra)
            # Parked sessions are compared by their settings, so settings without effect are left out.
            spec = replace(spec, extra={})
        sigterm = signals.is_default()  # checked before the Ray engine installs its own SIGTERM handler
        found = _unpark(name, spec)
        if found is None:
            shutdown()
            found = start(name, spec)
        _current, _started = found, (name, spec)
        if {"near", "isolation"} <= found.promises:  # it has other processes, on this machine
            signals.tell_session(found.scratch_dir())
        signals.take_over(sigterm)
        atexit.register(shutdown)
        return found


def adopt(engine: Engine) -> None:
    """Make the existing `engine` current, as worker processes do."""
    global _current
    _current = engine


def shutdown() -> None:
    """End all workers and free all objects, even of a parked session. Do nothing if no session exists."""
    try:
        for function in _before_end:
            function()
    finally:
        _close()


def _close() -> None:
    global _current, _is_closing, _parked
    with starting:
        closing = _current
        if _parked is not None:
            closing, _parked = _parked.taken(), None
        if closing is None or _is_closing:
            return
        _current, _is_closing = closing, True
        atexit.unregister(shutdown)
        try:
            closing.close()
        finally:
            _current, _is_closing = None, False
            signals.give_back()
            methods, _at_end[:] = [held() for held in _at_end], []
        for method in methods:
            if method is not None:
                method()


def park() -> None:
    """Park the current session for the next `begin` with the same settings. End it after `PARKED_S`.

    The session must be idle. While the session is parked, the program has no current session. A `begin` with
    different settings ends the parked session. In a process of `multiprocessing` or joblib, the session ends
    at once, because perhaps no further search follows.
    """
    from multiprocessing import parent_process

    global _current, _parked
    with starting:
        serves = parent_process() is not None or any(each() for each in _at_end)
        if _current is None or _started is None or not _current.alive or serves:
            shutdown()
            return
        timer = threading.Timer(PARKED_S, _end_parked)
        timer.daemon = True
        _parked = _Parked(_current, _started, dict(os.environ), os.getpid(), timer)
        _current = None
        signals.give_back()
        timer.start()


def _unpark(name: str, spec: SessionSpec) -> Engine | None:
    """Return the parked session if this process has parked it and its settings and environment variables are
    the same.
    """
    global _parked
    if _parked is None:
        return None
    found = _parked.taken()
    same = _parked.started == (name, spec) and _parked.variables == dict(os.environ)
    if not same or _parked.pid != os.getpid() or not found.alive:
        return None
    _parked = None
    return found


def _end_parked() -> None:
    with starting:
        if _parked is not None and _parked.timer is threading.current_thread():
            shutdown()


def before_end(function: Callable[[], None]) -> None:
    """Call `function`, which may wait for calls, before a session of this process or this worker ends."""
    if function not in _before_end:
        _before_end.append(function)
        atexit.register(function)  # a worker process does not end its session


def at_end(method: Callable[[], None]) -> None:
    """Call a method of an object after the session has ended, if the object still exists then."""
    _at_end[:] = [held for held in _at_end if held() is not None]
    _at_end.append(weakref.WeakMethod(method))


def renew() -> None:
    """Start a session with the settings of the current session if its node has died. Otherwise do nothing.

    Raises:
        NotInitializedError: the session was shut down, or this process is a worker.
        NodeDiedError: the node of the new session has died too. A further call may succeed.
    """
    global _current
    with starting:
        if _current is None or _current.is_worker or _started is None:
            raise NotInitializedError("the session has ended, and this process cannot start a new session")
        if _current.alive:
            return
        _current.close()
        _current = start(*_started)  # if the start fails, the next call tries again
        for folder in _links:
            _link(_current, folder)


@contextlib.contextmanager
def linked(folder: Path) -> Iterator[None]:
    """Let the session remove `folder` if this process is killed inside the `with` block.

    The caller removes the folder inside the block. If the process is killed before the end of the block, the
    session removes the rest of the folder.
    """
    with contextlib.suppress(NodeDiedError):
        # If the node has died, a later session that replaces this session gets the link.
        _link(engine(), folder)
    try:
        yield
    finally:
        _links.pop(folder).unlink(missing_ok=True)  # if the session was killed, the link is gone already


def _link(engine: Engine, folder: Path) -> None:
    _links[folder] = link = engine.scratch_dir() / ELSEWHERE / f"{os.getpid()}-{folder.name}"
    try:
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(folder)
    except OSError:
        engine.require_node()  # if the node has died, the session's folder is missing
        raise


class SessionWatch:
    """Observer of the session that runs some work, and of each session that replaces it after a loss."""

    def __init__(self) -> None:
        self._engine = engine()

    def is_current(self) -> bool:
        """Return True if this session is still the program's current session and its node is alive."""
        return running() is self._engine and self.loss() is None

    def loss(self) -> NodeDiedError | None:
        """Check the node. Return the error if the node has died, None if it is alive."""
        try:
            self._engine.require_node()
        except NodeDiedError as error:
            return error
        return None

    def renew(self) -> None:
        """Continue in a new session with the same settings.

        Raises:
            NotInitializedError: the session was shut down, or this process is a worker, which ends with its
                node.
            NodeDiedError: the node of the new session has died too. A further call may succeed.
        """
        renew()
        self._engine = engine()


_OFFERED = ("env_vars", "working_dir")


@dataclass(frozen=True)
class Environment:
    """Additions to a worker's environment.

    Attributes:
        variables: environment variables.
        working_dir: absolute path of the folder to run in; None means the program's folder.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None


def environment_of(env: Mapping[str, str], runtime_env: Mapping[str, Any] | None) -> Environment:
    """Return `env` and `runtime_env` merged.

    Raises:
        ConfigError: a value is not a string, or `runtime_env` has an unsupported entry.
    """
    if runtime_env is not None and not isinstance(runtime_env, Mapping):
        raise ArgumentTypeError(f"runtime_env must be a dict like {{'env_vars': {{}}}}, not {runtime_env!r}")
    asked = dict(runtime_env or {})
    unknown = sorted(set(asked) - set(_OFFERED))
    if unknown:
        raise ConfigError(
            f"runtime_env does not support {', '.join(unknown)}; it supports {', '.join(_OFFERED)}. Workers "
            "use the program's own packages: install missing packages in its environment."
        )
    variables = {**(asked.get("env_vars") or {}), **env}
    wrong = {name: value for name, value in variables.items() if {type(name), type(value)} != {str}}
    if wrong:
        raise ArgumentTypeError(f"env holds {wrong!r}: names and values must be strings")
    folder = asked.get("working_dir")
    if folder is not None:
        folder = os.path.abspath(folder)
        if not os.path.isdir(folder):
            raise ConfigError(f"runtime_env working_dir={folder!r} is not a folder")
    return Environment(variables, folder)


@contextlib.contextmanager
def inside(folder: str | None) -> Iterator[None]:
    """Run the `with` block in `folder`, with `folder` first on `sys.path`. None changes nothing."""
    if folder is None:
        yield
        return
    sys.path.insert(0, folder)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


PRELOADS = {
    "numpy": ("numpy", "numpy.random"),
    "pandas": ("pandas",),
    "sklearn": ("sklearn", "sklearn.base", "sklearn.utils"),
    "torch": ("numpy.random", "torch"),
    "torch._dynamo": ("torch._dynamo", "trainkit.train.workers.worker", "trainkit.train.torch.trial"),
}
"""Modules that a template process imports before it forks, by name of the set; "torch" includes NumPy."""

SLOW = {"torch", "torch._dynamo"} | {row.target for row in added("trainkit.slow_preloads").values()}
"""Names of the sets whose import takes about a second; any other set takes tenths of a second."""

HEAVY = SLOW | {"pandas", "sklearn"}
"""Packages for which a template process is started as soon as a worker has imported them."""

# Every optimizer imports `torch._dynamo` on first use, so workers that need torch import both in advance.
_when_imported = {name: name for name in PRELOADS} | {"torch._dynamo": "torch"}
_when_imported |= {row.target: row.target for row in added("trainkit.preloads").values()}


def register(module: str, when: str | None = None) -> None:
    """Register a module to be preloaded for the workers of each process that has imported it.

    Args:
        module: module to import in the template process.
        when: module that the process has imported; None means `module`.
    """
    _when_imported[module] = when or module


def wanted(imported: Container[str] = sys.modules) -> frozenset[str]:
    """Return the names of the sets to preload for workers, based on the modules in `imported`."""
    found = frozenset(name for name, module in _when_imported.items() if module in imported)
    return found - {"numpy"} if "torch" in found else found


class _Watcher:
    """Import hook that only reports imports of heavy packages."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in HEAVY:
            self._tell(name)


def watch(tell: Callable[[str], None]) -> None:
    """Call `tell` with the name of each heavy package when this process begins to import the package."""
    sys.meta_path.insert(0, _Watcher(tell))


def at_start(asked: frozenset[str]) -> list[frozenset[str]]:
    """Return the sets of imports, `asked` included, to start before the first worker is requested."""
    found = wanted()
    # Programs with searches over estimators will need workers, whose imports take most of a second.
    searches = "trainkit.sklearn.trials" in found and not found & SLOW
    first = asked | (found if searches else found & SLOW)
    return [first] if first else []


ENGINES = Registry(
    "engine",
    {
        "inline": "trainkit.runtime.inline.engine:InlineEngine",
        "local": "trainkit.runtime.local.client.engine:LocalEngine",
    },
)
"""Engines by name. Other packages add engines by entry points."""
RAY_PRIVATE = frozenset(
    {
        "_driver_object_store_memory",
        "_memory",
        "_metrics_export_port",
        "_node_ip_address",
        "_node_name",
        "_object_spilling_directory",
        "_plasma_directory",
        "_redis_password",
        "_redis_username",
        "_skip_env_hook",
        "_system_config",
        "_temp_dir",
        "_tracing_startup_hook",
    }
)
"""Arguments of `ray.init` that its signature does not show."""
_NOT_HERE = (
    "include_dashboard",
    "dashboard_host",
    "dashboard_port",
    "job_config",
    "logging_format",
    "logging_config",
    "enable_resource_isolation",
    "cgroup_path",
    "system_reserved_cpu",
    "system_reserved_memory",
    "proxy_server_url",
    *sorted(RAY_PRIVATE - {"_memory", "_object_spilling_directory", "_system_config"}),
)
"""Arguments of `ray.init` that only Ray uses."""
_LEAST_STORE_BYTES = 1 << 20
"""Minimum size of the object store, with room for a few of its smallest values of 256 KiB each."""
_SYSTEM_CONFIG_HERE = {
    "object_spilling_config": "object_spilling_directory='...'",
    "automatic_object_spilling_enabled": "object_spilling_directory=False",
}
"""Settings of Ray's own processes, and the equivalent argument of `init`."""

_logger = logging.getLogger(__name__)


def engine_name(engine: str | None, address: str | None, local_mode: bool) -> str:
    """Return the name of the engine that the arguments of `init` select.

    Raises:
        ConfigError: the arguments contradict each other.
    """
    remote = address not in (None, "local")
    if engine is None:
        engine = "ray" if remote else "inline" if local_mode else address or default_engine()
    if engine not in ENGINES.own_names():
        ENGINES.get(engine)
    if remote and engine in ("local", "inline"):
        raise ConfigError(f"address={address!r} needs engine='ray', not engine={engine!r}")
    if local_mode and engine != "inline":
        raise ConfigError(f"local_mode=True needs engine='inline', not engine={engine!r}")
    return engine


def session_spec(
    *,
    address: str | None = None,
    num_cpus: float | None = None,
    num_gpus: int | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    memory: float | None = None,
    object_store_memory: float | None = None,
    object_spilling_directory: str | os.PathLike[str] | Literal[False] | None = None,
    log_to_driver: bool = True,
    namespace: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    preload: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> SessionSpec:
    """Return the settings of a session from the arguments of `init`, validated and with defaults.

    Raises:
        ConfigError: an argument is invalid.
    """
    totals = normalize(
        {
            **checked_names(resources, what="init(resources=)"),
            "CPU": devices.cpu_count() if num_cpus is None else num_cpus,
            "GPU": devices.gpu_count() if num_gpus is None else num_gpus,
            "memory": devices.memory_bytes() if memory is None else memory,
        },
        what="init",
    )
    if totals.get("GPU", 0) != int(totals.get("GPU", 0)):
        raise ConfigError(f"num_gpus must be whole GPUs, not {num_gpus}; tasks and actors may use fractions")
    _check_store(object_store_memory)
    _check_logging_level((extra or {}).get("logging_level"))
    if namespace is not None and not isinstance(namespace, str):
        raise ArgumentTypeError(f"namespace must be a string, or None for the shared one, not {namespace!r}")
    if isinstance(preload, str) or not all(isinstance(module, str) for module in preload):
        raise ArgumentTypeError(f"preload must be a list of module names, not {preload!r}")
    for module in preload:
        if find_spec(module.partition(".")[0]) is None:
            raise ConfigError(f"preload={list(preload)!r}: the module {module!r} is not on sys.path")
    environment = environment_of({}, runtime_env)
    given = {
        "num_cpus": num_cpus,
        "num_gpus": num_gpus,
        "resources": resources,
        "labels": labels,
        "memory": memory,
    }
    return SessionSpec(
        totals=totals,
        labels=checked_labels(labels, "init(labels=)"),
        namespace=namespace or default_namespace(),
        log_to_driver=log_to_driver,
        preload=frozenset(preload) | wanted(preload),
        environment=environment.variables,
        working_dir=environment.working_dir,
        object_store_bytes=None if object_store_memory is None else int(object_store_memory),
        object_spilling_directory=_folder(object_spilling_directory),
        address=address,
        extra={name: value for name, value in {**(extra or {}), **given}.items() if value is not None},
    )


def _check_store(size: Any) -> None:
    if size is None:
        return
    is_number = isinstance(size, numbers.Real) and not isinstance(size, bool)
    if not is_number:
        raise ArgumentTypeError(f"object_store_memory must be a number of bytes, not {size!r}")
    if not _LEAST_STORE_BYTES <= size < 1 << 63:
        raise ConfigError(
            f"object_store_memory must be at least {_LEAST_STORE_BYTES} bytes (1 MiB, room for a few of the "
            f"smallest objects) and less than 2**63, not {size}"
        )


def _check_logging_level(level: Any) -> None:
    if level is None or (isinstance(level, int) and not isinstance(level, bool)):
        return
    if not isinstance(level, str):
        raise ArgumentTypeError(f"logging_level must be a name such as 'warning', or a number, not {level!r}")
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        raise ConfigError(f"logging_level must be {', '.join(names).lower()}, or a number, not {level!r}")


def _warn_of_system_config(engine: str, settings: Mapping[Any, Any]) -> None:
    """Warn that settings of Ray's own processes have no effect, and name the equivalent arguments."""
    instead = [f"init({here}) for {name}" for name, here in _SYSTEM_CONFIG_HERE.items() if name in settings]
    if settings:
        _logger.warning(
            "init(_system_config=...) has no effect on the %s engine: %s are settings of Ray's own "
            "processes%s",
            engine,
            ", ".join(map(str, settings)),
            f". Use {', '.join(instead)}" if instead else "",
        )


def _heed_logging(extra: Mapping[str, Any]) -> None:
    """Set the level of trainkit's log, unless the program configures logging itself."""
    level = extra.get("logging_level")
    if level is not None and extra.get("configure_logging") is not False:
        logging.getLogger("trainkit").setLevel(level.upper() if isinstance(level, str) else level)


_told: set[str] = set()


def _tell_of_no_effect(engine: str, extra: Mapping[str, Any]) -> None:
    """Warn once about each argument of Ray that is not False and has no effect on this engine."""
    asked = [name for name in _NOT_HERE if extra.get(name) not in (None, False) and name not in _told]
    if asked:
        _told.update(asked)
        dashboard = ". For a dashboard run `trainkit dashboard`" if "include_dashboard" in asked else ""
        _logger.warning(
            "init(%s) has no effect on the %s engine, only on Ray's%s", ", ".join(asked), engine, dashboard
        )


def _folder(asked: str | os.PathLike[str] | Literal[False] | None) -> str | Literal[False] | None:
    if asked is None or asked is False:
        return asked
    if not isinstance(asked, (str, os.PathLike)) or not os.fspath(asked):
        raise ConfigError(f"object_spilling_directory must be a folder or False (no spilling), not {asked!r}")
    return os.fspath(asked)


def start(name: str, spec: SessionSpec) -> Engine:
    """Start the engine named `name`.

    The engine's module is imported only when the engine is used, because some machines can't import it.

    Raises:
        ConfigError: the engine can't run on this platform.
        MissingDependencyError: the engine needs a package that is not installed.
    """
    if name == "ray" and find_spec("ray") is None:
        raise MissingDependencyError.of("the Ray engine needs Ray", "ray")
    if name == "local" and sys.platform != "linux":
        raise ConfigError(
            f"the local engine needs Linux, and this is {sys.platform}; trainkit.init(engine='inline') runs "
            "everything in this process"
        )
    # The node process of the local engine starts while this process still loads code.
    with boot.begun() if name == "local" else contextlib.nullcontext():
        started: Engine = ENGINES.get(name).start(spec)
    return started
