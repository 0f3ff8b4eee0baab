"""Search space of a sweep file: the entries of its section `parameters` as domains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainkit import tune
from trainkit.errors import ConfigError, SpaceError, did_you_mean

_KEYS = ("value", "values", "min", "max", "distribution", "scale", "q", "mu", "sigma", "when", "grid")

_DISTRIBUTIONS: Mapping[str, str] = {
    "uniform": "uniform",
    "log_uniform_values": "log",
    "int_uniform": "int",
    "q_uniform": "uniform",
    "q_log_uniform_values": "log",
    "normal": "normal",
    "q_normal": "normal",
    "categorical": "values",
    "constant": "value",
}
"""Maps the distributions of W&B's sweep files to what they mean here."""


def space_of(parameters: object, *, grid: bool = False) -> dict[str, Any]:
    """Return the search space that the section `parameters` describes.

    Args:
        parameters: the section, as read from the file.
        grid: True: lists of values form a grid, of which each combination runs.

    Raises:
        ConfigError: an entry is wrong; the message names its parameter.
    """
    if not isinstance(parameters, Mapping) or not parameters:
        raise ConfigError(
            "`parameters` is missing or empty: name at least one, such as lr: {min: 0.1, max: 1}"
        )
    space = {}
    for name, entry in parameters.items():
        if not isinstance(name, str):
            raise ConfigError(f"parameters: the name {name!r} is not text: put it into quotes")
        try:
            space[name] = domain_of(entry, grid=grid)
        except (ConfigError, SpaceError, TypeError, ValueError) as error:
            raise ConfigError(f"parameters.{name}: {error}") from None
    return space


def domain_of(entry: object, *, grid: bool = False) -> Any:
    """Return the domain of a parameter's entry: a constant, a list of values, or a dictionary.

    Raises:
        ConfigError: a key is unknown, is missing, or has a wrong value; SpaceError: the bounds are wrong.
    """
    if isinstance(entry, list):
        entry = {"values": entry}
    if not isinstance(entry, Mapping):
        return entry
    check_keys(entry, _KEYS)
    domain = _plain_domain(entry, grid)
    conditions = entry.get("when")
    if conditions is None:
        return domain
    if not isinstance(conditions, Mapping):
        raise ConfigError(f"when: {conditions!r} is not a condition: write it as {{optimizer: sgd}}")
    return tune.when(dict(conditions), domain)


def _plain_domain(entry: Mapping[str, Any], grid: bool) -> Any:
    if "value" in entry:
        return entry["value"]
    if "values" in entry:
        values = entry["values"]
        if not isinstance(values, list) or not values:
            raise ConfigError(f"values: {values!r} is not a list with at least one value")
        return tune.grid_search(values) if entry.get("grid", grid) else tune.choice(values)
    named = entry.get("distribution")
    if named is not None and named not in _DISTRIBUTIONS:
        known = ", ".join(_DISTRIBUTIONS)
        raise ConfigError(f"distribution: {named} is not supported: use one of {known}")
    kind = _DISTRIBUTIONS.get(named or "", "")
    if kind == "normal" or "mu" in entry:
        mean, deviation = number_of(entry, "mu", 0.0), number_of(entry, "sigma", 1.0)
        return tune.qrandn(mean, deviation, entry["q"]) if "q" in entry else tune.randn(mean, deviation)
    return _between(entry, kind)


def _between(entry: Mapping[str, Any], kind: str) -> Any:
    """Return the domain of all numbers between two bounds, which both belong to it."""
    lower, upper = number_of(entry, "min"), number_of(entry, "max")
    scale = entry.get("scale", "log" if kind == "log" else "linear")
    if scale not in ("linear", "log"):
        raise ConfigError(f"scale: {scale!r} is not supported: use linear or log")
    whole = isinstance(lower, int) and isinstance(upper, int) and kind in ("", "int")
    if kind == "int" and not whole:
        raise ConfigError("distribution: int_uniform needs whole numbers as min and max")
    make: Callable[..., Any]
    if whole:
        step = entry.get("q", 1)
        if step == 1:
            make = tune.lograndint if scale == "log" else tune.randint
            return make(lower, upper + 1)
        make = tune.qlograndint if scale == "log" else tune.qrandint
        return make(lower, upper, step)
    if "q" in entry:
        make = tune.qloguniform if scale == "log" else tune.quniform
        return make(lower, upper, number_of(entry, "q"))
    make = tune.loguniform if scale == "log" else tune.uniform
    return make(lower, upper)


def check_keys(entry: Mapping[str, Any], known: Sequence[str], place: str = "") -> None:
    """Raise an error if a dictionary has an unknown key.

    Raises:
        ConfigError: as described; the message begins with `place`.
    """
    for key in entry:
        if key not in known:
            raise ConfigError(f"{place}the key {key!r} is unknown.{did_you_mean(str(key), known)}")


def number_of(entry: Mapping[str, Any], key: str, default: float | None = None) -> Any:
    """Return the number of a key.

    Raises:
        ConfigError: the number is missing, or the value is no number.
    """
    value = entry.get(key, default)
    if isinstance(value, str):
        # YAML 1.1 reads 1e-4, which has no point, as text.
        try:
            value = float(value)
        except ValueError:
            raise ConfigError(f"{key}: {value!r} is not a number") from None
    if value is None:
        raise ConfigError(f"{key} is missing: give min and max, or values, or value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{key}: {value!r} is not a number")
    return value
