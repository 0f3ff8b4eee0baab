"""No result, one, or several: what a call with `num_returns` makes of what the function returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any


def split_results(result: Any, num_returns: int, where: str) -> Iterable[Any]:
    """Return `result` as `num_returns` values; of none, one that nobody asks for.

    A generator is run as far as the values are taken, so the first are there also if a later one raises.

    Raises:
        ValueError: it is no sequence of as many, or, when that is found out, no iterator of as many.
    """
    if num_returns == 1:
        return (result,)
    if num_returns == 0:
        return (None,)
    if isinstance(result, Iterator):
        return _first(result, num_returns, where)
    if not isinstance(result, (tuple, list)) or len(result) != num_returns:
        count = len(result) if isinstance(result, (tuple, list)) else "no sequence"
        raise ValueError(f"{where} was called with num_returns={num_returns} but returned {count} values")
    return result


def _first(items: Iterator[Any], num_returns: int, where: str) -> Iterator[Any]:
    try:
        for count in range(num_returns):
            try:
                item = next(items)
            except StopIteration:
                raise ValueError(
                    f"{where} was called with num_returns={num_returns} but yielded {count} values"
                ) from None
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:  # so that its `finally` blocks run now
            close()


async def drained(items: AsyncIterator[Any], most: int) -> Iterator[Any]:
    """Take up to `most` items, all if it is negative; what stopped that is raised behind the last of them."""
    taken: list[Any] = []
    failure: Exception | None = None
    try:
        async for item in items:
            taken.append(item)
            if len(taken) == most:
                break
    except Exception as error:
        failure = error
    finally:
        if hasattr(items, "aclose"):
            await items.aclose()
    return _replayed(taken, failure)


def _replayed(items: list[Any], failure: Exception | None) -> Iterator[Any]:
    yield from items
    if failure is not None:
        raise failure
