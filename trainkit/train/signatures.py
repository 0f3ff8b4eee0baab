"""Signatures of an operator's methods; one that can't be called is refused before any worker starts.

RaySGD called `train_epoch(iterator, info)` up to version 1.6, and passed two more arguments later. A method
is called with those that it takes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

_CALLS: Mapping[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "setup": (("config",), {}),
    "train_epoch": (("iterator", "info"), {"num_steps": "None", "epoch_idx": "0"}),
    "train_batch": (("batch", "batch_info"), {}),
    "validate": (("val_iterator", "info"), {}),
    "validate_batch": (("batch", "batch_info"), {}),
    "state_dict": ((), {}),
    "load_state_dict": (("state_dict",), {}),
}
"""Positional arguments, which may have other names, and those passed by name to a method that takes them."""

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def taken(method: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the named arguments that a method takes; all if its signature can't be known."""
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return dict(named)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
        return dict(named)
    return {name: named[name] for name in named if name in parameters and parameters[name].kind in _BY_NAME}


def wrong_signature(operator_cls: type[Any]) -> str | None:
    """What to write instead, if a method of `operator_cls` can't be called as the trainer calls it.

    Args:
        operator_cls: a subclass of `TrainingOperator`.
    """
    for name, (positional, named) in _CALLS.items():
        try:
            method = getattr(operator_cls, name)
            signature = inspect.signature(method)
        except (TypeError, ValueError):
            continue  # Not written in Python: only calling it can tell.
        own = [] if isinstance(inspect.getattr_static(operator_cls, name), staticmethod) else ["self"]
        try:
            signature.bind(*own, *positional, **taken(method, named))
        except TypeError as error:
            arguments = ", ".join([*own, *positional, *(f"{key}={value}" for key, value in named.items())])
            return f"its {name}{signature} can't be called ({error}): define {name}({arguments})"
    return None
