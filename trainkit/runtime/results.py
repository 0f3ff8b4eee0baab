"""One result or several: what a call with `num_returns` makes of what the function returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def split_results(result: Any, num_returns: int, where: str) -> Sequence[Any]:
    """`result` as `num_returns` values; raises ValueError if it is not a sequence of as many."""
    if num_returns == 1:
        return (result,)
    if not isinstance(result, (tuple, list)) or len(result) != num_returns:
        count = len(result) if isinstance(result, (tuple, list)) else "no sequence"
        raise ValueError(f"{where} was called with num_returns={num_returns} but returned {count} values")
    return result
