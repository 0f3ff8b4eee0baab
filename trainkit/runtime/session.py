"""The current engine: how `init` chooses and starts it, and the environment that its workers get."""

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
from trainkit.registry import Registry
from trainkit.resources import checked_names, normalize
from trainkit.runtime import signals
from trainkit.runtime.engine import Engine
from trainkit.runtime.local.system import boot, devices
from trainkit.runtime.placement import checked_labels
from trainkit.runtime.specs import SessionSpec
from trainkit.settings import ELSEWHERE, default_namespace

starting = threading.RLock()
"""Held while an engine is started or closed."""

_current: Engine | None = None
_is_closing = False
_started: tuple[str, SessionSpec] | None = None
_links: dict[Path, Path] = {}
_at_end: list[weakref.WeakMethod[Callable[[], None]]] = []

PARKED_S = 300.0
"""Seconds for which a session that a search has begun waits for the next search, as joblib's workers do."""


class _Parked(NamedTuple):
    """A session that waits; no engine is current meanwhile."""

    engine: Engine
    started: tuple[str, SessionSpec]
    variables: Mapping[str, str]
    pid: int
    timer: threading.Timer

    def taken(self) -> Engine:
        """Return the engine, which waits no longer."""
        self.timer.cancel()
        return self.engine


_parked: _Parked | None = None


def current() -> Engine | None:
    """Return the engine of this process, also while it is being closed; None if there is none."""
    return _current


def running() -> Engine | None:
    """Return the engine of this process unless it is being closed; None if there is none."""
    return None if _is_closing else _current


def engine() -> Engine:
    """Return the running engine; start one with the defaults if there is none.

    Raises:
        ObjectLostError: this process was forked from the engine's own.
    """
    found = _current
    if found is None or _is_closing:
        with starting:
            found = running() or begin(engine_name(None, None, False), session_spec())
    found.require_usable()
    return found


def put_again(value: Any) -> Any:
    """Return a reference to the value of one that was pickled by hand, and comes back by this."""
    return engine().put(value)


def begin(name: str, spec: SessionSpec) -> Engine:
    """Make an engine of that name the current one: the same one if it waits for a search, or else a new one.

    A new one takes the place of one whose node has died.
    """
    global _current, _started
    config = spec.extra.get("_system_config", {})
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"_system_config={config!r}: give a dictionary")
    with starting:
        if name != "ray":  # the rest has no use for Ray's arguments
            _warn_of_system_config(name, config)
            _heed_logging(spec.extra)
            _tell_of_no_effect(name, spec.extra)
            spec = replace(spec, extra={})  # a session that waits is compared by what engines heed
        takes_over = signals.is_default()  # the Ray engine would put a handler of its own in place
        found = _unpark(name, spec)
        if found is None:
            shutdown()
            found = start(name, spec)
        _current, _started = found, (name, spec)
        if takes_over:
            signals.take_over()
        atexit.register(shutdown)
        return found


def adopt(engine: Engine) -> None:
    """Make `engine`, which exists already, the current one: a worker process does so."""
    global _current
    _current = engine


def shutdown() -> None:
    """End all workers and free all objects, those that wait for a search too; nothing if there are none."""
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
    """Have the current session wait for the next `begin` of the same, and end if none comes, or another.

    Nothing may be left in it. Until then no session runs, as far as the program can tell. A process of
    `multiprocessing` or joblib ends it, as it may never hear of another search.
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
    """Return the session that waits if it is as asked for, in this very process."""
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


def at_end(method: Callable[[], None]) -> None:
    """Call a method of an object once the session has ended, if the object is there by then."""
    _at_end[:] = [held for held in _at_end if held() is not None]
    _at_end.append(weakref.WeakMethod(method))


def renew() -> None:
    """Start a session like the one whose node has died; without effect if that has been done.

    Raises:
        NotInitializedError: there is none to go on with: it was shut down, or this is a worker of it.
        NodeDiedError: the node of the new one has died too; call this again.
    """
    global _current
    with starting:
        if _current is None or _current.is_worker or _started is None:
            raise NotInitializedError("the session has ended, and no other can take its place here")
        if _current.alive:
            return
        _current.close()
        _current = start(*_started)  # if that fails, the next call tries it again
        for folder in _links:
            _link(_current, folder)


@contextlib.contextmanager
def linked(folder: Path) -> Iterator[None]:
    """Have `folder` removed with the session if this process is killed before the block has ended.

    Remove it in the block: one who is killed as he removes it leaves the rest to the session.
    """
    with contextlib.suppress(NodeDiedError):  # the session that follows has the link
        _link(engine(), folder)
    try:
        yield
    finally:
        _links.pop(folder).unlink(missing_ok=True)  # gone already where the session was killed


def _link(engine: Engine, folder: Path) -> None:
    _links[folder] = link = engine.scratch_dir() / ELSEWHERE / f"{os.getpid()}-{folder.name}"
    try:
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(folder)
    except OSError:
        engine.require_node()  # its folder goes with it
        raise


class SessionWatch:
    """The session that some work runs in, and those that take its place when its node dies."""

    def __init__(self) -> None:
        self._engine = engine()

    def is_current(self) -> bool:
        """Return whether this program's session is still this one, and its node is there."""
        return running() is self._engine and self.loss() is None

    def loss(self) -> NodeDiedError | None:
        """Ask whether the node is there; return what has become of it if it is not."""
        try:
            self._engine.require_node()
        except NodeDiedError as error:
            return error
        return None

    def renew(self) -> None:
        """Go on in a new session, started as the one before.

        Raises:
            NotInitializedError: the session was shut down, or this is a worker, which ends with its node.
            NodeDiedError: the node of the new one has died too; call this again.
        """
        renew()
        self._engine = engine()


