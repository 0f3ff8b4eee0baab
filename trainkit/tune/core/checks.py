"""Checks of values, arguments and optional packages, and the names of settings in messages."""

from __future__ import annotations

import abc
import functools
import importlib
import inspect
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from trainkit.errors import ArgumentTypeError, MissingDependencyError, TuneArgumentError, did_you_mean

T = TypeVar("T")


_OLDER = {
    "local_dir": "Give storage_path.",
    "upload_dir": "Give RunConfig(storage_path=...).",
    "syncer": "Give RunConfig(storage_filesystem=...), with a tune.syncer.Syncer of your own.",
}
"""Settings of Ray 2.0 to 2.6, each with a hint about its replacement."""


def named_settings(cls: type[T]) -> type[T]:
    """Change a settings class: its constructor's error for an unknown setting lists the known settings."""
    construct = cls.__init__
    known = [*inspect.signature(cls).parameters]

    @functools.wraps(construct)
    def init(self: T, *args: Any, **given: Any) -> None:
        for name in given:
            if name not in known:
                hint = f" {_OLDER[name]}" if name in _OLDER else did_you_mean(name, known)
                raise ArgumentTypeError(
                    f"{cls.__name__} has no setting {name!r}.{hint} It takes {', '.join(known)}"
                )
        construct(self, *args, **given)

    setattr(cls, "__init__", init)  # noqa: B010 - type checkers keep the original signature
    return cls


def require(holds: bool, message: str) -> None:
    """Raise ConfigError with `message` unless `holds`."""
    if not holds:
        raise TuneArgumentError(message)


def require_mode(mode: object, name: str = "mode") -> None:
    """Raise ConfigError unless `mode` is "min", "max" or None."""
    require(mode in (None, "min", "max"), f"{name}={mode!r} is neither 'min' nor 'max'")


def require_kind(name: str, value: object, kind: type, example: str) -> None:
    """Raise ConfigError unless `value` is None or an object of `kind`."""
    right = value is None or (isinstance(value, kind) and not isinstance(value, type))
    if isinstance(value, type) and issubclass(value, kind):
        raise TuneArgumentError(f"{name}={value.__name__} is a class; give an object, {value.__name__}()")
    require(right, f"{name}={value!r} is not a {kind.__name__}; give for example {example}")


def checked_points(points: Any) -> list[dict[str, Any]]:
    """Return `points_to_evaluate` as a list ([] for None); raise ConfigError unless all are dictionaries."""
    if points is None:
        return []
    listed = list(points) if isinstance(points, Iterable) else [points]
    require(
        all(isinstance(point, Mapping) for point in listed),
        f"points_to_evaluate={points!r}: give a list of dictionaries",
    )
    return [dict(point) for point in listed]


def checked_seed(name: str, seed: Any) -> int | None:
    """Return the user's argument `name` as a seed, or None; raise ConfigError unless it is a valid seed."""
    require_whole(name, seed, 0, optional=True)
    return None if seed is None else int(seed)


def is_whole(value: object) -> bool:
    """Return True for int and NumPy's integers, but not for True and False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return True for int and float, NaN included, but not for True and False."""
    # The common types are checked first, because each report checks dozens of metrics.
    return type(value) in (float, int) or (isinstance(value, (int, float)) and not isinstance(value, bool))


def is_finite(value: object) -> bool:
    """Return True for int and float that are neither NaN nor infinite."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # no float is as large as this integer
        return False


def require_whole(name: str, value: Any, least: int, words: str = "", *, optional: bool = False) -> None:
    """Raise ConfigError unless `value` is a whole number of `least` or more, or None if `optional`.

    Args:
        name: name of the argument.
        value: value of the argument.
        least: the smallest value that is allowed.
        words: description of the allowed values for the message; "": the message states `least`.
        optional: None is allowed.
    """
    if not ((optional and value is None) or (is_whole(value) and value >= least)):
        raise TuneArgumentError(f"{name}={value!r}: give {words or f'a whole number of {least} or more'}")


def require_number(
    name: str,
    value: Any,
    words: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    optional: bool = False,
) -> None:
    """Raise ConfigError unless `value` is a finite number within the bounds, or None if `optional`.

    Args:
        name: name of the argument.
        value: value of the argument.
        words: description of the allowed values, such as "a number above 0".
        above: exclusive lower bound.
        least: the smallest value that is allowed.
        most: the largest value that is allowed.
        optional: None is allowed.
    """
    fits = is_finite(value) and value > above and least <= value <= most
    if not (fits or (optional and value is None)):
        raise TuneArgumentError(f"{name}={value!r}: give {words}")


def require_one_of(name: str, value: object, options: Sequence[object]) -> None:
    """Raise ConfigError unless `value` is one of `options`; the message lists them."""
    if value not in options:
        raise TuneArgumentError(f"{name}={value!r} is not one of {', '.join(map(repr, options))}")


def require_name(name: str, value: object, *, optional: bool = False) -> None:
    """Raise ConfigError unless `value` is a non-empty string, or None if `optional`."""
    if not (is_name(value) or (optional and value is None)):
        raise TuneArgumentError(f"{name}={value!r}: give the name of a reported value")


def is_name(value: object) -> bool:
    """Return True for a non-empty string."""
    return isinstance(value, str) and value != ""


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    """Return True for a Mapping; the class dict is checked first, because this check is the fastest."""
    return type(value) is dict or isinstance(value, Mapping)


def call_problem(function: Callable[..., Any], positional: int, by_name: Iterable[str] = ()) -> str | None:
    """Return why `function` can't be called with these arguments; None if a call is possible."""
    try:
        inspect.signature(function).bind(*range(positional), **dict.fromkeys(by_name))
    except TypeError as error:
        return str(error)
    except ValueError:  # a builtin without a signature can't be checked
        return None
    return None


