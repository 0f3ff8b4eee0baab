"""No configuration is evaluated twice unless asked; row 2.13."""

from __future__ import annotations

import os
import signal

import optuna
import pytest
from hyperopt import hp

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.gaussian_process.search import GaussianProcessSearch
from trainkit.plugins.searchers.bayesopt import BayesOptSearch
from trainkit.plugins.searchers.bohb import TuneBOHB
from trainkit.tune.search import BasicVariantGenerator, HyperOptSearch, OptunaSearch, Searcher
from trainkit.tune.space.configurations import fingerprint, nested
from trainkit.tune.store.reader import ExperimentReader

pytestmark = pytest.mark.usefixtures("inline")


def once(config):
    return {"loss": float(len(str(config)))}


def ending(folder) -> str:
    with ExperimentReader(folder) as reader:
        ((detail,),) = reader._rows("SELECT detail FROM events WHERE kind = 'ended'")
    return detail


AGAIN = "; TuneConfig(allow_duplicates=True) tries some of them again"

SEARCHERS = {"random": BasicVariantGenerator, "optuna": OptunaSearch}


# row 2.13
@pytest.mark.parametrize("name", SEARCHERS)
def test_two_values_are_two_trials_and_the_run_says_why_it_ends(fit, tmp_path, name):
    space = {"x": tune.choice(["a", "b"])}
    grid = fit(once, space, metric="loss", num_samples=6, search_alg=SEARCHERS[name]())
    assert sorted(result.config["x"] for result in grid) == ["a", "b"]
    assert ending(tmp_path / "e") == "all 2 configurations of the space were tried" + AGAIN


def test_a_restore_makes_the_same_choices(fit, restore):
    space = {"x": tune.randint(0, 8), "y": tune.choice(["a", "b"])}
    whole = fit(once, space, num_samples=16, seed=3, run={"name": "whole"})
    fit(once, space, num_samples=9, seed=3)
    restored = restore(once, num_samples=20)
    assert [result.config for result in restored] == [result.config for result in whole]
    assert len(restored) == 16


@pytest.mark.parametrize(
    ("space", "number"),
    [({}, 3), ({"a": 1}, 3), ({"a": tune.grid_search([1, 2])}, 6), ({"a": tune.grid_search([1, 1])}, 6)],
)
def test_what_is_repeated_by_the_user_is_repeated(fit, space, number):
    assert len(fit(once, space, num_samples=3)) == number


def test_beside_a_grid_each_combination_is_used_up_for_itself(fit, tmp_path):
    space = {"a": tune.grid_search([1, 2]), "b": tune.choice(["x", "y"])}
    grid = fit(once, space, num_samples=5)
    pairs = [(result.config["a"], result.config["b"]) for result in grid]
    assert len(pairs) == len(set(pairs)) == 4
    assert ending(tmp_path / "e") == "all 4 configurations of the space were tried" + AGAIN


def test_a_constant_draw_is_drawn_anew_for_the_whole_grid(fit):
    space = {"a": tune.grid_search([1, 2]), "b": tune.randint(0, 3)}
    search = BasicVariantGenerator(constant_grid_search=True)
    grid = fit(once, space, num_samples=5, search_alg=search)
    pairs = [(result.config["a"], result.config["b"]) for result in grid]
    assert pairs[::2] == [(1, b) for _, b in pairs[1::2]]
    assert len(set(pairs)) == 6


@pytest.mark.parametrize("first", [2, 3])
def test_a_restore_goes_on_with_a_constant_draw(fit, restore, first):
    class Interrupt(tune.Callback):
        ended = 0

        def on_trial_complete(self, iteration, trials, trial, **info):
            Interrupt.ended += 1
            if Interrupt.ended == first:
                os.kill(os.getpid(), signal.SIGINT)

    space = {"a": tune.grid_search([1, 2]), "b": tune.randint(0, 3)}
    settings = {"seed": 7, "num_samples": 3, "max_concurrent_trials": 1}
    search = BasicVariantGenerator(constant_grid_search=True)
    whole = fit(once, space, search_alg=search, run={"name": "whole"}, **settings)
    assert len(fit(once, space, search_alg=search, run={"callbacks": [Interrupt()]}, **settings)) < 6
    rest = restore(once, run={"callbacks": []})
    assert [result.config for result in rest] == [result.config for result in whole]


