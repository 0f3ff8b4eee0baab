"""What parameter spaces mean: conversions keep support and distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.model_selection import ParameterSampler
from sklearn.svm import SVC

from tests.conftest import examples
from trainkit import tune
from trainkit.errors import SpaceError
from trainkit.sklearn.candidates import DomainDistribution, domain_of, for_sampler, for_searcher, is_declared
from trainkit.tune.space.domains import Categorical, Domain, Float, Integer

positive = st.floats(1e-6, 1e3)
ratios = st.floats(1.5, 1e6)
wholes = st.integers(-1000, 1000)
seeds = st.integers(0, 2**31)


def draws(domain: Domain, seed: int, size: int = 50) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [domain.draw(rng) for _ in range(size)]


def test_dimensions_of_scikit_optimize_keep_bounds_prior_and_type() -> None:
    space = pytest.importorskip("skopt.space")
    assert domain_of("x", space.Real(1, 10)) == Float(1.0, 10.0)
    assert domain_of("x", space.Real(1e-4, 0.1, prior="log-uniform")) == Float(1e-4, 0.1, log=True)
    assert domain_of("x", space.Integer(1, 5)) == Integer(1, 6)
    assert domain_of("x", space.Categorical(["a", "b"])) == Categorical(("a", "b"))
    with pytest.raises(SpaceError, match=r"x: .*leave prior out"):
        domain_of("x", space.Categorical(["a", "b"], prior=[0.2, 0.8]))
    drawn = list(ParameterSampler(for_sampler({"x": space.Real(1e-4, 0.1)}), 5, random_state=0))
    assert all(type(each["x"]) is float and 1e-4 <= each["x"] <= 0.1 for each in drawn)


@settings(deadline=None, max_examples=examples(20))
@given(
    st.sampled_from(
        [
            stats.uniform(-2, 5),
            stats.loguniform(1e-4, 1e2),
            stats.loguniform(1, 5, scale=3),
            stats.norm(3, 0.5),
            stats.randint(2, 30),
        ]
    ),
    seeds,
)
def test_draws_have_the_distribution_of_scipy(frozen: Any, seed: int) -> None:
    values = np.array(draws(domain_of("x", frozen), seed, 2000), dtype=float)
    # Kolmogorov and Smirnov's distance; 0.06 is far beyond chance for 2,000 draws (p < 1e-6).
    at = np.sort(values)
    below = np.searchsorted(at, at, side="right") / len(at)
    assert np.max(np.abs(below - frozen.cdf(at))) < 0.06


@given(positive, ratios, seeds)
def test_tuples_are_ranges(low: float, ratio: float, seed: int) -> None:
    high = low * ratio
    assert domain_of("x", (low, high)) == domain_of("x", (low, high, "uniform")) == Float(low, high)
    logarithmic = domain_of("x", (low, high, "log-uniform"))
    assert logarithmic == Float(low, high, log=True)
    assert all(low <= value <= high for value in draws(logarithmic, seed))


@given(wholes, st.integers(1, 100))
def test_whole_numbers_make_whole_ranges_with_both_ends(low: int, width: int) -> None:
    domain = domain_of("x", (low, low + width))
    assert isinstance(domain, Integer)
    assert domain.bounds == (low, low + width)


@pytest.mark.parametrize(
    "values", [["a", "b"], [SVC(), "passthrough", None], np.array([1, 2]), ("a", "b"), (1, 2, 3), range(3)]
)
def test_lists_are_categories(values: Any) -> None:
    domain = domain_of("x", values)
    assert isinstance(domain, Categorical)
    assert all(one is other or one == other for one, other in zip(domain.categories, values, strict=True))


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (optuna.distributions.FloatDistribution(0.1, 2.0, log=True), Float(0.1, 2.0, log=True)),
        (optuna.distributions.FloatDistribution(0.0, 1.0, step=0.25), Float(0.0, 1.0, q=0.25)),
        (optuna.distributions.IntDistribution(1, 9), Integer(1, 10)),
        (optuna.distributions.IntDistribution(1, 9, log=True), Integer(1, 10, log=True)),
        (optuna.distributions.IntDistribution(4, 12, step=4), Integer(4, 12, q=4)),
        (optuna.distributions.CategoricalDistribution(["a", "b"]), Categorical(("a", "b"))),
    ],
)
def test_distributions_of_optuna(given_: Any, expected: Domain) -> None:
    assert domain_of("x", given_) == expected


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (stats.expon(), "search_optimization='random'"),
        (stats.loguniform(1, 5, loc=2), "search_optimization='random'"),
        ((1e-4, 1.0, "log"), "neither 'uniform' nor 'log-uniform'"),
        ((2.0, 1.0), "not below"),
        ((0.0, 1.0, "log-uniform"), "logarithm"),
        (3, "list of one or more values"),
        ("rbf", "list of one or more values"),
        (optuna.distributions.IntDistribution(1, 9, step=4), "OptunaSearch"),
        ([], "at least one value"),
    ],
)
def test_what_has_no_meaning_is_told_with_its_name(wrong: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=r"^learning_rate") as caught:
        domain_of("learning_rate", wrong)
    assert words in str(caught.value)
    assert str(caught.value).count("learning_rate") == 1


# --- for scikit-learn's sampler -------------------------------------------------------------------


def test_what_scikit_learn_takes_stays_as_it_is() -> None:
    space = {"a": ["x"], "b": stats.expon(), "c": np.arange(3), "d": ("x", "y")}
    assert for_sampler(space) == [space]


@settings(deadline=None)
@given(seeds)
def test_sampler_draws_inside_domains(seed: int) -> None:
    space = {"lr": (1e-3, 1.0, "log-uniform"), "n": tune.lograndint(1, 50), "q": tune.quniform(0, 1, 0.1)}
    for candidate in ParameterSampler(for_sampler(space), 5, random_state=seed):
        assert 1e-3 <= candidate["lr"] <= 1.0
        assert candidate["n"] in range(1, 50)
        assert tune.quniform(0, 1, 0.1).contains(candidate["q"])


def test_finite_domains_are_drawn_without_repetition() -> None:
    # row 2.13
    (space,) = for_sampler({"a": tune.choice(["x", "y"]), "b": (1, 2), "c": tune.quniform(0, 1, 0.5)})
    assert not any(isinstance(each, DomainDistribution) for each in space.values())
    with pytest.warns(UserWarning, match="smaller than n_iter"):
        candidates = list(ParameterSampler(space, 50, random_state=0))
    assert len(candidates) == 2 * 2 * 3 == len({tuple(each.items()) for each in candidates})


# --- for searchers --------------------------------------------------------------------------------


def test_conditions_stay_and_their_content_is_translated() -> None:
    space = {"kernel": ["rbf", "poly"], "degree": tune.when({"kernel": "poly"}, stats.randint(2, 5))}
    assert is_declared(space)
    assert for_searcher(space)["degree"] == tune.when({"kernel": "poly"}, tune.randint(2, 5))


def test_several_dictionaries_are_refused_with_what_to_do() -> None:
    with pytest.raises(SpaceError, match=r"search_optimization='random'.*tune\.when"):
        for_searcher([{"a": [1]}, {"b": [1]}])
