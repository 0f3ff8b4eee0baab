"""How many workers a gang may have, and how many fit: pure arithmetic, no clock, no engine."""

from __future__ import annotations

from collections.abc import Sequence

from trainkit.resources import QUANTUM, Bundle

AT_ONCE_S = 2.0
"""What fits now is granted within moments, even by a machine under load."""


def allowed_sizes(
    num_workers: int, min_workers: int | None = None, *, model_ways: int = 1, batch_size: int | None = None
) -> tuple[int, ...]:
    """Worker counts that a gang may have, the largest first.

    Args:
        num_workers: the most.
        min_workers: the fewest; None is `num_workers`, so there is one count.
        model_ways: workers that hold one copy of the model together; counts are multiples of it.
        batch_size: of all workers together, to be split evenly among the copies of the model; None if
            each worker has a batch size of its own.
    """
    fewest = num_workers if min_workers is None else min_workers
    return tuple(
        size
        for size in range(num_workers, fewest - 1, -1)
        if size % model_ways == 0 and (batch_size is None or batch_size % (size // model_ways) == 0)
    )


def fitting(free: Bundle, bundle: Bundle) -> int:
    """How many times `bundle` can be taken from what is free, if nothing of it is in pieces."""
    asked = {name: round(amount * QUANTUM) for name, amount in bundle.items() if amount > 0}
    if not asked:
        raise ValueError(f"a bundle of nothing, {bundle}, fits without end")
    return max(0, min(round(free.get(name, 0) * QUANTUM) // amount for name, amount in asked.items()))


def larger_size(allowed: Sequence[int], current: int, more: int) -> int | None:
    """The largest allowed count above `current` for which `more` workers are enough, if there is one."""
    return next((size for size in sorted(allowed, reverse=True) if current < size <= current + more), None)


def patience_s(size: int, allowed: Sequence[int], *, full_s: float, last_s: float | None) -> float | None:
    """How long to wait for room for `size` workers before the next smaller count is tried.

    Long for the full count, which the machine may be about to have again; then whatever fits at once; and
    for the smallest as long as it takes, since there is nothing else left to try.
    """
    if size == min(allowed):
        return last_s
    return full_s if size == max(allowed) else AT_ONCE_S
