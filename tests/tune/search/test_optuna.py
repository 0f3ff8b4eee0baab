"""OptunaSearch: Optuna's samplers over our spaces, its own, and functions of its trial."""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
from typing import Any

import numpy as np
import optuna
import pytest

from tests.tune.search.domains import ALL_DOMAINS
from trainkit import tune
from trainkit.errors import ConfigError, MissingDependencyError
from trainkit.plugins.testing.searcher import SPACE, Row, Search, loss_of
from trainkit.tune.search import OptunaSearch
from trainkit.tune.search.optuna import study as opened
from trainkit.tune.search.optuna.study import MARK
from trainkit.tune.space.search_space import Space

pytestmark = pytest.mark.usefixtures("inline")
optuna.logging.set_verbosity(optuna.logging.WARNING)

ROW = Row("optuna", OptunaSearch)


def parabola(config):
    return {"loss": (config["x"] - 2) ** 2 + (config["y"] + 1) ** 2}


FLOAT = optuna.distributions.FloatDistribution(0, 1)
PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}


def configs_of(grid) -> list:
    return [result.config for result in grid]


def test_suggestions_are_optunas_own(fit):
    """Seeded alike, a study asked by hand proposes the same after the same results."""
    search = Search(ROW, PLANE, num_samples=30)
    configs = search.run()
    values = [loss_of(config) for config in configs]
    sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    distribution = optuna.distributions.FloatDistribution(-10, 10)
    for config, value in zip(configs[:-1], values, strict=False):
        study.add_trial(
            optuna.create_trial(
                params=config, distributions={"x": distribution, "y": distribution}, value=value
            )
        )
    words = np.random.SeedSequence([0, 29]).generate_state(2)
    for generator, word in zip((sampler._rng, sampler._random_sampler._rng), words, strict=True):
        generator.rng.seed(int(word))
    trial = study.ask()
    assert {name: trial.suggest_float(name, -10, 10) for name in "xy"} == configs[-1]


def test_all_domains_are_searched():
    search = Search(ROW, ALL_DOMAINS, num_samples=40)
    for config in search.run():
        for name, domain in ALL_DOMAINS.items():
            if name not in ("list", "computed", "objects"):
                assert domain.contains(config[name]), (name, config[name])
        assert config["computed"] == 2 * config["randint"]
    draws = np.array([config["randn"] for config in search.configs.values()])
    assert abs(draws.mean() - 10) < 3
    assert {config["objects"] is math.sin for config in search.configs.values()} == {True, False}


def test_a_restore_asks_no_sampler(monkeypatch):
    """Ten thousand trials would take minutes: what was suggested is put into the study."""
    search = Search(ROW, SPACE, num_samples=20)
    search.run(15)
    asked = []
    ask = optuna.Study.ask
    monkeypatch.setattr(optuna.Study, "ask", lambda study: asked.append(1) or ask(study))
    restored = search.restored()
    assert not asked
    assert search.next() == restored.next()


# rows 1.24, 2.9
def test_the_seed_is_the_tune_configs_or_the_searchers_or_the_samplers(fit):
    def run(name, seed=None, own=None, **arguments):
        settings = {"seed": seed, "search_alg": OptunaSearch(seed=own, **arguments), "run": {"name": name}}
        return configs_of(fit(parabola, PLANE, metric="loss", num_samples=13, **settings))

    assert run("a", seed=1) == run("b", seed=1)
    assert run("c", seed=2) != run("d", seed=1)
    assert run("e", seed=5) == run("f", seed=4, own=5)
    sampler = optuna.samplers.TPESampler(seed=7)
    assert run("g", sampler=sampler) == run("h", sampler=sampler)
    unseeded = optuna.samplers.TPESampler()
    assert run("i", seed=1, sampler=unseeded) == run("j", seed=1, sampler=unseeded)
    assert unseeded._rng._rng is None  # the user's object is left alone


def test_a_sampler_that_no_file_holds_is_asked_for(fit, restore, tmp_path):
    search = OptunaSearch(sampler=optuna.samplers.RandomSampler(seed=1))
    fit(parabola, PLANE, metric="loss", num_samples=4, search_alg=search)
    with pytest.raises(ConfigError, match="search_alg=OptunaSearch, which its file cannot store"):
        tune.Tuner.restore(tmp_path / "e", parabola)
    assert len(restore(parabola, num_samples=6, search_alg=search)) == 6


