"""Whether an operator's methods can be called as they will be; told before any worker starts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
"""Positional arguments, which may have other names, and those that are passed by name."""


def wrong_signature(operator_cls: type[Any]) -> str | None:
    """What to write instead, if a method of `operator_cls` can't be called as the trainer calls it.

    Args:
        operator_cls: a subclass of `TrainingOperator`.
    """
    for name, (positional, named) in _CALLS.items():
        try:
            signature = inspect.signature(getattr(operator_cls, name))
        except (TypeError, ValueError):
            continue  # Not written in Python: only calling it can tell.
        own = [] if isinstance(inspect.getattr_static(operator_cls, name), staticmethod) else ["self"]
        try:
            signature.bind(*own, *positional, **named)
        except TypeError as error:
            arguments = ", ".join([*own, *positional, *(f"{key}={value}" for key, value in named.items())])
            return f"its {name}{signature} can't be called ({error}): define {name}({arguments})"
    return None
