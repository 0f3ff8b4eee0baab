"""PB2's process and acquisition against brute force, and its bounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.pb2.scheduler import (
    Acquisition,
    Bandit,
    Choice,
    Kernel,
    Points,
    from_unit,
    maximised,
    negative_log_likelihood,
    standardized,
    to_unit,
)
from trainkit.tune.schedulers import PB2, described_scheduler
from trainkit.tune.space.domains import Float, Integer

KERNEL = Kernel(1.3, 0.4, 0.7, 0.15, 0.02)


def observed(n: int, dimensions: int = 3, seed: int = 0) -> tuple[Points, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = Points(rng.random(n), rng.random((n, dimensions)), rng.integers(0, 9, n).astype(float))
    return points, rng.normal(size=n)


def plain_covariance(one: tuple, other: tuple, kernel: Kernel) -> float:
    (c, x, t), (d, y, s) = one, other
    apart = sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
    return (
        kernel.variance
        * math.exp(-apart / 2 / kernel.lengthscale**2)
        * math.exp(-((c - d) ** 2) / 2 / kernel.context**2)
        * (1 - kernel.forgetting) ** (abs(t - s) / 2)
    )


def rows(points: Points) -> list[tuple]:
    return list(zip(points.context, points.x, points.t, strict=True))


# --- 26: the process and the acquisition ----------------------------------------------------------


def test_26_the_acquisition_is_that_of_a_brute_force_process_on_twenty_points():
    known, y = observed(20)
    pending, _ = observed(3, seed=1)
    asked, _ = observed(5, seed=2)
    now, context = 9.5, 0.8
    acquisition = Acquisition(KERNEL, known, y, pending, now, context)
    for x, ours in zip(asked.x, acquisition(asked.x), strict=True):
        here = (context, x, now)

        def posterior(seen: list[tuple], here: tuple = here) -> tuple[np.ndarray, float]:
            across = np.array([plain_covariance(here, each, KERNEL) for each in seen])
            among = np.array([[plain_covariance(a, b, KERNEL) for b in seen] for a in seen])
            weights = across @ np.linalg.inv(among + KERNEL.noise * np.eye(len(seen)))
            return weights, plain_covariance(here, here, KERNEL) - float(weights @ across)

        weights, _ = posterior(rows(known))
        _, variance = posterior([*rows(known), *rows(pending)])
        expected = float(weights @ y) + math.sqrt(0.2 + math.log(0.4 * now)) * math.sqrt(variance)
        assert ours == pytest.approx(expected, abs=1e-6)


def test_26_the_gradient_is_that_of_finite_differences():
    known, y = observed(12)
    theta, step = KERNEL.theta, 1e-6
    _, gradient = negative_log_likelihood(theta, known, y)
    _, by_kernel = KERNEL.with_gradient(known)
    for place in range(5):
        ahead, back = theta.copy(), theta.copy()
        ahead[place] += step
        back[place] -= step
        values = [negative_log_likelihood(each, known, y)[0] for each in (ahead, back)]
        assert gradient[place] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-6)
        covariances = [
            Kernel.of(each).with_gradient(known)[0] + Kernel.of(each).noise * np.eye(12)
            for each in (ahead, back)
        ]
        differences = (covariances[0] - covariances[1]) / (2 * step)
        assert by_kernel[place] == pytest.approx(differences, abs=1e-6)


def test_gains_are_standardized_and_clipped():
    assert standardized(np.array([2.0, 2.0, 2.0])).tolist() == [0, 0, 0]
    assert standardized(np.empty(0)).tolist() == []
    values = standardized(np.array([0.0] * 50 + [1e6]))
    assert values.max() == 2.0
    assert abs(values[0]) < 0.2


def test_the_largest_acquisition_is_found_between_the_candidates():
    def bowl(x: np.ndarray) -> np.ndarray:
        return -((x - np.array([0.123456, 1.0, 0.0])) ** 2).sum(axis=1)

    found = maximised(bowl, 3, np.random.default_rng(0))
    assert found == pytest.approx([0.123456, 1.0, 0.0], abs=1e-5)


def test_choices_of_one_round_differ():
    bandit, rng = Bandit(1), np.random.default_rng(0)
    for place in range(20):
        h = place / 19
        bandit.learn(Choice(place // 4, place / 4, np.array([h])), 1 - (h - 0.6) ** 2)
    first = bandit.choose(5, 5.0, rng)
    pending = [first]
    for _ in range(3):
        pending.append(bandit.choose(5, 5.0, rng, pending))
    places = sorted(float(choice.x[0]) for choice in pending)
    assert places[0] > 0.2
    assert min(b - a for a, b in itertools.pairwise(places)) > 0


# --- bounds ---------------------------------------------------------------------------------------

bounded = st.one_of(
    st.tuples(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3)).map(lambda p: Float(p[0], p[0] + p[1])),
    st.tuples(st.floats(1e-6, 1e3), st.floats(1.5, 1e4)).map(lambda p: Float(p[0], p[0] * p[1], log=True)),
    st.tuples(st.integers(-50, 50), st.integers(1, 99)).map(lambda p: Integer(p[0], p[0] + p[1])),
    st.tuples(st.integers(1, 50), st.integers(1, 999)).map(lambda p: Integer(p[0], p[0] + p[1], log=True)),
    st.sampled_from([Integer(0, 96, q=8), Integer(8, 512, log=True, q=8), Float(0, 1, q=0.1)]),
    st.just(Float(0.1, 3, log=True, q=0.1)),
)


@given(bounded, st.floats(0, 1))
def test_26_bounds_and_types_are_kept(domain, share):
    value = from_unit(share, domain)
    assert domain.contains(value)
    assert isinstance(value, int) is isinstance(domain, Integer)
    again = to_unit(value, domain)
    assert again is not None
    assert domain.contains(from_unit(min(max(again, 0.0), 1.0), domain))


@given(st.integers(-20, 20), st.integers(2, 40), st.booleans())
def test_whole_numbers_have_equal_room_and_survive_the_way_there_and_back(lower, count, log):
    domain = Integer(abs(lower) + 1, abs(lower) + 1 + count, log=log)
    for value in domain.values():
        assert from_unit(to_unit(value, domain) or 0.0, domain) == value
    if not log:
        shares = [from_unit((k + 0.5) / (10 * count), domain) for k in range(10 * count)]
        assert {shares.count(value) for value in domain.values()} == {10}


def test_whole_numbers_are_rounded_half_up_where_only_the_value_is_one():
    domain = Float(0.0, 10.0)
    assert [from_unit(share, domain, like=3) for share in (0.04, 0.05, 0.25, 1.0)] == [0, 1, 3, 10]
    assert from_unit(0.25, domain, like=3.0) == 2.5
    assert from_unit(0.5, Float(0.2, 0.8), like=1) == 0.5  # no whole number lies between


def test_odd_values_have_a_place_or_none():
    log = Float(1e-4, 1e-1, log=True)
    assert to_unit(1e-4, log) == pytest.approx(0)
    assert to_unit(10**-2.5, log) == pytest.approx(0.5)
    assert to_unit(-1.0, log) == -1.0
    assert to_unit(1e9, log) == 2.0
    assert [to_unit(value, log) for value in ("a", None, True, math.nan)] == [None] * 4


def test_bounds_are_searched_as_the_space_draws_the_value():
    scheduler = PB2(hyperparam_bounds={"lr": [1e-4, 0.1], "n": [2, 8], "net": {"d": [0, 1]}, "new": [0, 5]})
    space = {"lr": tune.loguniform(1e-5, 1), "n": tune.lograndint(1, 9), "net": {"d": 0.5}}
    whole = scheduler.completed_space(space)
    assert whole["new"] == Float(0.0, 5.0)
    assert whole["lr"] == space["lr"]
    assert scheduler.hyperparam_mutations == {
        "lr": Float(1e-4, 0.1, log=True),
        "n": Integer(2, 9, log=True),
        "net": {"d": Float(0.0, 1.0)},
        "new": Float(0.0, 5.0),
    }
    made = described_scheduler({"class": "PB2", "arguments": scheduler.arguments})
    assert isinstance(made, PB2)
    assert made.arguments == scheduler.arguments
    with pytest.raises(ConfigError, match=r"hyperparam_bounds\['lr'\]=\[0, 1\] does not match loguniform"):
        PB2(hyperparam_bounds={"lr": [0, 1]}).completed_space(space)
