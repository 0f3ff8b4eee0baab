"""BOHB's model: how many points it takes, the split, the budget, the share of chance; and its rows."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.search.domains import ALL_DOMAINS
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.searchers.bohb import Observation, Observations, TuneBOHB
from trainkit.plugins.searchers.bohb_model import BOHBConfig, Encoding
from trainkit.tune.schedulers import Decision, Verdict
from trainkit.tune.space.search_space import Space

LINE = {"x": tune.uniform(0, 1)}


class Bench:
    """A searcher that is told what trials came to."""

    def __init__(self, space=LINE, seed=0, mode="min", **config) -> None:
        self.searcher = TuneBOHB(bohb_config={"random_fraction": 0, **config})
        self.searcher.begin(Space.of(space), metric="loss", mode=mode, num_samples=-1, seed=seed)
        self.number = 0

    def tell(self, config, loss, budget=0, verdict=Verdict.STOP) -> None:
        trial_id = f"told {self.number}"
        self.number += 1
        assert self.searcher.replay(trial_id, config) == config
        self.judged(trial_id, loss, budget, verdict)

    def judged(self, trial_id, loss, budget=0, verdict=Verdict.STOP) -> None:
        reason = {"rule": "rung", "rung": 3**budget, "budget": budget}
        self.searcher.on_trial_decision(trial_id, {"loss": loss}, Decision(verdict, reason))

    def tell_around(self, best, number=20, **where) -> None:
        """Losses are the distances from `best`, of points spread evenly."""
        for x in np.linspace(0, 0.999, number):
            self.tell({"x": float(x)}, abs(x - best), **where)

    def asked(self, number=40):
        return [self.searcher.suggest(f"asked {self.number} {n}") for n in range(number)]

    @property
    def models(self) -> bool:
        """True if suggestions crowd, as those of a model do."""
        return float(np.std([config["x"] for config in self.asked(60)])) < 0.2


# property 19: first model at d + 3 points with the paper's split
@pytest.mark.parametrize(("split", "first"), [("paper", 4), ("hpbandster", 4)])
def test_the_first_model_on_a_line(split, first):
    bench = Bench(split=split, min_bandwidth=0.01)
    for n, x in enumerate([0.2, 0.21, 0.9, 0.5]):
        assert n == first or not bench.models
        bench.tell({"x": x}, x)
    assert bench.models


# property 19
@pytest.mark.parametrize("dimensions", [1, 2, 4, 8, 16])
def test_the_sizes_of_the_two_parts(dimensions):
    least = dimensions + 1
    paper, other = BOHBConfig(), BOHBConfig(split="hpbandster")

    def first(config):
        return next(n for n in range(100) if config.split_sizes(n, n, dimensions) is not None)

    assert (first(paper), first(other)) == (dimensions + 3, 2 * (dimensions + 1))
    assert paper.split_sizes(dimensions + 3, dimensions + 3, dimensions) == (least, least)
    assert other.split_sizes(2 * least, 2 * least, dimensions) == (least, least)
    assert paper.split_sizes(1000, 1000, dimensions) == (150, 850)
    assert other.split_sizes(1000, 1000, dimensions) == (150, 850)
    many = BOHBConfig(min_points_in_model=30)
    assert (first(many), many.least(dimensions)) == (32, 30)
    assert BOHBConfig(min_points_in_model=1).least(dimensions) == least


@given(
    number=st.integers(0, 300),
    infinite=st.integers(0, 300),
    dimensions=st.integers(1, 20),
    percent=st.floats(1, 99),
    split=st.sampled_from(["paper", "hpbandster"]),
)
def test_no_part_is_larger_than_what_there_is(number, infinite, dimensions, percent, split):
    finite = max(0, number - infinite)
    config = BOHBConfig(top_n_percent=percent, split=split)
    sizes = config.split_sizes(number, finite, dimensions)
    if sizes is not None:
        good, bad = sizes
        assert dimensions < good <= finite and dimensions < bad <= number


# property 19
def test_the_largest_budget_with_enough_is_used():
    bench = Bench()
    bench.tell_around(0.2, budget=0)
    assert np.median([config["x"] for config in bench.asked()]) == pytest.approx(0.2, abs=0.1)
    for x in (0.8, 0.82, 0.1):
        bench.tell({"x": x}, abs(x - 0.8), budget=1)
    assert np.median([config["x"] for config in bench.asked()]) == pytest.approx(0.2, abs=0.1)
    bench.tell({"x": 0.15}, 0.65, budget=1)
    assert np.median([config["x"] for config in bench.asked()]) == pytest.approx(0.8, abs=0.1)
    bench.tell_around(0.5, budget=0)  # of a smaller one, which changes nothing
    assert np.median([config["x"] for config in bench.asked()]) == pytest.approx(0.8, abs=0.1)


# property 19
def test_a_third_is_random():
    bench = Bench(random_fraction=1 / 3, min_bandwidth=1e-3)
    for n in range(40):
        bench.tell({"x": 0.5 + 1e-4 * n if n < 6 else n / 40}, n)
    far = sum(abs(config["x"] - 0.5) > 0.02 for config in bench.asked(900))
    assert far / 900 / 0.96 == pytest.approx(1 / 3, abs=0.05)


def test_worst_are_nan_infinities_and_failures():
    """And they are never good, even where most are such."""
    bench = Bench()
    for n, loss in enumerate([math.nan, math.inf, -math.inf]):
        for m in range(10):
            bench.tell({"x": 0.9 + (10 * n + m) / 400}, loss)
    for n in range(10):
        trial_id = f"failed {n}"
        bench.searcher.replay(trial_id, {"x": 0.8 + n / 200})
        bench.searcher.on_trial_complete(trial_id, None, error=True)
    assert not bench.models
    for x in (0.1, 0.12, 0.3, 0.15):
        bench.tell({"x": x}, x)
    assert max(config["x"] for config in bench.asked()) < 0.75


# --- what is observed -----------------------------------------------------------------------------


def everything(number, finite):
    return number > 0


def losses(known, enough=everything):
    return [(each.trial_id, each.loss) for each in known.basis(enough)]


# property 17
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=40)
)
def test_on_every_budget_each_trial_has_its_first_loss(calls):
    known, first = Observations(), {}
    for trial_id, budget, loss in calls:
        known.judge(trial_id, budget, loss)
        first.setdefault((budget, trial_id), loss)
    for least in range(1, 5):
        # That none has enough means that no budget has been reached by so many.
        counts = Counter(budget for budget, _ in first)
        found = known.basis(lambda number, finite, least=least: number >= least)
        fit = [budget for budget, count in counts.items() if count >= least]
        if not fit:
            assert found is None
        else:
            assert found == [Observation(who, loss) for (at, who), loss in first.items() if at == max(fit)]


def test_a_failure_counts_where_a_trial_never_came():
    known = Observations()
    known.judge("a", 0, 0.5)
    known.judge("a", 1, 0.4)
    known.judge("b", 0, 0.6)
    known.judge("b", 1, 0.7)
    known.judge("c", 0, 0.3)
    known.fail("c")
    known.fail("d")
    assert losses(known) == [("a", 0.4), ("b", 0.7), ("c", math.inf), ("d", math.inf)]
    of_three = losses(known, lambda number, finite: finite > 2)
    assert of_three == [("a", 0.5), ("b", 0.6), ("c", 0.3), ("d", math.inf)]
    known.go_on("c")
    assert dict(losses(known)).keys() == {"a", "b", "d"}


def test_what_was_evaluated_elsewhere_counts_on_the_largest_budget():
    known = Observations()
    known.evaluate("e", 0.1)
    assert losses(known) == [("e", 0.1)]
    known.judge("a", 0, 0.5)
    known.judge("b", 0, 0.5)
    known.judge("a", 1, 0.4)
    assert losses(known) == [("e", 0.1), ("a", 0.4)]
    assert known.basis(lambda number, finite: number > 2) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"min_points_in_model": 0}, "min_points_in_model=0: give 1 or more"),
        ({"top_n_percent": 100}, "top_n_percent=100"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"random_fraction": 1.5}, "random_fraction=1.5: give a number from 0 to 1"),
        ({"bandwidth_factor": math.nan}, "bandwidth_factor=nan"),
        ({"min_bandwidth": 0}, "min_bandwidth=0"),
        ({"split": "half"}, "split='half' is not one of 'paper', 'hpbandster'"),
        ({"eta": 3}, "takes a dictionary with any of min_points_in_model"),
        ([], "takes a dictionary"),
    ],
)
def test_what_bohb_config_may_not_hold(config, words):
    with pytest.raises(ConfigError, match=words):
        TuneBOHB(bohb_config=config)


# --- configurations as rows, and back ---------------------------------------------------------------

DOMAINS = {
    name: each for name, each in ALL_DOMAINS.items() if name not in ("objects", "list", "computed")
} | {
    "large": tune.randint(0, 2**62),
    "wide": tune.uniform(-1e308, 1e308),
    "twice": tune.choice(["a", "b", "a"]),
}


@pytest.mark.parametrize("name", DOMAINS)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_value_is_told_by_its_number(name, seed):
    space = Space.of({name: DOMAINS[name]})
    encoding, rng = Encoding(space), np.random.default_rng(seed)
    config = space.configuration(0, rng)
    row = encoding.row(config)
    if encoding.columns[0].categories is None:
        assert 0 <= row[0] <= 1
    back = encoding.config(row, rng)
    if isinstance(config[name], (float, int)) and not isinstance(config[name], bool):
        assert back[name] == pytest.approx(config[name], rel=1e-9, abs=1e-9)
        assert space.contains(back)
    else:
        assert back == config
    assert encoding.snapped(row[None]) == pytest.approx(row[None])


def test_whole_numbers_own_half_a_step_to_either_side():
    encoding = Encoding(Space.of({"k": tune.randint(3, 7)}))
    assert [encoding.row({"k": k})[0] for k in (3, 4, 5, 6)] == [0.125, 0.375, 0.625, 0.875]
    numbers = np.linspace(0, 1, 4001)[:-1]
    values = [encoding.config(np.array([x]), np.random.default_rng(0))["k"] for x in numbers]
    assert [values.count(k) for k in (3, 4, 5, 6)] == [1000] * 4
