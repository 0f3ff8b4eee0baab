"""`TuneConfig(priors=...)`: where the search begins, and that a wrong belief is given up."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.gaussian_process.encoding import encoding_of
from trainkit.plugins.gaussian_process.priors import Belief
from trainkit.tune.search import GaussianProcessSearch
from trainkit.tune.space.search_space import Space

SPACE = {
    "lr": tune.loguniform(1e-6, 1.0),
    "model": {"depth": tune.randint(1, 20), "kind": tune.choice(["a", "b", "c"])},
    "rate": tune.uniform(0, 1),
}


def loss(config):
    model = config["model"]
    return math.log10(config["lr"] / 1e-5) ** 2 + abs(model["depth"] - 15) / 5 + (model["kind"] != "c")


def searched(number, priors, seed=0):
    searcher = GaussianProcessSearch()
    searcher.learn_from(None, priors, "loss", "min")
    searcher.begin(Space.of(SPACE), metric="loss", mode="min", num_samples=number, seed=seed)
    configs = []
    for n in range(number):
        configs.append(searcher.suggest(f"t{n}"))
        searcher.on_trial_complete(f"t{n}", {"loss": loss(configs[-1])})
    return configs


def best_of(configs):
    return min(map(loss, configs))


def test_the_first_configuration_has_the_believed_values():
    config = searched(1, {"lr": 1e-5, "model/kind": "c"})[0]
    assert config["lr"] == pytest.approx(1e-5) and config["model"]["kind"] == "c"
    assert config == searched(1, {"lr": 1e-5, "model": {"kind": "c"}})[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("priors", [{"rate": 0.2}, {"model/depth": 7}, {"rate": 0.2, "model/depth": 7}])
def test_other_numbers_of_the_first_configuration_are_in_the_middle(priors, seed):
    config = searched(1, priors, seed)[0]
    middle = {"lr": 1e-3, "rate": 0.5, "model/depth": 10}
    found = {"lr": config["lr"], "rate": config["rate"], "model/depth": config["model"]["depth"]}
    assert found == pytest.approx(middle | priors)


def test_the_next_ones_are_near_or_elsewhere():
    configs = searched(6, {"lr": 1e-5})
    near = [abs(math.log10(config["lr"] / 1e-5)) < 1 for config in configs]
    assert sum(near) >= 3 and not all(near)


def test_a_right_belief_helps():
    right = [best_of(searched(5, {"lr": 3e-5, "model/depth": 14}, seed)) for seed in range(4)]
    cold = [best_of(searched(5, {}, seed)) for seed in range(4)]
    assert np.mean(right) < 0.5 * np.mean(cold)


def test_a_wrong_belief_is_given_up():
    assert all(best_of(searched(20, {"lr": 0.5, "model/kind": "a"}, seed)) < 1 for seed in range(3))


@pytest.mark.parametrize(
    "priors, message",
    [
        ({"lrr": 1e-3}, "'lrr', but the space has no parameter of this name: .* Did you mean 'lr'"),
        ({"lr": 5.0}, "lr=5.0 is not in loguniform"),
        ({"model/kind": "d"}, "model/kind='d' is not in choice"),
    ],
)
def test_it_fits_the_space(priors, message):
    with pytest.raises(ConfigError, match=message):
        tune.Tuner(
            loss,
            param_space=SPACE,
            tune_config=tune.TuneConfig(metric="loss", mode="min", priors=priors),
        )


@pytest.mark.parametrize("priors", [5, ["lr"]])
def test_it_is_a_dictionary(priors):
    with pytest.raises(ConfigError, match="give a dictionary of values"):
        tune.TuneConfig(metric="loss", mode="min", priors=priors)


def test_other_searchers_refuse_it():
    with pytest.raises(ConfigError, match="does not support learn_from and priors"):
        tune.TuneConfig(metric="loss", mode="min", priors={"lr": 1e-3}, search_alg="random")


def test_a_belief_falls_with_the_distance_and_its_slopes_say_so():
    encoding = encoding_of(SPACE, own=True)
    belief = Belief(encoding, {"lr": 1e-5, "model/kind": "c"}, seed=0)
    rows = encoding.from_unit(np.random.default_rng(0).random((20, len(encoding))))
    assert belief.mean(belief.best[:1])[0] < belief.mean(rows).min()
    slopes = belief.slopes(rows)
    for column in range(len(encoding)):
        if not encoding.categories[column]:
            step = np.zeros(len(encoding))
            step[column] = 1e-6
            measured = (belief.mean(rows + step) - belief.mean(rows - step)) / 2e-6
            assert np.allclose(measured, slopes[:, column], atol=1e-6)


def test_an_inactive_parameter_is_not_believed_in():
    space = {
        "kind": tune.choice(["svm", "tree"]),
        "c": tune.when({"kind": "svm"}, tune.uniform(0, 1)),
    }
    encoding = encoding_of(space, own=True)
    belief = Belief(encoding, {"c": 0.5}, seed=0)
    with_it, without = encoding.row({"kind": "svm", "c": 0.5}), encoding.row({"kind": "tree"})
    assert belief.mean(with_it[None]) < belief.mean(without[None])


@pytest.mark.usefixtures("inline")
def test_a_restore_repeats_the_suggestions(fit, restore):
    def objective(config):
        return {"loss": loss(config)}

    settings = {"metric": "loss", "seed": 3, "max_concurrent_trials": 1, "priors": {"model": {"depth": 15}}}
    whole = fit(objective, SPACE, **settings, num_samples=8, run={"name": "whole"})
    for number in (1, 3, 6):
        fit(objective, SPACE, **settings, num_samples=number, run={"name": f"{number} trials"})
        rest = restore(objective, f"{number} trials", num_samples=8)
        assert [each.config for each in rest] == [each.config for each in whole]


CONDITION = {
    "act": tune.choice(["a", "b", "c", "d"]),
    "w": tune.when({"act": "a"}, tune.uniform(0, 1)),
    "rate": tune.uniform(0, 1),
}


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("seed", range(3))
def test_a_space_may_have_conditions(fit, seed):
    def objective(config):
        return {"loss": abs(config.get("w", 1.0) - 0.2)}

    found = fit(objective, CONDITION, metric="loss", num_samples=6, seed=seed, priors={"w": 0.2})
    assert found[0].config["w"] == pytest.approx(0.2)
    assert found[0].config["rate"] == 0.5


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("given", [None, "gp"])
def test_a_restore_with_the_same_settings_keeps_the_searcher(fit, restore, given):
    def objective(config):
        return {"loss": loss(config)}

    settings = {"metric": "loss", "seed": 3, "max_concurrent_trials": 1, "search_alg": given}
    sources = [
        {"name": "earlier", "mode": "min", "configs": [{"lr": 1e-5}, {"lr": 0.1}], "values": [0.0, 5.0]}
    ]
    known = {"priors": {"lr": 1e-4}, "learn_from": sources}
    part = fit(objective, SPACE, **settings, **known, num_samples=3)
    with pytest.raises(ConfigError, match=r"TuneConfig\(priors={'lr': 0.1}\) differs from the experiment's"):
        restore(objective, metric="loss", priors={"lr": 0.1})
    with pytest.raises(ConfigError, match=r"TuneConfig\(learn_from=.* differs from the experiment's"):
        restore(objective, metric="loss", learn_from=[{**sources[0], "values": [5.0, 0.0]}])
    known["learn_from"] = [{**sources[0], "name": "./earlier"}]
    rest = restore(objective, metric="loss", mode="min", num_samples=8, **known)
    assert rest.facts()["tune_config"]["search_alg"] == part.facts()["tune_config"]["search_alg"]
    whole = fit(objective, SPACE, **settings, **known, num_samples=8, run={"name": "whole"})
    assert [each.config for each in rest] == [each.config for each in whole]


def first(values):
    return values[0]


@pytest.mark.usefixtures("inline")
def test_a_restore_asks_for_a_prior_that_the_file_cannot_store(fit, restore):
    def objective(config):
        return {"loss": float(config["make"] is first)}

    space = {"make": tune.choice([first, lambda values: values[-1]]), "x": tune.uniform(0, 1)}
    priors = {"make": space["make"].categories[1]}
    settings = {"metric": "loss", "seed": 3, "max_concurrent_trials": 1, "priors": priors}
    fit(objective, space, **settings, num_samples=2)
    with pytest.raises(ConfigError, match="started with priors=an object, which its file cannot store"):
        restore(objective, param_space=space)
    rest = restore(objective, metric="loss", mode="min", priors=priors, num_samples=4, param_space=space)
    whole = fit(objective, space, **settings, num_samples=4, run={"name": "whole"})
    assert [each.config["x"] for each in rest] == [each.config["x"] for each in whole]


def test_a_dictionary_can_be_a_value():
    space = {"net": tune.choice([{"depth": 1}, {"depth": 9}]), "inner": {"x": tune.uniform(0, 1)}}
    searcher = GaussianProcessSearch()
    searcher.learn_from(None, {"net": {"depth": 9}, "inner": {"x": 0.2}}, "loss", "min")
    searcher.begin(Space.of(space), metric="loss", mode="min", num_samples=3, seed=0)
    assert searcher.suggest("t") == {"net": {"depth": 9}, "inner": {"x": pytest.approx(0.2, abs=0.02)}}


@pytest.mark.parametrize(
    "space, message",
    [
        ({"lr": tune.grid_search([1, 2])}, "without a grid: use tune.choice"),
        ({"lr": 1}, "with domains: replace a constant"),
    ],
)
def test_the_error_says_what_is_missing(space, message):
    with pytest.raises(ConfigError, match=message):
        tune.Tuner(
            loss,
            param_space=space,
            tune_config=tune.TuneConfig(metric="loss", mode="min", priors={"lr": 1}),
        )


def test_the_error_asks_for_the_mode():
    with pytest.raises(ConfigError, match="one metric and its mode"):
        tune.Tuner(loss, param_space=SPACE, tune_config=tune.TuneConfig(metric="loss", priors={"lr": 1e-3}))