def test_the_study_is_told_all(fit):
    def trainable(config):
        for step in range(3):
            if step == 2 and config["n"] == 1:
                raise RuntimeError("no luck")
            tune.report({"loss": math.nan if config["n"] == 2 and step == 2 else config["n"] + step})

    points = [{"n": 0}, {"n": 1}, {"n": 2}]
    storage = optuna.storages.InMemoryStorage()
    search = OptunaSearch(points_to_evaluate=points, storage=storage)
    fit(trainable, {"n": tune.randint(0, 3)}, metric="loss", num_samples=3, search_alg=search)
    trials = optuna.load_study(study_name="optuna", storage=storage).trials
    told = [(trial.state.name, trial.value, trial.intermediate_values) for trial in trials]
    assert told[0] == ("COMPLETE", 2, {1: 0, 2: 1, 3: 2})
    assert told[1] == ("FAIL", None, {1: 1, 2: 2})
    assert told[2][:2] == ("PRUNED", None)
    assert math.isnan(told[2][2][3])


def test_where_the_loss_is_nan_it_looks_less_often(fit):
    search = Search(ROW, {"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)}, num_samples=80)
    while (config := search.next()) is not None:
        search.finish(list(search.configs)[-1], loss=math.nan if config["x"] < 0.7 else config["y"])
    late = [config["x"] > 0.7 for config in list(search.configs.values())[40:]]
    assert sum(late) > 25  # of 40; by chance it would be 12


def test_running_trials_keep_others_away():
    """Eight at once, of which none has reported: nearest neighbours are not on top of each other."""
    search = Search(ROW, PLANE, num_samples=60)
    search.run(30)
    batch = [search.next() for _ in range(8)]
    points = np.array([[config["x"], config["y"]] for config in batch])
    distances = np.linalg.norm(points[:, None] - points, axis=-1) + 100 * np.eye(8)
    assert distances.min() > 0.05


# --- points ---------------------------------------------------------------------------------------


def test_evaluated_points_are_learned_from_and_not_run():
    points = [{"x": float(x), "y": float(y)} for x in range(-10, 11, 4) for y in range(-10, 11, 4)]
    rewards = [parabola(point)["loss"] for point in points]
    given = {"points_to_evaluate": points, "evaluated_rewards": rewards}
    search = Search(ROW, PLANE, num_samples=5, arguments=given)
    configs = search.run()
    assert len(configs) == 5
    assert not any(config in points for config in configs)
    assert np.median([parabola(config)["loss"] for config in configs]) < np.median(rewards) / 2


def test_trials_of_another_experiment_are_learned_from(fit, tmp_path):
    first = fit(parabola, PLANE, metric="loss", num_samples=15, seed=0, search_alg="optuna")
    storage = optuna.storages.InMemoryStorage()
    search = OptunaSearch(storage=storage)
    search.add_evaluated_trials(first, "loss")
    search.add_evaluated_point({"x": 1.0, "y": 0.0}, 2.0, pruned=True, intermediate_values=[5.0, 2.0])
    search.add_evaluated_point({"x": 1.0, "y": 1.0}, 0.0, error=True)
    fit(parabola, PLANE, metric="loss", num_samples=2, seed=0, search_alg=search, run={"name": "two"})
    trials = optuna.load_study(study_name="optuna", storage=storage).trials
    states = [trial.state.name for trial in trials]
    assert states == [*["COMPLETE"] * 15, "PRUNED", "FAIL", "COMPLETE", "COMPLETE"]
    with pytest.raises(ConfigError, match="search_alg="):
        tune.Tuner.restore(tmp_path / "two", parabola)
    with pytest.raises(ConfigError, match="'los'"):
        search.add_evaluated_trials(first, "los")


# --- a storage of the user's ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "evaluated", [{}, {"points_to_evaluate": [{"x": 1, "y": 2}], "evaluated_rewards": [5]}]
)
@pytest.mark.slow
def test_a_storage_of_ones_own_holds_the_trials_once(fit, restore, tmp_path, evaluated):
    address = f"sqlite:///{tmp_path}/optuna.db"
    rewards = [float(value) for value in evaluated.get("evaluated_rewards", [])]
    search = OptunaSearch(storage=address, study_name="mine", **evaluated)
    fit(parabola, PLANE, metric="loss", num_samples=3, seed=1, search_alg=search)
    study = optuna.load_study(study_name="mine", storage=address)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE"] * (3 + len(rewards))
    grid = restore(parabola, num_samples=5)
    study = optuna.load_study(study_name="mine", storage=address)
    assert [trial.value for trial in study.trials] == rewards + [result.metrics["loss"] for result in grid]
    assert len({trial.user_attrs[MARK] for trial in study.trials}) == 5 + len(rewards)


def test_a_study_that_is_there_is_learned_from(fit):
    storage = optuna.storages.InMemoryStorage()
    study = optuna.create_study(storage=storage, study_name="mine", direction="maximize")
    study.optimize(lambda trial: trial.suggest_float("x", -10, 10) + trial.suggest_float("y", -10, 10), 20)
    search = OptunaSearch(storage=storage, study_name="mine")
    fit(lambda config: config["x"] + config["y"], PLANE, metric="_metric", mode="max", search_alg=search)
    assert len(study.trials) == 21
    with pytest.raises(ConfigError, match=r"'mine' .* maximize, but this experiment has minimize"):
        fit(parabola, PLANE, metric="loss", search_alg=search, run={"name": "other"})


# --- Optuna's own spaces --------------------------------------------------------------------------


def test_optunas_distributions_and_constants_beside_them(fit):
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    space = {
        "x": FloatDistribution(-1, 1, step=0.5),
        "net/width": IntDistribution(1, 64, log=True),
        "net/kind": CategoricalDistribution(["a", "b"]),
        "fixed": 3,
    }
    search = OptunaSearch(space, metric="loss", mode="min", points_to_evaluate=[{"net": {"width": 7}}])
    grid = fit(lambda config: {"loss": config["x"]}, {"net": {"depth": 2}}, num_samples=15, search_alg=search)
    assert grid.get_best_result().metrics["loss"] == min(result.config["x"] for result in grid)
    assert grid[0].config["net"]["width"] == 7
    for result in grid:
        assert set(result.config) == {"x", "net", "fixed"}
        assert set(result.config["net"]) == {"width", "kind", "depth"}
    assert len({str(config) for config in configs_of(grid)}) == 15


# --- functions of a trial -------------------------------------------------------------------------


def model(trial):
    kind = trial.suggest_categorical("model/kind", ["tree", "net"])
    if kind == "tree":
        trial.suggest_int("model/depth", 1, 9)
    else:
        layers = trial.suggest_int("model/layers", 1, 3)
        for layer in range(layers):
            trial.suggest_float(f"model/width/{layer}", 8, 64)
    trial.suggest_float("lr", 1e-4, 1, log=True)
    return {"data/folds": 5, "version": "a"}


def check_model(config) -> None:
    assert set(config) == {"model", "lr", "data", "version"}
    assert config["data"] == {"folds": 5}
    chosen = config["model"]
    if chosen["kind"] == "tree":
        assert set(chosen) == {"kind", "depth"}
    else:
        assert set(chosen) == {"kind", "layers", "width"}
        assert set(chosen["width"]) == {str(layer) for layer in range(chosen["layers"])}


# row 1.28
def test_branches_become_nested_configurations(fit):
    search = OptunaSearch(model, metric="loss", mode="min")
    grid = fit(lambda config: {"loss": config["lr"]}, num_samples=25, search_alg=search)
    for result in grid:
        check_model(result.config)
    assert {result.config["model"]["kind"] for result in grid} == {"tree", "net"}
    best = grid.get_best_result(metric="loss", mode="min")
    assert best.config["lr"] == min(result.config["lr"] for result in grid)


def replacing(trial):
    return {"x": 10 ** trial.suggest_float("x", -3, 0)}


def test_a_function_may_return_another_value_under_the_same_name():
    search = Search(Row("replacing", lambda **given: OptunaSearch(replacing, **given)), {}, num_samples=20)
    for config in search.run(14):
        assert 1e-3 <= config["x"] <= 1
    restored = search.restored()
    assert search.run(3) == restored.run(3)


# row 2.13
def test_what_it_has_drawn_before_is_drawn_anew_until_it_gives_up():
    def small(trial):
        trial.suggest_categorical("x", ["a", "b", "c"])

    search = Search(Row("small", lambda **given: OptunaSearch(small, **given)), {}, num_samples=9)
    assert sorted(config["x"] for config in search.run()) == ["a", "b", "c"]
    assert "no new configuration that is allowed" in search.source.reason


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda trial: 3, "returned 3: return None or a dictionary"),
        (lambda trial: {1: 2}, "return None or a dictionary"),
        (lambda trial: trial.suggest_float("x", 1, 0), "ValueError"),
        (lambda trial: trial.suggest_nothing("x"), "AttributeError"),
    ],
)
def test_a_mistake_in_a_function_is_named(function, words):
    search = Search(Row("wrong", lambda **given: OptunaSearch(function, **given)), {})
    with pytest.raises(ConfigError, match=words):
        search.next()


