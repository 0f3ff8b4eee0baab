"""Results of calls that return several values or a stream of values."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from trainkit.errors import ConfigError
from trainkit.runtime.failures import ResultCountError


def require_iterator(result: Any, where: str, num_returns: str = "streaming") -> Any:
    """Return `result`. Raise ConfigError if `result` is not an iterator."""
    if isinstance(result, (Iterator, AsyncIterator)):
        return result
    raise ConfigError(
        f"{where} was called with num_returns={num_returns!r} but returned a {type(result).__name__}: "
        "yield the values, or return an iterator"
    )


def split_results(result: Any, num_returns: int, where: str) -> Iterable[Any]:
    """Return `result` split into `num_returns` values. For `num_returns=0`, return a single dummy value.

    A generator runs only while its values are read, so the first values exist even if the generator raises an
    error later.

    Raises:
        ResultCountError: `result` does not have exactly `num_returns` values. If `result` is an iterator, the
            error is raised during iteration.
    """
    if num_returns == 1:
        return (result,)
    if num_returns == 0:
        return (None,)
    if isinstance(result, Iterator):
        return _first(result, num_returns, where)
    if not isinstance(result, (tuple, list)) or len(result) != num_returns:
        several = isinstance(result, (tuple, list))
        what = f"{len(result)} values" if several else f"one {type(result).__name__}"
        raise ResultCountError(
            f"{where} was called with num_returns={num_returns} but returned {what}: return a tuple or list "
            f"of {num_returns} values"
        )
    return result


def _first(items: Iterator[Any], num_returns: int, where: str) -> Iterator[Any]:
    try:
        for count in range(num_returns):
            try:
                item = next(items)
            except StopIteration:
                raise ResultCountError(
                    f"{where} was called with num_returns={num_returns} but yielded {count} values"
                ) from None
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:  # closing the generator runs its `finally` blocks at once
            close()


async def drained(items: AsyncIterator[Any], most: int) -> Iterator[Any]:
    """Return an iterator of at most `most` items, or of all items if `most` is negative.

    If `items` raises an error, the returned iterator raises the error after the last item.
    """
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