_OFFERED = ("env_vars", "working_dir")


@dataclass(frozen=True)
class Environment:
    """Additions to what a worker sees.

    Attributes:
        variables: environment variables.
        working_dir: absolute path of the folder to run in; None keeps the program's.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None


def environment_of(env: Mapping[str, str], runtime_env: Mapping[str, Any] | None) -> Environment:
    """`env` and `runtime_env` as one.

    Raises:
        ConfigError: a value is no string, or `runtime_env` asks for what is not offered.
    """
    if runtime_env is not None and not isinstance(runtime_env, Mapping):
        raise ArgumentTypeError(
            f"runtime_env={runtime_env!r}: give a dictionary, such as {{'env_vars': {{}}}}"
        )
    asked = dict(runtime_env or {})
    unknown = sorted(set(asked) - set(_OFFERED))
    if unknown:
        raise ConfigError(
            f"runtime_env holds {', '.join(unknown)}; offered are {', '.join(_OFFERED)}. Workers of this "
            "machine run with the program's own packages: install what is missing beside it."
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
    """Run in `folder`, with its modules first on `sys.path`; None changes nothing."""
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


RANKS = "trainkit.train.torch.script"
"""Module that a rank of a script is forked with; it loads nothing that only trainers use."""

PRELOADS = {
    "numpy": ("numpy", "numpy.random"),
    "pandas": ("pandas",),
    "sklearn": ("sklearn", "sklearn.base", "sklearn.utils"),
    "torch": ("numpy.random", "torch"),
    "torch._dynamo": ("torch._dynamo", "trainkit.train.workers.worker", "trainkit.train.torch.trial"),
    RANKS: ("numpy.random", "torch", "torch._dynamo", RANKS),
}
"""Modules that a template imports before it forks, by the name of the set; that of torch has NumPy's."""

SLOW = frozenset({"torch", "torch._dynamo", RANKS})
"""Those that take a second to import, where the rest takes tenths."""

HEAVY = SLOW | {"pandas", "sklearn"}
"""Packages that are worth a template as soon as a worker has imported them by itself."""

# Every optimizer imports `torch._dynamo` on its first use, so who has torch is taken to want it, too.
_when_imported = {name: name for name in PRELOADS} | {"torch._dynamo": "torch"}


def register(module: str) -> None:
    """Have `module` imported beforehand for the workers of a process that has imported it itself."""
    _when_imported[module] = module


def wanted(imported: Container[str] = sys.modules) -> frozenset[str]:
    """Return the imports that workers will want, judged by the imports of this process, or by `imported`."""
    found = frozenset(name for name, module in _when_imported.items() if module in imported)
    return found - {"numpy"} if "torch" in found else found


class _Watcher:
    """Finds no module, but is asked first for each one."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in HEAVY:
            self._tell(name)


def watch(tell: Callable[[str], None]) -> None:
    """Call `tell` with each heavy package when this process begins to import it."""
    sys.meta_path.insert(0, _Watcher(tell))


def at_start(asked: frozenset[str]) -> list[frozenset[str]]:
    """Return the sets of imports to begin with before the first worker is requested.

    Args:
        asked: the user's own wish.
    """
    return [first] if (first := asked | (wanted() & SLOW)) else []


ENGINES = Registry(
    "engine",
    {
        "inline": "trainkit.runtime.inline.engine:InlineEngine",
        "local": "trainkit.runtime.local.client.engine:LocalEngine",
        "ray": "trainkit.runtime.ray.engine:RayEngine",
    },
)
"""One row for each; other packages add theirs by entry points."""
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
"""Arguments of `ray.init` that its signature doesn't show."""
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
"""Arguments of `ray.init` that have a meaning on Ray alone."""
_LEAST_STORE_BYTES = 1 << 20
"""Room for a few of the smallest values that go to the object store, which have 256 KiB."""
_SYSTEM_CONFIG_HERE = {
    "object_spilling_config": "object_spilling_directory='...'",
    "automatic_object_spilling_enabled": "object_spilling_directory=False",
}
"""Settings of Ray's own processes, and the argument of `init` that says the same here."""

