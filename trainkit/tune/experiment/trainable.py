"""Checks of the trainable of an experiment."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from trainkit.errors import TuneArgumentError
from trainkit.tune.config import RunConfig
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.trainables import older_arguments
from trainkit.tune.trial.trainable import Trainable


def checked_trainable(trainable: Any, run: RunConfig) -> Bound:
    """Check the trainable, and return it as a Bound (with its resource requests and parameters).

    Raises:
        ConfigError: the trainable is neither a function of the configuration, a `Trainable` class nor a
            registered name; or the trainable can't save the checkpoints that `run` requests.
    """
    if not isinstance(trainable, type) and hasattr(trainable, "__trainable__"):
        trainable = trainable.__trainable__()  # a trainer object provides its own trainable
    bound = Bound.of(trainable)
    inner = bound.trainable
    asked = run.checkpoint_config.checkpoint_frequency or run.checkpoint_config.checkpoint_at_end
    if isinstance(inner, type):
        if not issubclass(inner, Trainable):
            raise TuneArgumentError(f"trainable={inner!r} is a class, but does not extend tune.Trainable")
        _require_fit(bound, inspect.signature(inner.setup), None, called=f"{bound.name}.setup")
        if asked and not inner._can_save():
            raise TuneArgumentError(
                f"CheckpointConfig asks {bound.name} for checkpoints, but it has no save_checkpoint(); "
                "define it, or leave checkpoint_frequency and checkpoint_at_end out"
            )
        return bound
    if not callable(inner):
        raise TuneArgumentError(
            f"trainable={inner!r}: give a function of the configuration, or a tune.Trainable class"
        )
    if isinstance(inner, functools.partial) and isinstance(inner.func, type):
        raise TuneArgumentError(
            f"trainable={inner!r} binds arguments of a class's constructor; give them to its setup() "
            f"instead, by tune.with_parameters({bound.name}, name=value)"
        )
    _require_callable_with(bound, inner)
    if asked:
        raise TuneArgumentError(
            "checkpoint_frequency and checkpoint_at_end are for Trainable classes; "
            f"the function {bound.name} saves by tune.report(metrics, "
            "checkpoint=tune.Checkpoint.from_directory(path))"
        )
    return bound


def _require_callable_with(bound: Bound, function: Callable[..., Any]) -> None:
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        raise TuneArgumentError(
            f"the trainable {bound.name} is async: give a plain function, which may call asyncio.run()"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # the function is a builtin without a readable signature
        return
    needed = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in bound.parameters
    ]
    if len(needed) == 2 and needed[1] in ("reporter", "status_reporter"):
        raise TuneArgumentError(
            f"the trainable {bound.name} takes a {needed[1]}, which no longer exists since Ray 1.0: "
            f"remove the argument, and call tune.report(name=value) instead of {needed[1]}(name=value)"
        )
    _require_fit(bound, signature, called=bound.name, **older_arguments(function, bound.parameters, None))


def _require_fit(
    bound: Bound, signature: inspect.Signature, *first: None, called: str, **older: str | None
) -> None:
    try:
        signature.bind(*first, {}, **bound.parameters, **older)
    except TypeError as error:
        given = ", ".join(["config", *(f"{name}=" for name in bound.parameters)])
        raise TuneArgumentError(
            f"the trainable {bound.name} cannot be called as {called}({given}): {error}"
        ) from None


def can_save(bound: Bound) -> bool:
    """Return True for a trainable class that can save a checkpoint at any report; False for functions."""
    cls = bound.trainable
    return isinstance(cls, type) and issubclass(cls, Trainable) and cls._can_save()
