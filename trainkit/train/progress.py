"""A progress bar over an epoch's batches, by tqdm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trainkit.errors import MissingDependencyError


def require_tqdm() -> None:
    """Raise MissingDependencyError if tqdm is not installed."""
    try:
        import tqdm  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError("use_tqdm=True needs tqdm: pip install tqdm") from error


def with_bar(batches: Iterable[Any], *, total: int | None, description: str) -> Iterator[Any]:
    """`batches`, counted on standard error while they are taken.

    Args:
        batches: what to count.
        total: how many there will be; None if not known.
        description: stands before the bar.
    """
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    yield from tqdm(batches, total=total, desc=description, unit="batch", leave=True)
