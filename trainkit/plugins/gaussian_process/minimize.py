"""Minimum of a smooth function within bounds, by L-BFGS with projections.

Source: Nocedal, Wright, "Numerical Optimization", 2nd edition, 2006, algorithm 7.4.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainkit.plugins.gaussian_process.encoding import Floats

Function = Callable[[Floats], tuple[float, Floats]]
"""Function that returns its value and its gradient."""

MEMORY = 8
HALVINGS = 8


def minimize(function: Function, start: Floats, low: Floats, high: Floats, iterations: int) -> Floats:
    """Return the best point that the search from `start` finds. Each iteration needs about one evaluation.

    Args:
        function: the function to minimize.
        start: first point, shape (d,).
        low: lower bounds, shape (d,).
        high: upper bounds, shape (d,).
        iterations: maximum number of iterations.
    """
    point = np.clip(start, low, high)
    value, gradient = function(point)
    pairs: list[tuple[Floats, Floats, float]] = []
    for _ in range(iterations):
        held = ((point <= low) & (gradient > 0)) | ((point >= high) & (gradient < 0))
        free = np.where(held, 0.0, gradient)
        if np.abs(free).max(initial=0.0) < 1e-4:
            break
        step = np.where(held, 0.0, -_scaled(free, pairs))
        if step @ free >= 0:
            pairs, step = [], -free
        if not pairs:
            step = step / max(1.0, float(np.abs(free).sum()))
        for _ in range(HALVINGS):
            new = np.clip(point + step, low, high)
            new_value, new_gradient = function(new)
            if new_value <= value + 1e-4 * float(gradient @ (new - point)):
                break
            step = 0.4 * step
        else:
            break
        moved, bent = new - point, new_gradient - gradient
        gained = value - new_value
        point, value, gradient = new, new_value, new_gradient
        curvature = float(moved @ bent)
        if curvature > 1e-10:
            pairs = [*pairs[1 - MEMORY :], (moved, bent, curvature)]
        if gained < 1e-6:
            break
    return point


def _scaled(gradient: Floats, pairs: list[tuple[Floats, Floats, float]]) -> Floats:
    """Return the approximate inverse of the second derivatives times `gradient`."""
    found, factors = gradient, []
    for moved, bent, curvature in reversed(pairs):
        factors.append(float(moved @ found) / curvature)
        found = found - factors[-1] * bent
    if pairs:
        _, bent, curvature = pairs[-1]
        found = found * (curvature / float(bent @ bent))
    for (moved, bent, curvature), factor in zip(pairs, reversed(factors), strict=True):
        found = found + (factor - float(bent @ found) / curvature) * moved
    return found