_logger = logging.getLogger(__name__)


def engine_name(engine: str | None, address: str | None, local_mode: bool) -> str:
    """Which engine the arguments of `init` ask for.

    Raises:
        ConfigError: they contradict each other.
    """
    remote = address not in (None, "local")
    if engine is None:
        engine = "ray" if remote else "inline" if local_mode else "local"
    if engine not in ENGINES.own_names():
        ENGINES.get(engine)
    if remote and engine in ("local", "inline"):
        raise ConfigError(f"address={address!r} needs engine='ray', and engine={engine!r} was asked for")
    if local_mode and engine != "inline":
        raise ConfigError(f"local_mode=True is engine='inline', and engine={engine!r} was asked for")
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
    """The arguments of `init`, checked and with their defaults; see there.

    Raises:
        ConfigError: an argument is wrong.
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
        raise ConfigError(f"num_gpus={num_gpus}: a machine has whole GPUs; actors may ask for fractions")
    _check_store(object_store_memory)
    _check_logging_level((extra or {}).get("logging_level"))
    if namespace is not None and not isinstance(namespace, str):
        raise ArgumentTypeError(f"namespace={namespace!r}: give a text, or None for the one of all programs")
    if isinstance(preload, str) or not all(isinstance(module, str) for module in preload):
        raise ArgumentTypeError(f"preload={preload!r}: give a list of module names")
    for module in preload:
        if find_spec(module.partition(".")[0]) is None:
            raise ConfigError(f"preload={list(preload)!r}: there is no module {module!r} on sys.path")
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
        raise ArgumentTypeError(f"object_store_memory={size!r}: give a number of bytes")
    if not _LEAST_STORE_BYTES <= size < 1 << 63:
        raise ConfigError(
            f"object_store_memory={size}: give at least {_LEAST_STORE_BYTES} bytes (1 MiB), which have room "
            "for a few of the smallest values that go there, and less than 2**63"
        )


def _check_logging_level(level: Any) -> None:
    if level is None or (isinstance(level, int) and not isinstance(level, bool)):
        return
    if not isinstance(level, str):
        raise ArgumentTypeError(f"logging_level={level!r}: give a name such as 'warning', or a number")
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        raise ConfigError(f"logging_level={level!r}: give one of {', '.join(names).lower()}, or a number")


def _warn_of_system_config(engine: str, settings: Mapping[Any, Any]) -> None:
    """Say that settings of Ray's own processes have no effect, and what has."""
    instead = [f"{here} for {name}" for name, here in _SYSTEM_CONFIG_HERE.items() if name in settings]
    if settings:
        _logger.warning(
            "init(_system_config=...) has no effect on the %s engine: %s are settings of Ray's own "
            "processes%s",
            engine,
            ", ".join(map(str, settings)),
            f"; give init({', '.join(instead)})" if instead else "",
        )


def _heed_logging(extra: Mapping[str, Any]) -> None:
    """Set the level of trainkit's log, unless the program configures logging itself."""
    level = extra.get("logging_level")
    if level is not None and extra.get("configure_logging") is not False:
        logging.getLogger("trainkit").setLevel(level.upper() if isinstance(level, str) else level)


_told: set[str] = set()


def _tell_of_no_effect(engine: str, extra: Mapping[str, Any]) -> None:
    """Say once which arguments of Ray's have no meaning on an engine; what is off is off here too."""
    asked = [name for name in _NOT_HERE if extra.get(name) not in (None, False) and name not in _told]
    if asked:
        _told.update(asked)
        dashboard = "; `trainkit dashboard` serves one" if "include_dashboard" in asked else ""
        _logger.warning(
            "init(%s): Ray's own, without effect on the %s engine%s", ", ".join(asked), engine, dashboard
        )


def _folder(asked: str | os.PathLike[str] | Literal[False] | None) -> str | Literal[False] | None:
    if asked is None or asked is False:
        return asked
    if not isinstance(asked, (str, os.PathLike)) or not os.fspath(asked):
        raise ConfigError(
            f"object_spilling_directory={asked!r}: give a folder, or False if nothing is to go to disk"
        )
    return os.fspath(asked)


def start(name: str, spec: SessionSpec) -> Engine:
    """Start the engine of that name; each is imported when it is chosen, as not every machine has each.

    Raises:
        ConfigError: it can't run on this platform.
        MissingDependencyError: it needs a package that is not installed.
    """
    if name == "ray" and find_spec("ray") is None:
        raise MissingDependencyError.of("the Ray engine needs Ray", "ray")
    if name == "local" and sys.platform != "linux":
        raise ConfigError(
            f"the local engine needs Linux, and this is {sys.platform}; trainkit.init(engine='inline') runs "
            "everything in this process"
        )
    with boot.begun() if name == "local" else contextlib.nullcontext():  # while the engine's code is loaded
        started: Engine = ENGINES.get(name).start(spec)
    return started