# --- mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "space", "words"),
    [
        ({"metric": ["a", "b"], "mode": "min"}, PLANE, r"\['a', 'b'\].* two lists of one length"),
        ({"mode": "least"}, PLANE, "'least'"),
        ({"points_to_evaluate": [3]}, PLANE, "list of dictionaries"),
        ({"points_to_evaluate": [{"z": 3}]}, PLANE, "z=3"),
        ({"points_to_evaluate": [{"x": 30}]}, PLANE, "x=30"),
        ({"points_to_evaluate": [{"x": 3, "y": 3}], "evaluated_rewards": []}, PLANE, "list of 1 numbers"),
        ({"points_to_evaluate": [{"x": 3}], "evaluated_rewards": [1]}, PLANE, "every parameter"),
        ({"points_to_evaluate": [{"x": 3}], "evaluated_rewards": ["a"]}, PLANE, "numbers"),
        ({"sampler": "tpe"}, PLANE, "sampler='tpe' is not a BaseSampler"),
        ({"storage": 3}, PLANE, "storage must be an address.*not 3"),
        ({"study_name": 3}, PLANE, "study_name must be.*3"),
        ({"space": {"x": FLOAT, "y": tune.uniform(0, 1)}}, {}, "y=.*not supported"),
        ({"space": {"x": FLOAT, "y": [FLOAT]}}, {}, "y=.*not supported"),
        ({"seed": -1}, PLANE, "seed=-1"),
        ({"space": 3}, PLANE, "space must .*not 3"),
        ({}, {"x": tune.grid_search([1, 2])}, "x: .*use choice instead of grid_search"),
        ({"space": PLANE}, PLANE, "both have a search space"),
    ],
)
def test_a_mistake_is_named(arguments, space, words):
    with pytest.raises(ConfigError, match=words):
        Search(ROW, space, arguments=arguments)


