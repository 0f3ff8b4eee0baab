"""Registry of trainables by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from trainkit.errors import ArgumentTypeError, TuneArgumentError, did_you_mean

_trainables: dict[str, Any] = {}


def register_trainable(name: str, trainable: Any, warn: bool = True) -> None:
    """Register a trainable, or replace it, under a name for `Tuner("name")` and `tune.run("name")`.

    Args:
        name: name of the trainable, also used in the names of its trials and folders.
        trainable: a function of the configuration or a `Trainable` class, with or without bound parameters
            and resources.
        warn: has no effect; exists for Ray's signature only.

    Raises:
        ConfigError: the name is not a string, or the trainable is not callable (this error is also a
            TypeError).
    """
    if not isinstance(name, str) or not name:
        raise TuneArgumentError(f"register_trainable({name!r}, ...): give a name")
    if not callable(trainable):
        raise ArgumentTypeError(
            f"register_trainable({name!r}, {trainable!r}): give a function (config) or a tune.Trainable class"
        )
    _trainables[name] = trainable


def get_trainable_cls(trainable_name: str) -> Any:
    """Return the function or class that was registered under this name.

    Raises:
        ConfigError: the name is not registered; the message suggests the closest name.
    """
    if trainable_name not in _trainables:
        hint = did_you_mean(trainable_name, _trainables, cutoff=0.6)
        raise TuneArgumentError(
            f"no trainable is registered as {trainable_name!r}; register it first, by "
            f"tune.register_trainable(name, trainable).{hint}"
        )
    return _trainables[trainable_name]


CHECKPOINT_DIR = "checkpoint_dir"
"""Argument by which functions written for Ray 1.x receive the checkpoint folder to resume from."""


def older_arguments(
    function: Callable[..., Any], parameters: Mapping[str, Any], checkpoint: str | None
) -> dict[str, Any]:
    """Return the extra arguments for a function written for Ray 1.x.

    Args:
        function: the user's function.
        parameters: arguments that are already bound to the function.
        checkpoint: path of the checkpoint to resume from.
    """
    code = getattr(function, "__code__", None)
    # inspect.signature is slow and takes much memory, so the call is skipped for a function that can't have
    # the argument. A function can't have the argument if it has no variable with this name and no attributes.
    # Attributes such as `__wrapped__` or `__signature__` could change its parameters.
    lacks_it = code is not None and not vars(function) and CHECKPOINT_DIR not in code.co_varnames
    if lacks_it or CHECKPOINT_DIR in parameters:
        return {}
    try:
        wanted = inspect.signature(function).parameters.get(CHECKPOINT_DIR)
    except ValueError:
        return {}
    # In the signature of a functools.partial, an argument that the user has bound appears as a parameter with
    # a default. An argument that the user has bound must not be replaced.
    by_partial = CHECKPOINT_DIR in getattr(function, "keywords", ())
    return {CHECKPOINT_DIR: checkpoint} if wanted is not None and not by_partial else {}
