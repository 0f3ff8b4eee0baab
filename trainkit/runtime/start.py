"""From the arguments of `init` to a running engine."""

from __future__ import annotations

import importlib
import logging
import numbers
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Literal, cast

from trainkit.errors import ArgumentTypeError, ConfigError, MissingDependencyError
from trainkit.resources import checked_names, normalize
from trainkit.runtime.engine import Engine
from trainkit.runtime.environment import environment_of
from trainkit.runtime.labels import checked_labels
from trainkit.runtime.local import devices
from trainkit.runtime.specs import SessionSpec
from trainkit.settings import default_namespace

ENGINES = ("local", "inline", "ray")
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
    if engine not in ENGINES:
        raise ConfigError(f"engine={engine!r}; there are 'local', 'inline' and 'ray'")
    if remote and engine != "ray":
        raise ConfigError(f"address={address!r} needs engine='ray', and engine={engine!r} was asked for")
    if local_mode and engine != "inline":
        raise ConfigError(f"local_mode=True is engine='inline', and engine={engine!r} was asked for")
    return engine


def session_spec(
    *,
    address: str | None,
    num_cpus: float | None,
    num_gpus: int | None,
    resources: Mapping[str, float] | None,
    labels: Mapping[str, str] | None,
    memory: float | None,
    object_store_memory: float | None,
    object_spilling_directory: str | os.PathLike[str] | Literal[False] | None,
    log_to_driver: bool,
    namespace: str | None,
    runtime_env: Mapping[str, Any] | None,
    preload: Sequence[str],
    extra: Mapping[str, Any],
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
        preload=frozenset(preload),
        environment=environment.variables,
        working_dir=environment.working_dir,
        object_store_bytes=None if object_store_memory is None else int(object_store_memory),
        object_spilling_directory=_folder(object_spilling_directory),
        address=address,
        extra={name: value for name, value in {**extra, **given}.items() if value is not None},
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
    config = spec.extra.get("_system_config", {})
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"_system_config={config!r}: give a dictionary")
    if name != "ray":  # the rest has no use for Ray's arguments
        _warn_of_system_config(name, config)
        spec = replace(spec, extra={})
    if name == "inline":
        inline = importlib.import_module("trainkit.runtime.inline")
        return cast("Engine", inline.InlineEngine(spec))
    if name == "ray":
        if find_spec("ray") is None:
            raise MissingDependencyError.of("the Ray engine needs Ray", "ray")
        ray_engine = importlib.import_module("trainkit.runtime.ray_engine")
        return cast("Engine", ray_engine.RayEngine.start(spec))
    if sys.platform != "linux":
        raise ConfigError(
            f"the local engine needs Linux, and this is {sys.platform}; trainkit.init(engine='inline') runs "
            "everything in this process"
        )
    local = importlib.import_module("trainkit.runtime.local.client")
    return cast("Engine", local.LocalEngine.start(spec))
