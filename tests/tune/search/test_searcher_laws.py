"""Laws of all searchers that come with trainkit, whatever happens to their trials, in whatever order."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from hyperopt import hp
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.testing.searcher import Row, Search
from trainkit.tune.search import (
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    Repeater,
    Searcher,
    TuneBOHB,
    describe_searcher,
    described_searcher,
)
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config

pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
optuna.logging.set_verbosity(optuna.logging.ERROR)

REAL = {"x": tune.uniform(-1, 1), "net": {"lr": tune.loguniform(1e-3, 1)}}
"""What every searcher takes."""


def eager_tpe() -> optuna.samplers.TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optuna.samplers.TPESampler(n_startup_trials=3, multivariate=True, constant_liar=True)


def by_run(trial: optuna.Trial) -> dict[str, Any]:
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        trial.suggest_float("x", 0, 1)
    else:
        trial.suggest_int("net/n", 1, 4)
    return {"constant": 1}


OF_HYPEROPT = {
    "c": hp.choice("c", [{"n": hp.randint("n", 3)}, {"x": hp.uniform("x", 0, 1)}]),
    "q": hp.quniform("q", 0, 4, 1),
}
OF_OPTUNA = {
    "net/x": optuna.distributions.FloatDistribution(0, 1),
    "k": optuna.distributions.CategoricalDistribution(["a", "b"]),
}
PLAIN: dict[str, Callable[..., Searcher]] = {
    "random": BasicVariantGenerator,
    "optuna": lambda **more: OptunaSearch(sampler=eager_tpe(), **more),
    "hyperopt": lambda **more: HyperOptSearch(n_initial_points=3, **more),
    "bayesopt": lambda **more: BayesOptSearch(random_search_steps=4, random_state=None, **more),
    "bohb": lambda **more: TuneBOHB(bohb_config={"random_fraction": 0.1}, **more),
    "gp": GaussianProcessSearch,
}
LEARNING = {name: make for name, make in PLAIN.items() if name != "random"}
AROUND: dict[str, Callable[..., Searcher]] = {
    "limited": lambda **more: ConcurrencyLimiter(OptunaSearch(sampler=eager_tpe(), **more), 99),
    "repeated": lambda **more: Repeater(HyperOptSearch(n_initial_points=3, **more), 2),
}
OWN_SPACE: dict[str, Callable[..., Searcher]] = {
    "optuna-domains": lambda: OptunaSearch(REAL, sampler=eager_tpe()),
    "optuna-by-run": lambda: OptunaSearch(by_run, sampler=eager_tpe()),
    "optuna-distributions": lambda: OptunaSearch(OF_OPTUNA, sampler=eager_tpe()),
    "hyperopt-domains": lambda: HyperOptSearch(REAL, n_initial_points=3),
    "hyperopt-own": lambda: HyperOptSearch(OF_HYPEROPT, n_initial_points=3),
    "bayesopt-bounds": lambda: BayesOptSearch({"x": (-1, 1), "net/lr": (0, 1)}, random_search_steps=3),
    "bohb-domains": lambda: TuneBOHB(REAL, bohb_config={"random_fraction": 0.1}),
    "gp-domains": lambda: GaussianProcessSearch(REAL),
}
CONSTANTS = {"net": {"depth": 3}, "data": [1, 2]}
"""Beside a searcher's own space."""

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["suggest", "suggest", "report", "pause", "go on", "end", "end", "nan", "fail"]),
        st.integers(0, 99),
        st.floats(-2, 2),
    ),
    min_size=8,
    max_size=30,
)


