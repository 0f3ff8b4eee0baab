"""The own L-BFGS, which stays within bounds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from trainkit.plugins.gaussian_process.minimize import minimize


def test_a_valley_is_followed_to_its_end():
    found = minimize(
        lambda x: (rosen(x), rosen_der(x)), np.array([-1.2, 1, 0.5]), np.full(3, -5.0), np.full(3, 5.0), 200
    )
    np.testing.assert_allclose(found, 1, atol=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_a_bound_holds_what_would_leave(seed):
    rng = np.random.default_rng(seed)
    scales, centre = rng.uniform(0.1, 30, 8), rng.uniform(-2, 2, 8)
    low, high = np.full(8, -1.0), np.full(8, 1.0)
    found = minimize(
        lambda x: (float((scales * (x - centre) ** 2).sum()), 2 * scales * (x - centre)),
        np.zeros(8),
        low,
        high,
        60,
    )
    np.testing.assert_allclose(found, np.clip(centre, low, high), atol=1e-2)


def test_it_never_returns_a_worse_point():
    """The gradient is wrong on purpose."""

    def function(x):
        return float(x @ x), -x

    start = np.array([0.3, -0.2])
    assert function(minimize(function, start, np.full(2, -1.0), np.full(2, 1.0), 20))[0] <= function(start)[0]