def shown_signature(function: object) -> str:
    """Return the signature of a function as text without annotations; for a value such as 3, return "=3"."""
    if not callable(function):
        return f"={function!r}"
    signature = inspect.signature(function)
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(plain))


class _NotKept:
    def __repr__(self) -> str:
        return "an argument that is not kept"


NOT_KEPT = _NotKept()
"""Placeholder for a constructor argument that the object did not store; files contain its repr."""


def arguments_of(thing: object) -> dict[str, Any]:
    """Return the constructor arguments of an object, which are read from its attributes of the same names."""
    return {name: getattr(thing, name, NOT_KEPT) for name in inspect.signature(type(thing)).parameters}


def taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of `arguments` that `function` accepts by name."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


if TYPE_CHECKING:
    free = property
else:

    class free:
        """Property that an object may override by assigning a value to the attribute of the same name.

        The class defines no `__set__`, so Python prefers the value in the object's `__dict__`.
        """

        def __init__(self, fget):
            self.fget, self.__doc__ = fget, fget.__doc__

        def __get__(self, thing, owner=None):
            return self if thing is None else self.fget(thing)


@functools.lru_cache(maxsize=256)
def meant(cls: type, base: type, name: str) -> Any:
    """Return the attribute `name` of `cls`.

    Attributes that can't override the attribute of `base` are skipped.
    """
    ours = vars(base)[name]
    return next(own for each in cls.__mro__ if _is_like(own := vars(each).get(name), ours))


def _is_like(own: Any, ours: Any) -> bool:
    if not inspect.isfunction(ours):
        return isinstance(own, (property, free) if isinstance(ours, (property, free)) else bool)
    expected = inspect.signature(ours).parameters.values()
    by_name = [each.name for each in expected if each.kind is each.KEYWORD_ONLY]
    return inspect.isfunction(own) and call_problem(own, len(expected) - len(by_name), by_name) is None


def forwarded(part: str, base: type, names: str) -> Callable[[type[T]], type[T]]:
    """Return a class decorator that forwards attributes and methods to an inner object.

    Args:
        part: attribute that holds the inner object.
        base: base class of both objects, which defines the names.
        names: forwarded attributes and methods, separated by blanks.
    """

    def decorated(cls: type[T]) -> type[T]:
        for name in names.split():
            setattr(cls, name, _forwarder(part, base, name))
        return abc.update_abstractmethods(cls)

    return decorated


def _forwarder(part: str, base: type, name: str) -> Any:
    if isinstance(vars(base)[name], (property, free)):
        return property(operator.attrgetter(f"{part}.{name}"))

    def call(self: object, *args: Any, **options: Any) -> Any:
        return getattr(getattr(self, part), name)(*args, **options)

    return functools.wraps(vars(base)[name], updated=())(call)


def load(module: str, what: str, extra: str) -> Any:
    """Import and return a module of an optional package.

    Args:
        module: name of the module, such as "matplotlib.figure".
        what: feature that needs the module, in the plural, such as "plots".
        extra: optional dependency group of trainkit that installs the package.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    package = module.split(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError.of(f"{what} need {package}", extra, error) from error


def pandas_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return a pandas DataFrame with one row for each mapping; missing keys become NaN."""
    return load("pandas", "tables", "tune").DataFrame([dict(row) for row in rows])