class Named:
    def __init__(self, size: int) -> None:
        self.size = size


def test_objects_with_one_name_are_told_apart(fit):
    space = {"x": tune.choice([Named(1), Named(2)])}
    grid = fit(lambda config: {"loss": config["x"].size}, space, num_samples=6)
    assert sorted(result.metrics["loss"] for result in grid) == [1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        ({"a": "1"}, {"a": 1}),
        ({1: "a"}, {"1": "a"}),
        ({"a": {1, 2}}, {"a": [1, 2]}),
        ({"a": {"b": 1}}, {"a": 1, "b": 1}),
        ({"a": None}, {}),
    ],
)
def test_configurations_are_told_apart(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_the_order_of_keys_and_of_sets_is_none():
    assert fingerprint({"a": 1, "b": {2, 3, 11}}) == fingerprint({"b": {11, 3, 2}, "a": 1})


class Stubborn(Searcher):
    """Always the same two; keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.told: list = []

    def suggest(self, trial_id):
        self.asked += 1
        return {"x": self.asked % 2}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told.append((result and result["loss"], error))


def test_a_searcher_of_ones_own_is_told_the_known_result_of_a_repetition():
    searcher = Stubborn()
    play = Play(searcher=searcher, num_samples=9, cpus=1, space={"x": tune.randint(0, 2)}, started=1)
    play.reported(0, {"loss": 4.0}, done=True)
    play.started(1)
    assert searcher.told == [(4.0, False)]
    play.reported(1, {"loss": 6.0}, done=True)
    assert play.controller.done
    assert set(searcher.told) == {(4.0, False), (6.0, False)}
    assert len(searcher.told) > 100
    play.controller.close(play.time)
    assert play.controller._state.source.reason == "all 2 configurations of the space were tried" + AGAIN


class Asks(Stubborn):
    """Asks for its repetitions."""

    def is_drawn(self, trial_id):
        return False


def test_a_searcher_may_ask_for_its_repetitions():
    play = Play(searcher=Asks(), num_samples=6, cpus=6, space={"x": tune.randint(0, 2)})
    assert [trial.config["x"] for trial in play.controller.trials] == [1, 0, 1, 0, 1, 0]


class Forbidding(Stubborn):
    def suggest(self, trial_id):
        return {"x": 1}


# row 1.28
def test_a_searcher_that_insists_on_what_is_forbidden_is_an_error():
    space = {"x": tune.randint(0, 2), "never": tune.forbid({"x": 1})}
    play = Play(searcher=Forbidding(), space=space)
    with pytest.raises(
        ConfigError, match=r"Forbidding.suggest\(\) returned 200 .* forbids the last, {'x': 1}"
    ):
        play.controller.raise_error()


def test_keys_with_slashes_are_paths():
    assert nested({"a/b": 1, "a/c/d": 2, "e": {"f/g": 3}}) == {
        "a": {"b": 1, "c": {"d": 2}},
        "e": {"f": {"g": 3}},
    }
    assert nested({"a": {"b": 1}, "a/c": 2}) == {"a": {"b": 1, "c": 2}}
    with pytest.raises(ConfigError, match="'a/b'"):
        nested({"a": 1, "a/b": 2})


OWN = {"a": tune.choice([1, 2]), "b": tune.randint(0, 3)}


@pytest.mark.parametrize("make", [OptunaSearch, HyperOptSearch, TuneBOHB, GaussianProcessSearch])
def test_alternatives_of_a_searcher_s_own_space_get_the_constants_too(make):
    grid = tune.simulate(
        lambda config, training_iteration, rng: {"loss": config["a"] + config["c"], "done": True},
        {"c": 5, "s": tune.sample_from(lambda config: 10 * config["a"])},
        tune.TuneConfig(metric="loss", mode="min", num_samples=30, search_alg=make(OWN)),
        seed=0,
    )
    assert len(grid) == 6 and not grid.errors
    assert all(result.config.keys() == {"a", "b", "c", "s"} for result in grid)


def mixed(trial):
    """Without end in one branch only, which a model may leave alone."""
    if trial.suggest_categorical("kind", ["a", "b"]) == "a":
        trial.suggest_float("x", 0, 1)
    else:
        trial.suggest_int("n", 0, 2)


def sixteen(trial):
    for name in "ab":
        trial.suggest_int(name, 0, 3)


def sixteen_without_hash(trial):
    """Lists, as the layers of a network are given."""
    if trial.suggest_categorical("layers", [[64], [64, 32], [32]]) == [32]:
        trial.suggest_float("dropout", 0.1, 0.7, step=0.1)
        trial.suggest_int("batch", 8, 16, step=8)


INT = optuna.distributions.IntDistribution(0, 3)
WITHOUT_END = {
    "define-by-run": lambda: OptunaSearch(mixed),
    "normal": lambda: OptunaSearch({"a": tune.qrandn(0, 5, 1)}),
    "hyperopt": lambda: HyperOptSearch(
        {"c": hp.choice("c", [{"n": hp.randint("n", 3)}, {"x": hp.uniform("x", 0, 1)}])}, n_initial_points=5
    ),
}
OF_SIXTEEN = {
    "define-by-run": lambda: OptunaSearch(sixteen),
    "define-by-run, without hash": lambda: OptunaSearch(sixteen_without_hash),
    "distributions": lambda: OptunaSearch({"a": INT, "b": INT}),
    "hyperopt": lambda: HyperOptSearch(
        {name: hp.choice(name, list(range(4))) for name in "ab"}, n_initial_points=5
    ),
}


def searched_for(searcher, number):
    """What looks as if one place were best, which a model then insists on."""
    return tune.simulate(
        lambda config, training_iteration, rng: {"loss": float(len(config)), "done": True},
        {"constant": 1},
        tune.TuneConfig(metric="loss", mode="min", num_samples=number, search_alg=searcher),
        seed=0,
    )


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("name", WITHOUT_END)
@pytest.mark.slow
def test_a_model_that_repeats_itself_does_not_end_a_space_without_end(name):
    results = searched_for(WITHOUT_END[name](), 22)
    assert len({fingerprint(result.config) for result in results}) == 22


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("name", OF_SIXTEEN)
def test_a_small_space_of_a_searcher_s_own_is_used_up(name):
    assert len(searched_for(OF_SIXTEEN[name](), 40)) == 16


def test_a_searcher_that_ends_before_its_time_is_named(fit, tmp_path):
    class Two(Searcher):
        number = 0

        def suggest(self, trial_id):
            self.number += 1
            return {"x": self.number} if self.number <= 2 else self.FINISHED

    assert len(fit(once, num_samples=6, search_alg=Two())) == 2
    assert ending(tmp_path / "e") == "Two has no further suggestion"


# --- advice ---------------------------------------------------------------------------------------

PLACES = {"a": tune.uniform(0, 2), "b": tune.uniform(0, 2)}
TWO = {"x": tune.choice(["a", "b"])}
ADVICE = {
    "random": (TWO, BasicVariantGenerator, {}, {"allow_duplicates": True}),
    "optuna": (TWO, OptunaSearch, {}, {"allow_duplicates": True}),
    "bayesopt": (PLACES, BayesOptSearch, {"skip_duplicate": False}, {}),
}


@pytest.mark.parametrize("name", ADVICE)
def test_what_the_console_advises_makes_as_many_trials_as_asked_for(fit, name, capsys):
    space, make, of_searcher, of_tune = ADVICE[name]

    def search(given, settings):
        one = fit(
            lambda config: {"loss": config["a"] + config["b"] if "a" in config else 1.0},
            space,
            metric="loss",
            num_samples=12,
            seed=1,
            max_concurrent_trials=1,
            search_alg=make(**given),
            run={"verbose": 1, "name": None},
            **settings,
        )
        said = capsys.readouterr().out
        return len(one), [line for line in said.splitlines() if "Fewer trials" in line]

    number, (line,) = search({}, {})
    assert number < 12
    advised = {*of_searcher, *of_tune}
    assert {each for each in ("allow_duplicates", "skip_duplicate") if each in line} == advised
    assert search(of_searcher, of_tune) == (12, [])