def test_a_point_evaluated_elsewhere_has_a_value():
    with pytest.raises(ConfigError, match=r"add_evaluated_point\({'x': 1}, 'good'\) needs a number"):
        OptunaSearch().add_evaluated_point({"x": 1}, "good")


@pytest.mark.external
def test_without_optuna_the_command_to_install_it_is_named():
    code = (
        "import sys; sys.modules['optuna'] = None\n"
        "from trainkit.tune.search import OptunaSearch\n"
        "try: OptunaSearch()\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(MissingDependencyError.__name__)
    assert "pip install 'trainkit-ml[tune]'" in said


def joins(folder: str, number: int, barrier: Any, failed: Any) -> None:
    for at in range(5):  # a new database each time, which all begin at the same moment
        one = OptunaSearch(storage=f"sqlite:///{folder}/{at}.db", study_name="s", seed=number)
        one.begin(Space.of({"x": tune.uniform(0, 1)}), metric="loss", mode="min", num_samples=1, seed=number)
        barrier.wait()
        try:
            one.suggest(f"t{number}")
            one.on_trial_complete(f"t{number}", {"loss": 1.0, "training_iteration": 1})
        except Exception as error:
            failed.put(f"{type(error).__name__}: {error}")


def test_a_database_that_cannot_be_opened_is_not_tried_again(fit, monkeypatch):
    monkeypatch.setattr(opened, "SYSTEM", None)  # no clock to wait by
    with pytest.raises(ConfigError, match="unable to open database file"):
        fit(parabola, PLANE, search_alg=OptunaSearch(storage="sqlite:////nonexistent/x.db"), metric="loss")


@pytest.mark.external
def test_programs_that_begin_one_storage_at_once_share_a_study(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, failed = context.Barrier(3), context.SimpleQueue()
    programs = [context.Process(target=joins, args=(str(tmp_path), n, barrier, failed)) for n in range(3)]
    for each in programs:
        each.start()
    for each in programs:
        each.join()
    assert failed.empty(), failed.get()
    for at in range(5):
        study = optuna.load_study(study_name="s", storage=f"sqlite:///{tmp_path}/{at}.db")
        assert len(study.trials) == 3