class Life(Search):
    """A search whose trials report, pause, go on, end and fail; the log has all of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.live: list[str] = []
        self.paused: set[str] = set()

    def happen(self, event: str, which: int, value: float) -> None:
        if event == "suggest" or not self.live:
            if self.next() is not None:
                self.live.append(list(self.configs)[-1])
            return
        trial_id = self.live[which % len(self.live)]
        result = {
            "loss": math.nan if event == "nan" else value,
            "training_iteration": 1,
            "trial_id": trial_id,
        }
        if event == "pause" and trial_id not in self.paused:
            self.paused.add(trial_id)
            self.tell("pause", trial_id, result)
        elif trial_id in self.paused:
            self.paused.discard(trial_id)
            self.tell("unpause", trial_id, result)
        elif event == "report":
            self.tell("result", trial_id, result)
        elif event in ("end", "nan", "fail"):
            self.live.remove(trial_id)
            self.tell("result", trial_id, result)
            self.tell("error" if event == "fail" else "complete", trial_id, result)

    def tell(self, what: str, trial_id: str, result: dict[str, Any]) -> None:
        if what not in ("pause", "unpause"):
            super().tell(what, trial_id, result)
            return
        self.log.append((what, trial_id, result))
        (self.source.on_pause if what == "pause" else self.source.on_unpause)(trial_id)

    def restored(self) -> Life:
        other = Life(self.row, self.space, self.num_samples, self.seed, self.arguments)
        for what, trial_id, value in self.log:
            if what == "suggest":
                stored = decode_config(encode_config(value))
                assert other.source.replay(trial_id, stored) == value
                other.configs[trial_id] = value
            else:
                other.tell(what, trial_id, value)
        return other


# rows 1.5, 1.24, 2.9
@pytest.mark.parametrize("name", [each for each in [*PLAIN, *AROUND, *OWN_SPACE] if "bayes" not in each])
@given(events=EVENTS, seed=st.integers(0, 2**31))
@settings(max_examples=6, deadline=None, derandomize=True)
def test_a_restore_goes_on_with_the_same_suggestions(name, events, seed):
    require_the_same_after_a_restore(name, events, seed)


# rows 1.5, 2.9
@pytest.mark.parametrize("name", ["bayesopt", "bayesopt-bounds"])
def test_a_restore_of_a_gaussian_process_does_too(name):
    """One life only, as each of its suggestions takes a tenth of a second."""
    ends = [("suggest", 0, 0.0), ("end", 0, 0.5), ("suggest", 0, 0.0), ("nan", 0, 0.0), ("suggest", 0, 0.0)]
    waits = [
        ("report", 0, 0.25),
        ("pause", 0, 0.0),
        ("suggest", 0, 0.0),
        ("end", 1, 0.75),
        ("suggest", 0, 0.0),
    ]
    require_the_same_after_a_restore(name, [*ends, *waits, ("fail", 1, 0.0), ("suggest", 0, 0.0)], 1)


def require_the_same_after_a_restore(name: str, events: list[tuple[str, int, float]], seed: int) -> None:
    make = {**PLAIN, **AROUND, **OWN_SPACE}[name]
    space = CONSTANTS if name in OWN_SPACE else REAL
    life = Life(Row(name, make, repeat=2 if name == "repeated" else 1), space, num_samples=40, seed=seed)
    for event in events:
        life.happen(*event)
    twin = life.restored()
    assert [life.next() for _ in range(2)] == [twin.next() for _ in range(2)]


@pytest.mark.parametrize("name", [*LEARNING])
@given(points=st.lists(st.floats(-0.9, 0.9), min_size=2, max_size=5, unique=True), events=EVENTS)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_points_come_first_each_once_and_what_was_evaluated_never(name, points, events):
    told = {"x": 0.125, "net": {"lr": 0.5}}

    def make() -> Searcher:
        searcher = LEARNING[name](points_to_evaluate=[{"x": x, "net/lr": 0.01} for x in points])
        for value in (0.5, math.nan, math.inf):
            searcher.add_evaluated_point(told, value)
        searcher.add_evaluated_point(told, None, error=True)
        return searcher

    life = Life(Row(name, make), REAL, num_samples=7)
    while life.next() is not None:
        life.live = list(life.configs)[-1:]
        life.happen(*events[len(life.configs) % len(events)])
    configs = list(life.configs.values())
    assert [config["x"] for config in configs[: len(points)]] == points
    assert all(config["net"]["lr"] == 0.01 for config in configs[: len(points)])
    given = [{"x": x, "net": {"lr": 0.01}} for x in points]
    assert not any(config in given for config in configs[len(points) :])
    assert told not in configs


@pytest.mark.parametrize(
    "name", [*PLAIN, "bayesopt-bounds", "bohb-domains", "gp-domains", "hyperopt-domains"]
)
def test_a_searcher_is_made_again_of_what_is_written_down(name):
    made = {**PLAIN, **OWN_SPACE}[name]()
    if name != "random":
        for x in (0.1, 0.2, 0.3, 0.4):
            made.add_evaluated_point({"x": x, "net": {"lr": 0.5}}, x)
    if name == "optuna":  # a sampler is an object that no file holds
        assert described_searcher(decode_config(encode_config(describe_searcher(made)))) is None
        made = OptunaSearch(seed=3)
        made.add_evaluated_point({"x": 0.1, "net": {"lr": 0.5}}, 1.0, pruned=True, intermediate_values=[2.0])
    again = described_searcher(decode_config(encode_config(describe_searcher(made))))
    assert again is not None
    assert describe_searcher(again) == describe_searcher(made)
    assert made.arguments.keys() == inspect.signature(type(made)).parameters.keys()
    whole = name not in OWN_SPACE
    for searcher in (made, again):
        space = Space.of(REAL if whole else None)
        searcher.begin(space, metric="loss", mode="min", num_samples=9, seed=5)
    assert [made.suggest(f"t{n}") for n in range(3)] == [again.suggest(f"t{n}") for n in range(3)]


@pytest.mark.parametrize("batch", [False, True])
@given(events=EVENTS, most=st.integers(1, 3))
@settings(max_examples=examples(30), deadline=None, derandomize=True)
def test_a_limited_searcher_has_no_more_trials_at_once(batch, events, most):
    row = Row("limited", lambda: ConcurrencyLimiter(BasicVariantGenerator(), most, batch=batch))
    life = Life(row, REAL, num_samples=40)
    for event in events:
        if event[0] != "pause":  # a paused one is not counted, and may continue
            life.happen(*event)
            assert len(life.live) <= most


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("name", LEARNING)
def test_a_model_goes_where_the_mode_says(name, mode):
    searcher = LEARNING[name]()
    space = Space.of({"x": tune.uniform(-1, 1), "y": tune.uniform(-1, 1)})
    searcher.begin(space, metric="m", mode=mode, num_samples=60, seed=0)
    found = []
    for n in range(24):
        config = searcher.suggest(f"t{n}")
        if config == Searcher.FINISHED:  # as BayesOptSearch does once it stays in a corner
            assert name == "bayesopt"
            break
        searcher.on_trial_complete(f"t{n}", {"m": config["x"] - config["y"] ** 2, "training_iteration": 1})
        found.append(config["x"])
        if name == "bayesopt" and n == 11:  # a model a suggestion takes its time
            break
    late = found[len(found) // 2 :]
    sign = 1 if mode == "max" else -1
    assert sign * sum(late) / len(late) > 0.2


@pytest.mark.parametrize("name", LEARNING)
def test_an_evaluated_point_outside_of_the_space_is_named(name):
    searcher = LEARNING[name]()
    searcher.add_evaluated_point({"x": 7.0, "net": {"lr": 0.5}}, 1.0)
    with pytest.raises(ConfigError, match=r"evaluated point .* is not in the space"):
        searcher.begin(Space.of(REAL), metric="loss", mode="min", num_samples=4, seed=0)
