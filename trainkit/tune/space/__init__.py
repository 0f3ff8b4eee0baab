"""Functions that make the leaves of a search space: domains, grid axes, conditions and rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.space.domains import (
    Categorical,
    Float,
    Forbid,
    GridSearch,
    Integer,
    Normal,
    SampleFrom,
    Spelled,
    When,
    listed,
)
from trainkit.tune.space.domains import Domain as Domain

# --- real numbers ---------------------------------------------------------------------------------


def uniform(lower: float, upper: float) -> Float:
    """Return the domain of real numbers in [lower, upper), uniformly distributed.

    Raises:
        SpaceError: a bound is not a finite number, or `lower` is not below `upper`.
    """
    return Float(lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """Return the domain of the multiples of `q` in [lower, upper], uniformly distributed.

    A bound is included if it is a multiple of `q`; no value lies outside of the bounds. Multiples are exact
    in decimal notation: with `q` = 0.1, a value is 0.3 and not 0.30000000000000004.

    Raises:
        SpaceError: the bounds are invalid for `uniform`, `q` is not above 0 or exceeds the range, or no
            multiple is inside the bounds.
    """
    return Float(lower, upper, q=q)


def loguniform(lower: float, upper: float, base: float = 10) -> Float:
    """Return the domain of real numbers in [lower, upper) whose logarithm is uniform.

    Args:
        lower: lower bound, above 0.
        upper: upper bound, above `lower`.
        base: accepted for compatibility with Ray; every base gives the same distribution.

    Raises:
        SpaceError: a bound is not a finite number above 0, or `lower` is not below `upper`.
    """
    return Float(lower, upper, log=True)


def qloguniform(lower: float, upper: float, q: float, base: float = 10) -> Float:
    """Return the domain of log-uniform numbers, rounded to multiples of `q` in [lower, upper].

    Raises:
        SpaceError: the bounds are invalid for `loguniform`, or `q` is invalid for `quniform`.
    """
    return Float(lower, upper, log=True, q=q)


def randn(mean: float = 0.0, sd: float = 1.0) -> Normal:
    """Return the normal distribution with this mean and standard deviation.

    Raises:
        SpaceError: `mean` or `sd` is not a finite number, or `sd` is not above 0.
    """
    return Normal(mean, sd)


def qrandn(mean: float, sd: float, q: float) -> Normal:
    """Return the domain of normally distributed numbers, rounded to multiples of `q`.

    Raises:
        SpaceError: `mean` or `sd` is invalid for `randn`, or `q` is not above 0.
    """
    return Normal(mean, sd, q)


# --- whole numbers --------------------------------------------------------------------------------


def randint(lower: int, upper: int) -> Integer:
    """Return the domain of whole numbers from `lower` to `upper` - 1, uniformly distributed.

    Raises:
        SpaceError: a bound is not a whole number, or `lower` is not below `upper`.
    """
    return Integer(lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Return the domain of the multiples of `q` in [lower, upper], uniformly distributed.

    As in Ray, `upper` is included unless `q` is 1; with q=1 this is `randint`.

    Raises:
        SpaceError: the bounds are invalid for `randint`, `q` is not above 0 or exceeds the range, or no
            multiple is inside the bounds.
    """
    return Integer(lower, upper, q=q)


def lograndint(lower: int, upper: int, base: float = 10) -> Integer:
    """Return the domain of whole numbers from `lower` to `upper` - 1, which are log-uniform numbers, rounded
    down.

    Args:
        lower: lower bound, 1 or more.
        upper: upper bound, above `lower`; excluded.
        base: accepted for compatibility with Ray; every base gives the same distribution.

    Raises:
        SpaceError: a bound is not a whole number above 0, or `lower` is not below `upper`.
    """
    return Integer(lower, upper, log=True)


def qlograndint(lower: int, upper: int, q: int, base: float = 10) -> Integer:
    """Return the domain of the multiples k * `q` in [lower, upper], with probabilities proportional to log((k
    + 1) / k).

    As in Ray, `upper` is included unless `q` is 1; with q=1 this is `lograndint`.

    Raises:
        SpaceError: the bounds are invalid for `lograndint`, or `q` is invalid for `qrandint`.
    """
    return Integer(lower, upper, log=True, q=q)


# --- lists ----------------------------------------------------------------------------------------


def choice(categories: Iterable[Any]) -> Categorical:
    """Return the domain of the listed values, all equally likely.

    A category may be a dictionary with domains. The domains of such a category are sampled only if the
    category is chosen, and are otherwise absent from the configuration.

    Raises:
        SpaceError: `categories` is empty or not a list.
    """
    return Categorical(listed("choice", categories))


def grid_search(values: Iterable[Any]) -> GridSearch:
    """Return an axis of a grid: each of its values is combined with every value of the other axes.

    Raises:
        SpaceError: `values` is empty or not a list.
    """
    return GridSearch(listed("grid_search", values))


# --- dependencies ---------------------------------------------------------------------------------


def sample_from(func: Callable[..., Any]) -> SampleFrom:
    """Return a value that `func(spec)` computes for each configuration; `spec.config.x` is the
    configuration's x.

    `spec["x"]` is the same value as `spec.config.x`, for functions written for newer versions of Ray. A
    function without parameters is called without arguments. The global random generators of Python and NumPy
    are seeded during the call, so that a seeded experiment is repeatable.

    Raises:
        SpaceError: `func` can't be called.
    """
    return SampleFrom(func)


def when(conditions: Mapping[str, Any], content: Any) -> When:
    """Return a part of the space that exists only if all of `conditions` hold.

    If a condition fails, the key of this part is absent from the configuration, the trial's tag, the model of
    the searcher and the logs.

        {"optimizer": choice(["sgd", "adam"]), "momentum": when({"optimizer": "sgd"}, uniform(0.5, 0.99))}

    Args:
        conditions: dictionary from parameter names to the required value, a list of allowed values, or a
            domain of allowed values. A name is a key of the dictionary that contains the `when`, or a path
            that begins in this dictionary or at the root, such as "net/kind".
        content: a domain, a grid's axis, a constant, or a dictionary of these.

    Raises:
        SpaceError: `conditions` is not a dictionary of names, or empty.
    """
    if not isinstance(conditions, Mapping) or not conditions:
        raise SpaceError(f"when() needs conditions such as {{'optimizer': 'sgd'}}, not {conditions!r}")
    if not all(type(name) is str and name for name in conditions):
        raise SpaceError(f"when() needs parameter names as keys of its conditions, not {conditions!r}")
    return When(tuple(conditions.items()), content)


def forbid(*clauses: Mapping[str, Any] | Callable[[dict[str, Any]], bool]) -> Forbid:
    """Return a rule that forbids configurations; the key of the rule in the space does not appear in
    configurations.

        {"optimizer": choice(["sgd", "adam"]), "lr": choice([0.001, 1.0]),
         "rules": forbid({"optimizer": "adam", "lr": 1.0})}

    Args:
        clauses: each clause is a dictionary or a function. A dictionary has parameter names as keys, as in
            `when`. The dictionary forbids a configuration if each named parameter has the given value, a
            value of the given list, or a value of the given domain. A function returns True for a forbidden
            configuration.

    Raises:
        SpaceError: a clause is neither a dictionary nor a function.
    """
    return Forbid(clauses)


SPELLINGS: dict[str, Callable[..., Spelled]] = {
    name: function
    for name, function in dict(globals()).items()
    if getattr(function, "__module__", "") == __name__ and function is not sample_from
}
"""The public functions by name.

In the file of an experiment, the leaves of a space are described as calls of these functions.
"""
