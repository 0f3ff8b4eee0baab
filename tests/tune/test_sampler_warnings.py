"""What Optuna's samplers leave to chance is said: once, and before the first trial."""

from __future__ import annotations

import optuna
import pytest
from optuna import samplers

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.search import OptunaSearch

pytestmark = [
    pytest.mark.usefixtures("inline"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_a_warning_of_the_samplers_comes_once(fit, caplog):
    """CMA-ES warns at each value that it leaves to another; what others log meanwhile is not touched."""
    theirs = optuna.logging.get_logger(samplers.CmaEsSampler.__module__)

    def trainable(config):
        theirs.warning("of another study")
        return {"loss": config["x"] ** 2 + config["y"]}

    def space(trial):
        for name in ("x", "y"):
            trial.suggest_float(name, -10, 10)
        trial.suggest_categorical("kind", ["a", "b"])
        trial.suggest_categorical("other", [1, 2])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        for name in ("one", "two"):  # each experiment says it
            searcher = OptunaSearch(space, sampler=samplers.CmaEsSampler())
            fit(trainable, metric="loss", num_samples=8, search_alg=searcher, seed=0, run={"name": name})
    finally:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
    assert caplog.text.count("The parameter `kind`") == caplog.text.count("The parameter `other`") == 2
    assert caplog.text.count("of another study") == 16
    assert not theirs.filters


BRANCHES = {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])} | {
    "y": tune.when({"kind": "a"}, tune.uniform(0, 1))
}


def searched(fit, sampler, space):
    given = {"metric": "loss", "num_samples": 12, "seed": 0, "search_alg": OptunaSearch(sampler=sampler)}
    return fit(lambda config: {"loss": config.get("x", 0)}, space, **given)


@pytest.mark.parametrize(
    ("sampler", "left"),
    [
        (
            lambda: samplers.CmaEsSampler(),
            "CmaEsSampler models numbers that every trial has, and none of kind, y,",
        ),
        (lambda: samplers.GPSampler(), "GPSampler models parameters that every trial has, and none of y,"),
        (lambda: samplers.PartialFixedSampler({"x": 0.5}, samplers.CmaEsSampler()), "none of kind, y,"),
    ],
)
def test_what_a_sampler_would_draw_at_random_is_named_before_the_first_trial(fit, caplog, sampler, left):
    searched(fit, sampler(), BRANCHES)
    assert caplog.text.count(left) == 1
    assert "take TPESampler, which OptunaSearch has by default" in caplog.text


def test_a_sampler_that_would_draw_all_at_random_is_refused(fit):
    with pytest.raises(ConfigError, match=r"none of kind, .*take TPESampler"):
        searched(fit, samplers.CmaEsSampler(), {"kind": tune.choice(["a", "b"])})


@pytest.mark.parametrize(
    ("sampler", "space"),
    [
        (lambda: samplers.CmaEsSampler(warn_independent_sampling=False), BRANCHES),
        (lambda: samplers.CmaEsSampler(independent_sampler=samplers.TPESampler()), BRANCHES),
        (lambda: samplers.CmaEsSampler(), {"x": tune.uniform(0, 1), "y": tune.randint(0, 9)}),
        (lambda: samplers.TPESampler(), BRANCHES),
    ],
)
def test_who_knows_is_not_told(fit, caplog, sampler, space):
    searched(fit, sampler(), space)
    assert "would be drawn at random" not in caplog.text
