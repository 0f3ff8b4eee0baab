"""Values that are no domains but were surely meant as one, and what to write instead."""

from __future__ import annotations

import random
from typing import Any

from trainkit.tune.checks import is_number

_INSTEAD = {
    "uniform": "tune.uniform(lower, upper)",
    "randint": "tune.randint(lower, upper)",
    "randrange": "tune.randint(lower, upper)",
    "integers": "tune.randint(lower, upper)",
    "choice": "tune.choice([...])",
    "normal": "tune.randn(mean, sd)",
    "gauss": "tune.randn(mean, sd)",
    "randn": "tune.randn(mean, sd)",
    "normalvariate": "tune.randn(mean, sd)",
    "loguniform": "tune.loguniform(lower, upper)",
    "reciprocal": "tune.loguniform(lower, upper)",
    "norm": "tune.randn(mean, sd)",
}
_OPTUNA = {
    "FloatDistribution": "tune.uniform(low, high), or tune.loguniform(low, high) for log=True",
    "IntDistribution": "tune.randint(low, high + 1), or tune.lograndint(low, high + 1) for log=True",
    "CategoricalDistribution": "tune.choice([...])",
}
_OWN = "trainkit.tune.space"


def meant_as_domain(value: Any) -> str | None:
    """Return what is wrong with `value` and what to write instead; None if nothing is."""
    module = getattr(value, "__module__", None) or ""
    if module == _OWN and callable(value):
        name = value.__name__
        return f"the function tune.{name} was not called; write tune.{name}(...)"
    owner = getattr(value, "__self__", None)
    if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
        name = value.__name__
        instead = _INSTEAD.get(name, "a domain such as tune.uniform(lower, upper)")
        return (
            f"the function {name} of a random generator would be handed to the trials as it is; "
            f"write {instead}, or tune.sample_from(lambda spec: ...) to call it for each trial"
        )
    kind = type(value)
    if kind.__module__.startswith("scipy.stats") and hasattr(value, "rvs"):
        name = getattr(getattr(value, "dist", value), "name", "")
        instead = _INSTEAD.get(name, "tune.sample_from(lambda spec: distribution.rvs())")
        return f"a distribution of scipy.stats would be handed to the trials as it is; write {instead}"
    if kind.__module__.startswith("hyperopt.pyll"):
        return (
            "an expression of hyperopt would be handed to the trials as it is; give the space to "
            "search_alg=HyperOptSearch(space), without a param_space, or write domains of trainkit.tune, "
            "such as tune.uniform(lower, upper)"
        )
    foreign = f"{kind.__module__}.{kind.__qualname__} is a domain of another library"
    if kind.__module__.startswith("optuna.distributions"):
        instead = _OPTUNA.get(kind.__name__, "a domain of trainkit.tune")
        return f"{foreign}; write {instead}, or give the space to search_alg=OptunaSearch(space)"
    if kind.__module__.startswith("ray.tune"):
        return f"{foreign}; write that of trainkit.tune, which has the same names as Ray's"
    return None


def constant_words(value: Any, *, alone: bool) -> str | None:
    """Return what to write where a constant was probably meant to vary; None where it was not.

    Args:
        value: a constant of a space.
        alone: nothing in the space varies.
    """
    if getattr(value, "__name__", "") == "<lambda>":
        return (
            "a lambda, which goes to the trials as it is; to call it for each trial, write "
            "tune.sample_from(lambda spec: ...)"
        )
    is_range = (
        isinstance(value, tuple) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]
    )
    if alone and is_range:
        low, high = value
        return (
            f"the tuple {value!r}, which goes to the trials as it is; to draw from the range, write "
            f"tune.uniform({low!r}, {high!r}), tune.randint({low!r}, {high!r}) or tune.loguniform"
        )
    return None
