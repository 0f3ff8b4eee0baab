"""How a function in the form of Ray 1.x is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

CHECKPOINT_DIR = "checkpoint_dir"
"""The argument by which functions of Ray 1.x are told where the checkpoint lies that they go on from."""


def older_arguments(
    function: Callable[..., Any], parameters: Mapping[str, Any], checkpoint: str | None
) -> dict[str, Any]:
    """What a function of an older form is given besides.

    Args:
        function: the user's.
        parameters: what is bound to it already.
        checkpoint: path of the one to go on from.
    """
    if CHECKPOINT_DIR in parameters:
        return {}
    try:
        wanted = inspect.signature(function).parameters.get(CHECKPOINT_DIR)
    except ValueError:
        return {}
    # One that functools.partial has bound has that value as its default.
    by_partial = CHECKPOINT_DIR in getattr(function, "keywords", ())
    return {CHECKPOINT_DIR: checkpoint} if wanted is not None and not by_partial else {}
