"""Checks of values, arguments and optional packages, and names of settings in messages."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from trainkit.errors import ConfigError, MissingDependencyError


@dataclass(frozen=True)
class SettingNames:
    """Names of an interface that runs experiments for its users, such as the searches for scikit-learn.

    Attributes:
        names: by the tuner's setting, the user's argument.
        other: format of a setting that is not in `names`, with its name as the only field.
        resume: how the user goes on with an experiment that has ended early.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    other: str = "{}"
    resume: str = ""


_CURRENT: ContextVar[SettingNames | None] = ContextVar("names of settings", default=None)


@contextlib.contextmanager
def named_as(names: SettingNames) -> Iterator[None]:
    """Have messages of this thread name settings so, until the block ends."""
    token = _CURRENT.set(names)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def setting(name: str, owner: str = "", value: str = "...") -> str:
    """Return the name of a setting for a message.

    Args:
        name: such as "stop".
        owner: class of the setting, for a message without its value: "RunConfig" gives "RunConfig(stop=...)".
        value: in place of the dots.
    """
    current = _CURRENT.get()
    if current is None:
        return f"{owner}({name}={value})" if owner else name
    return current.names.get(name) or (current.other.format(name) if owner else name)


def how_to_resume(path: object) -> str:
    """Return how to go on with the experiment at `path`."""
    current = _CURRENT.get()
    return f"go on by Tuner.restore({str(path)!r}, trainable).fit()" if current is None else current.resume


def already_there(path: object) -> str:
    """Return the message that there is an experiment at `path` where a new one is to be."""
    resume = ""
    if _CURRENT.get() is None:
        resume = f"go on with it by Tuner.restore({str(path)!r}, trainable).fit(), or "
    return f"{path} already holds an experiment; {resume}choose another {setting('name', 'RunConfig')}"


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `holds`."""
    if not holds:
        raise ConfigError(message)


def require_mode(mode: object, name: str = "mode") -> None:
    """Raise ConfigError unless `mode` is "min", "max" or None."""
    require(mode in (None, "min", "max"), f"{name}={mode!r} is neither 'min' nor 'max'")


def require_kind(name: str, value: object, kind: type, example: str) -> None:
    """Raise ConfigError unless `value` is None or an object of `kind`."""
    right = value is None or (isinstance(value, kind) and not isinstance(value, type))
    require(right, f"{name}={value!r} is not a {kind.__name__}; give for example {example}")


def checked_points(points: Any) -> list[dict[str, Any]]:
    """Return `points_to_evaluate`, or None, as a list; raise ConfigError unless of dictionaries."""
    if points is None:
        return []
    listed = list(points) if isinstance(points, Iterable) else [points]
    require(
        all(isinstance(point, Mapping) for point in listed),
        f"points_to_evaluate={points!r}: give a list of dictionaries",
    )
    return [dict(point) for point in listed]


def checked_seed(name: str, seed: Any) -> int | None:
    """Return the seed that a user gives as argument `name`, or None; raise ConfigError unless it is one."""
    require(
        seed is None or (is_whole(seed) and seed >= 0), f"{name}={seed!r}: give a whole number of 0 or more"
    )
    return None if seed is None else int(seed)


def is_whole(value: object) -> bool:
    """True for int and NumPy's integers, but not for True and False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """True for int and float, NaN included, but not for True and False."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: object) -> bool:
    """True for int and float that are neither NaN nor infinite."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def require_range(name: str, value: Any, least: float, most: float, words: str) -> None:
    """Raise ConfigError unless `value` is a number from `least` to `most`, which `words` are for."""
    if not is_finite(value) or not least <= value <= most:
        raise ConfigError(f"{name}={value!r}: give a number {words}")


def is_name(value: object) -> bool:
    """True for a text that is not empty."""
    return isinstance(value, str) and value != ""


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """True for a dictionary, and for what is like one; of a dictionary known at once, as most are."""
    return type(value) is dict or isinstance(value, Mapping)


def taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that `function` takes; all, where it takes any."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def load(module: str, what: str, extra: str) -> Any:
    """Import and return a module of an optional package.

    Args:
        module: such as "matplotlib.figure".
        what: that needs it, in the plural, such as "plots".
        extra: of trainkit, that brings it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError.of(f"{what} need {package}", extra, error) from error


def pandas_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A table with a row each; a key that a row lacks is NaN there."""
    return load("pandas", "tables", "tune").DataFrame([dict(row) for row in rows])
