"""The probability that a configuration satisfies constraints, and the search that follows it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.plugins.gaussian_process.acquisition import Gain, proposals
from trainkit.plugins.gaussian_process.constraints import Feasibility, excesses_of
from trainkit.plugins.gaussian_process.encoding import encoding_of
from trainkit.plugins.gaussian_process.model import process_of
from trainkit.plugins.testing.searcher import Row, Search
from trainkit.tune.core.constraints import VIOLATION, Constraint, constraints_of, violation_of
from trainkit.tune.search import ConcurrencyLimiter, GaussianProcessSearch
from trainkit.tune.space.search_space import Space

SPACE = {"x": tune.uniform(0, 10), "y": tune.uniform(0, 10), "kind": tune.choice(["a", "b"])}
LIMITS = constraints_of(["size <= 4", "accuracy >= 0.5"])


def trials(number=30, seed=0):
    """Encoding, rows, losses and excesses of random trials: x is to be at most 4."""
    encoding = encoding_of(Space.of(SPACE), own=False)
    rng = np.random.default_rng(seed)
    rows = encoding.snapped(encoding.from_unit(rng.random((number, len(encoding)))))
    configs = [encoding.config(row, {}, rng) for row in rows]
    excesses = [excesses_of({"size": each["x"], "accuracy": 1}, LIMITS) for each in configs]
    return encoding, rows, [-each["x"] for each in configs], np.array(excesses)


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(st.floats(allow_nan=False, allow_infinity=False), numbers, st.sampled_from(["<=", ">="]))
def test_an_excess_is_positive_exactly_if_the_value_is_infeasible(limit, value, sense):
    (excess,) = excesses_of({"m": value}, [Constraint("m", sense, limit)])
    feasible = value <= limit if sense == "<=" else value >= limit
    assert math.isfinite(excess)
    assert (excess <= 0) == feasible


def test_positive_values_are_compared_by_their_ratio_and_a_missing_value_is_unknown():
    assert excesses_of({"size": 8, "accuracy": 0.25}, LIMITS) == pytest.approx([math.log(2)] * 2)
    assert excesses_of({"size": -4}, LIMITS)[0] == -2
    assert math.isnan(excesses_of({"size": 1}, LIMITS)[1])


def test_the_probability_is_large_where_trials_were_feasible():
    encoding, rows, _, excesses = trials()
    feasibility = Feasibility(encoding, rows, excesses)
    found = np.exp(feasibility.log_probability(rows))
    assert np.all((found > 0.5) == np.all(excesses <= 0, axis=1))
    assert np.all(found <= 1)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_counts_as_far_beyond_the_limit(value):
    encoding, rows, _, excesses = trials()
    (unusual,) = excesses_of({"size": value}, LIMITS[:1])
    excesses[0, 0] = excesses[:, 0].max()
    once = Feasibility(encoding, rows, excesses).log_probability(rows)
    excesses[0, 0] = unusual
    assert np.array_equal(Feasibility(encoding, rows, excesses).log_probability(rows), once)


def test_the_derivatives_of_the_gain_are_right():
    encoding, rows, losses, excesses = trials()
    feasibility = Feasibility(encoding, rows, excesses)
    process = process_of(encoding, rows, losses)
    at = encoding.from_unit(np.random.default_rng(1).random((8, len(encoding)))) * [0.9, 0.9, 1] + [
        0.05,
        0.05,
        0,
    ]
    for gain in (Gain(process, None, feasibility), Gain(process, min(losses) / 3, feasibility)):
        values, slopes = gain.gradients(at)
        assert values == pytest.approx(gain(at))
        for column in range(2):
            step = np.zeros(len(encoding))
            step[column] = 1e-5
            assert slopes[:, column] == pytest.approx(
                (gain(at + step) - gain(at - step)) / 2e-5, rel=1e-3, abs=1e-4
            )


def test_a_probability_far_from_the_limit_stays_finite():
    encoding, rows, _, _ = trials()
    excesses = np.full((len(rows), 1), 1e150)
    excesses[0] = -1e-300
    feasibility = Feasibility(encoding, rows, excesses)
    assert np.all(np.isfinite(feasibility.log_probability(rows)))
    assert np.all(np.isfinite(feasibility.gradients(rows)[1]))


def test_without_a_known_value_every_row_is_probable():
    encoding, rows, _, _ = trials()
    assert not Feasibility(encoding, rows, np.full((len(rows), 2), np.nan)).log_probability(rows).any()


def test_the_best_proposal_is_probably_feasible_although_losses_fall_beyond_the_limit():
    encoding, rows, losses, excesses = trials()
    process, feasibility = process_of(encoding, rows, losses), Feasibility(encoding, rows, excesses)
    rng = np.random.default_rng(2)
    ended = np.all(excesses <= 0, axis=1)
    best = encoding.config(proposals(process, encoding, rng, feasibility, rows[ended])[0], {}, rng)
    assert 3.5 < best["x"] <= 4.1
    assert encoding.config(proposals(process, encoding, rng)[0], {}, rng)["x"] > 9


@pytest.mark.parametrize("limit", ["size <= 4", "size <= -1"])
def test_a_search_keeps_to_what_is_feasible_and_looks_for_it(limit):
    limits = constraints_of([limit])

    class Limited(GaussianProcessSearch):
        def begin(self, *args, **options):
            self.set_constraints(limits)
            super().begin(*args, **options)

    search = Search(Row("gp", Limited), {"x": tune.uniform(0, 10), "y": tune.uniform(0, 10)}, num_samples=20)
    while (config := search.next()) is not None:
        trial_id = list(search.configs)[-1]
        result = {"loss": -config["x"] - config["y"], "size": config["x"], "trial_id": trial_id}
        search.tell("result", trial_id, result | {VIOLATION: violation_of(result, limits)})
        search.tell("complete", trial_id, result | {VIOLATION: violation_of(result, limits)})
    later = [config["x"] for config in list(search.configs.values())[12:]]
    if limit == "size <= 4":
        assert max(config["x"] for config in search.configs.values() if config["x"] <= 4) > 3.8
        assert sum(x <= 4 for x in later) >= 4
    else:
        assert min(search.configs[name]["x"] for name in search.configs) < 0.1  # nearest to the feasible
    assert list(search.restored().configs.values()) == list(search.configs.values())


def test_the_default_search_and_a_wrapped_search_follow_the_constraints():
    def report(config, iteration, rng):
        return {"loss": -config["x"] - config["y"], "size": config["x"], "done": True}

    found = [
        tune.simulate(
            report,
            {"x": tune.uniform(0, 10), "y": tune.uniform(0, 10)},
            tune.TuneConfig(
                metric="loss", mode="min", num_samples=20, constraints=["size <= 4"], search_alg=searcher
            ),
            workers=1,
            seed=0,
        )
        for searcher in ("gp", None, ConcurrencyLimiter(GaussianProcessSearch(), 1))
    ]
    configs = [[each.config for each in results] for results in found]
    assert configs[0] == configs[1] == configs[2]
    assert found[0].get_best_result().config["x"] > 3.8
