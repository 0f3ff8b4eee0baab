"""`TuneConfig(learn_from=...)`: what is read, what it helps, and that the file keeps it."""

from __future__ import annotations

import logging
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from trainkit import tune
from trainkit.errors import ConfigError, ExperimentNotFoundError
from trainkit.plugins.gaussian_process.earlier import FIRST
from trainkit.plugins.gaussian_process.sources import plain_sources
from trainkit.tune.schedulers import Decision, Verdict
from trainkit.tune.search import ConcurrencyLimiter, GaussianProcessSearch
from trainkit.tune.space.search_space import Space

SPACE = {
    "lr": tune.loguniform(1e-5, 1e-1),
    "width": tune.randint(1, 100),
    "kind": tune.choice(["a", "b", "c"]),
    "rate": tune.uniform(0, 1),
}
BOWL = {"x": tune.uniform(-3, 3), "y": tune.uniform(-3, 3)}


def loss(config, best=1e-3):
    return (np.log10(config["lr"] / best)) ** 2 + abs(config["width"] - 60) / 50 + (config["kind"] != "b")


def drawn(number, seed=0, of=loss, space=SPACE, **changes):
    rng = np.random.default_rng(seed)
    configs = [{**Space.of(space).configuration(0, rng), **changes} for _ in range(number)]
    return pd.DataFrame([{**config, "loss": of(config)} for config in configs])


def searched(number, sources, seed=0, of=loss, space=SPACE, mode="min", **arguments):
    """Return the configurations that a searcher suggests, one after the other."""
    searcher = GaussianProcessSearch(**arguments)
    if sources is not None:
        searcher.learn_from(sources, None, "loss", mode)
    searcher.begin(Space.of(space), metric="loss", mode=mode, num_samples=number, seed=seed)
    configs = []
    for n in range(number):
        configs.append(searcher.suggest(f"t{n}"))
        searcher.on_trial_complete(f"t{n}", {"loss": of(configs[-1])})
    return configs


def best_of(configs, of=loss):
    return min(map(of, configs))


# --- what is read ---------------------------------------------------------------------------------


def test_a_frame_has_columns_of_parameters_and_of_the_metric():
    frame = pd.DataFrame({"lr": [0.1, np.nan], "kind": ["a", "b"], "loss": [1.0, np.nan], "date": [1, 2]})
    (source,) = plain_sources(frame, "loss", "min")
    assert source == {
        "name": "source 1",
        "mode": "min",
        "configs": [{"lr": 0.1, "kind": "a", "date": 1}, {"kind": "b", "date": 2}],
        "values": [1.0, None],
    }


def test_columns_of_a_results_frame_are_told_from_its_figures():
    frame = pd.DataFrame({"config/model/lr": [0.1], "lr": [5.0], "loss": [1.0], "time_total_s": [3.0]})
    (source,) = plain_sources([frame], "loss", None)
    assert source["configs"] == [{"model/lr": 0.1}]


def test_a_list_of_results_says_nothing_of_trials_without_a_report():
    trials = [
        SimpleNamespace(config={"model": {"lr": 0.1}}, metrics={"eval": {"loss": 2}}, error=None),
        SimpleNamespace(config={"model": {"lr": 0.2}}, metrics={}, error=None),
        SimpleNamespace(config={"model": {"lr": 0.3}}, metrics={}, error=ValueError("diverged")),
        SimpleNamespace(config={"model": {"lr": 0.4}}, metrics={"eval/loss": np.inf}, error=None),
    ]
    (source,) = plain_sources([trials], "eval/loss", "min")
    assert source["configs"] == [{"model/lr": 0.1}, {"model/lr": 0.3}, {"model/lr": 0.4}]
    assert source["values"] == [2.0, None, None]


def test_plain_data_stay_as_they_are():
    once = plain_sources([drawn(3), drawn(4)], "loss", "min")
    assert plain_sources(once, "loss", "max") == once


@pytest.mark.parametrize(
    "sources, message",
    [
        (5, "give a list of folders"),
        ({"lr": 1}, "give a list of folders"),
        ([5], "5 is not a folder"),
        ([[5]], "5 is not a trial: give Results, or dictionaries"),
        ([{"lr": 1}], "no trial of source 1 reported 'loss'"),
        (pd.DataFrame({"lr": [1.0], "los": [1.0]}), "its columns are lr, los. reported 'loss'"),
        (
            pd.DataFrame({"lr": [1.0], "loss": ["low"]}),
            "no trial of source 1 reported 'loss' as a finite number",
        ),
    ],
)
def test_other_things_are_refused(sources, message):
    with pytest.raises(ConfigError, match=message):
        tune.TuneConfig(metric="loss", mode="min", learn_from=sources)


def test_a_folder_without_an_experiment_is_refused(tmp_path):
    with pytest.raises(ExperimentNotFoundError):
        tune.TuneConfig(metric="loss", mode="min", learn_from=[tmp_path])


def test_a_table_in_a_file_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("lr,loss")
    with pytest.raises(ConfigError, match=r"t.csv' is a file: .* pandas.read_csv"):
        tune.TuneConfig(metric="loss", mode="min", learn_from=tmp_path / "t.csv")


def test_a_metric_is_needed():
    with pytest.raises(ConfigError, match="needs a single metric"):
        tune.TuneConfig(learn_from=drawn(3))


def test_an_empty_list_is_no_source():
    assert tune.TuneConfig(metric="loss", mode="min", learn_from=[]).learn_from is None


def test_a_list_of_dictionaries_is_a_table():
    records = [{"model": {"lr": 0.1}, "loss": 2.0}, {"model": {"lr": 0.2}, "loss": math.nan}]
    (source,) = plain_sources(records, "loss", "min")
    assert source["configs"] == [{"model/lr": 0.1}, {"model/lr": 0.2}] and source["values"] == [2.0, None]
    assert plain_sources([records, records], "loss", "min")[1]["configs"] == source["configs"]


@pytest.mark.usefixtures("inline")
def test_infeasible_trials_count_as_the_worst(fit):
    grid = fit(
        lambda config: {"loss": -config["x"], "size": config["x"]},
        {"x": tune.grid_search([1, 2, 3])},
        metric="loss",
        constraints=["size <= 2"],
    )
    for given in ([grid], list(grid), grid.get_dataframe(), grid.experiment_path):
        (source,) = plain_sources(given, "loss", "min")
        assert source["configs"] == [{"x": 1}, {"x": 2}, {"x": 3}]
        assert source["values"] == [-1, -2, None]


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("limit, values", [("size <= 3", [-1, -2, -3]), ("size <= 1", [-1, None, None])])
def test_constraints_of_the_search_precede_those_of_the_source(fit, limit, values):
    grid = fit(
        lambda config: {"loss": -config["x"], "size": config["x"]},
        {"x": tune.grid_search([1, 2, 3])},
        metric="loss",
        constraints=["size <= 2"],
    )
    for given in (grid, grid.get_dataframe()):
        for searcher in (None, ConcurrencyLimiter(GaussianProcessSearch(), 1)):
            config = tune.TuneConfig(
                metric="loss", mode="min", constraints=[limit], learn_from=given, search_alg=searcher
            )
            assert config.learn_from[0]["values"] == values


def test_the_first_suggestions_satisfy_the_constraints_in_the_source():
    frame = drawn(60, of=shifted(1.5), space=BOWL)
    limits = ["x <= 0.5"]
    found = tune.simulate(
        lambda config, step, rng: {"loss": shifted(1.5)(config), "x": config["x"], "done": True},
        BOWL,
        tune.TuneConfig(metric="loss", mode="min", num_samples=6, constraints=limits, learn_from=frame),
        seed=0,
    )
    assert all(each.feasible for each in found)
    assert found.get_best_result().metrics["loss"] < 2


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("step", [1, -1], ids=["rising", "falling"])
def test_a_trial_that_a_scheduler_stopped_has_the_change_of_the_complete_trials(fit, step):
    def train(config):
        for time in range(1, 10):
            tune.report({"loss": config["x"] + step * time})

    grid = fit(
        train,
        {"x": tune.grid_search([0, 1, 2, 3])},
        metric="loss",
        max_concurrent_trials=1,
        scheduler=tune.schedulers.ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
    )
    assert [each.metrics["training_iteration"] for each in grid] == [9, 1, 1, 1]
    for given in (grid, list(grid), grid.experiment_path):
        (source,) = plain_sources([given], "loss", "min")
        assert source["values"] == [9 * step, 1 + 9 * step, 2 + 9 * step, 3 + 9 * step]


@pytest.mark.usefixtures("inline")
def test_a_trial_that_a_stop_rule_ended_is_complete(fit):
    def train(config):
        for time in range(1, 10):
            tune.report({"loss": config["x"] - time})

    grid = fit(train, {"x": tune.grid_search([0, 5])}, metric="loss", run={"stop": {"training_iteration": 4}})
    (source,) = plain_sources([grid], "loss", "min")
    assert source["values"] == [-4, 1]


def test_lost_values_are_named():
    space = {"m": {"y": tune.uniform(0, 1)}, "lr": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}
    frame = pd.DataFrame({"m.y": [0.1, 0.2], "lr": ["0.3", "0.4"], "kind": ["a", "b"], "loss": [1.0, 2.0]})
    with pytest.warns(UserWarning) as found:
        searched(1, frame, of=lambda config: 0.0, space=space)
    assert [str(each.message) for each in found] == [
        "learn_from: source 1 has 'm.y' but not 'm/y': rename it to 'm/y' if it is the same parameter",
        "learn_from: source 1 has lr='0.3', a text, which is ignored: convert the column to numbers",
    ]
    with pytest.raises(ConfigError, match=r"shares no parameter .*'y' but not 'm/y'"):
        searched(1, pd.DataFrame({"y": [0.1], "loss": [1.0]}), space=space)


def test_a_source_without_the_metric_is_left_out_with_a_warning():
    other = drawn(3).rename(columns={"loss": "error"})
    with pytest.warns(UserWarning, match="no trial of source 2 .its columns are lr, .* reported 'loss'"):
        config = tune.TuneConfig(metric="loss", mode="min", learn_from=[drawn(3), other])
    assert [each["name"] for each in config.learn_from] == ["source 1"]


def test_a_source_without_a_shared_parameter_is_left_out_with_a_warning():
    other = pd.DataFrame({"depth": [1, 2], "loss": [1.0, 2.0]})
    with pytest.warns(UserWarning, match="source 2 shares no parameter"):
        searched(1, [drawn(5), other])
    with pytest.raises(ConfigError, match="shares no parameter"):
        searched(1, [other])


def test_other_searchers_say_which_searcher_learns():
    for searcher in ("random", ConcurrencyLimiter(tune.search.BasicVariantGenerator(), 2)):
        with pytest.raises(
            ConfigError, match="does not support learn_from and priors: use search_alg='auto'"
        ):
            tune.TuneConfig(metric="loss", mode="min", learn_from=drawn(3), search_alg=searcher)


def test_a_grid_is_refused():
    space = {"lr": tune.grid_search([0.1, 0.2]), "rate": tune.uniform(0, 1)}
    config = tune.TuneConfig(metric="loss", mode="min", learn_from=drawn(3))
    with pytest.raises(ConfigError, match="without a grid"):
        tune.Tuner(lambda config: None, param_space=space, tune_config=config)


# --- what it helps --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_first_suggestion_is_good_already(mode):
    sign = 1 if mode == "min" else -1
    frame = drawn(80).assign(loss=lambda each: sign * each["loss"])
    config = searched(1, frame, mode=mode)[0]
    assert loss(config) < 0.8 < loss(searched(1, None)[0])


def test_a_source_knows_its_own_direction():
    (source,) = plain_sources(drawn(80), "loss", "min")
    assert loss(searched(1, [source], mode="max")[0]) < 0.8


def test_losses_of_any_scale_are_ranked_within_their_source():
    scaled = [drawn(50, seed).assign(loss=lambda each: np.exp(9 * each["loss"])) for seed in range(2)]
    other = drawn(50, 2).assign(loss=lambda each: each["loss"] * 1e-9 - 1e9)
    assert searched(1, [*scaled, other]) == searched(1, [drawn(50, seed) for seed in range(3)])


def test_a_source_of_half_of_the_parameters_helps_with_these():
    config = searched(1, drawn(80)[["lr", "kind", "loss"]])[0]
    assert abs(np.log10(config["lr"] / 1e-3)) < 0.7 and config["kind"] == "b"


def test_numbers_outside_and_unknown_values_of_lists_keep_their_places():
    wide = {**SPACE, "lr": tune.loguniform(1e-9, 1e3), "kind": tune.choice(["b", "c", "d", "e"])}
    frame = drawn(120, space=wide)
    assert (frame["lr"] > 1).any()
    assert best_of(searched(3, frame)) < 0.9


@pytest.mark.parametrize("far", [math.inf, -math.inf, 1e300, 10**400])
def test_a_parameter_far_outside_does_not_disturb_the_others(far):
    frame = drawn(80)
    row = {"lr": far, "width": far, "kind": "a", "rate": 0.5, "loss": 9.0}
    records = [*frame.to_dict("records"), row]
    (source,) = plain_sources(records, "loss", "min")
    assert len(source["configs"]) == 81
    assert best_of(searched(3, records)) < 0.8


def test_a_column_may_be_called_metric():
    (source,) = plain_sources(drawn(3).assign(metric=1.0, mode=2.0), "loss", "min")
    assert source["mode"] == "min" and source["configs"][0]["metric"] == 1.0


def test_failed_trials_of_a_source_are_avoided():
    frame = drawn(100, of=lambda config: np.nan if config["kind"] == "b" else loss(config))
    assert searched(1, frame)[0]["kind"] != "b"


def test_conditions_are_followed():
    space = {
        "learner": tune.choice(["svm", "tree"]),
        "c": tune.when({"learner": "svm"}, tune.loguniform(1e-3, 1e3)),
        "depth": tune.when({"learner": "tree"}, tune.randint(1, 20)),
    }

    def by_learner(config):
        if config["learner"] == "svm":
            return 2 + abs(np.log10(config["c"]))
        return abs(config["depth"] - 7) / 10

    frame = drawn(60, of=by_learner, space=space)
    configs = searched(6, frame, of=by_learner, space=space)
    assert configs[0]["learner"] == "tree" and abs(configs[0]["depth"] - 7) < 4
    assert best_of(configs, by_learner) <= 0.1


def shifted(at):
    return lambda config: (config["x"] - at) ** 2 + (config["y"] + 1) ** 2


def geometric(values):
    return float(np.exp(np.mean(np.log(np.array(values) + 1e-6))))


def test_similar_problems_halve_the_loss():
    warm, cold = [], []
    for seed in range(6):
        frames = [drawn(40, 9 * seed + k, shifted(1.5 + 0.1 * k), BOWL) for k in range(3)]
        warm.append(best_of(searched(6, frames, seed, shifted(1.65), BOWL), shifted(1.65)))
        cold.append(best_of(searched(6, None, seed, shifted(1.65), BOWL), shifted(1.65)))
    assert geometric(warm) < 0.5 * geometric(cold)


def test_a_misleading_source_is_given_up():
    for seed in range(4):
        frame = drawn(40, seed, lambda config: -shifted(1.65)(config), BOWL)
        configs = searched(16, frame, seed, shifted(1.65), BOWL)
        assert best_of(configs, shifted(1.65)) < 0.1


@pytest.mark.parametrize("stopped", [False, True], ids=["complete", "stopped"])
def test_a_source_that_says_nothing_changes_nothing(stopped):
    found = []
    for source in (None, [{"x": x, "y": 0.0, "loss": 1.0} for x in (-1, 0, 1)]):
        searcher = GaussianProcessSearch()
        searcher.learn_from(source, None, "loss", "min")
        searcher.begin(Space.of(BOWL), metric="loss", mode="min", num_samples=99, seed=0)
        rng = np.random.default_rng(0)
        for number in range(20):
            config = {"x": rng.uniform(-3, 3), "y": rng.uniform(-3, 3)}
            searcher.replay(f"t{number}", config)
            # The losses fall at different speeds, so early losses have a different order than final losses.
            for step in range(1, 2 if stopped and number % 2 else 10):
                late = (2 + config["x"]) * (9 - step)
                result = {"loss": shifted(1)(config) + late, "training_iteration": step}
                searcher.on_trial_result(f"t{number}", result)
            if stopped and number % 2:
                searcher.on_trial_decision(f"t{number}", result, Decision(Verdict.STOP, {"rule": "rung"}))
            searcher.on_trial_complete(f"t{number}", result)
        found.append(searcher.suggest("next"))
    assert found[0] == pytest.approx(found[1])


def test_the_portfolio_is_diverse():
    searcher = GaussianProcessSearch()
    searcher.learn_from(drawn(60), None, "loss", "min")
    searcher.begin(Space.of(SPACE), metric="loss", mode="min", num_samples=FIRST, seed=0)
    configs = [searcher.suggest(f"t{n}") for n in range(FIRST)]  # all run at once
    assert len({(config["lr"], config["width"]) for config in configs}) == FIRST


# --- the file -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("inline")
def test_a_restore_repeats_the_suggestions_although_the_source_has_gone(fit, restore):
    def bowl(config):
        return {"loss": shifted(1)(config)}

    settings = {"metric": "loss", "seed": 3, "max_concurrent_trials": 1}
    earlier = fit(bowl, BOWL, **settings, num_samples=12, run={"name": "earlier"})
    whole = fit(bowl, BOWL, **settings, num_samples=8, learn_from=[earlier], run={"name": "whole"})
    sources = [earlier.experiment_path]
    for number in range(1, 8):
        run = {"name": f"{number} trials"}
        fit(bowl, BOWL, **settings, num_samples=number, learn_from=sources, run=run)
    shutil.rmtree(earlier.experiment_path)
    for number in range(1, 8):
        rest = restore(bowl, f"{number} trials", num_samples=8)
        assert [each.config for each in rest] == [each.config for each in whole]


@pytest.mark.usefixtures("inline")
def test_a_restore_keeps_what_was_read_of_a_source_that_has_grown_since(fit, restore, caplog):
    def bowl(config):
        return {"loss": shifted(1)(config)}

    settings = {"metric": "loss", "seed": 3, "max_concurrent_trials": 1}
    source = fit(bowl, BOWL, **settings, num_samples=6, run={"name": "earlier"}).experiment_path
    whole = fit(bowl, BOWL, **settings, num_samples=7, learn_from=[source], run={"name": "whole"})
    fit(bowl, BOWL, **settings, num_samples=2, learn_from=[source], run={"name": "part"})
    restore(bowl, "earlier", num_samples=9)
    with caplog.at_level(logging.WARNING):
        rest = restore(bowl, "part", metric="loss", num_samples=7, learn_from=[source])
    assert "learn_from has changed" in caplog.text
    assert [each.config for each in rest] == [each.config for each in whole]
    (stored,) = rest.facts()["tune_config"]["learn_from"]
    assert len(stored["configs"]) == 6


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("values", "same"),
    [([1.0, 2.0], True), ([1.0, 5.0], True), ([5.0, 6.0], False), ([1.0], False)],
    ids=["grown", "later reports", "other values", "fewer trials"],
)
def test_a_restore_accepts_only_the_same_trials_and_later_ones(fit, restore, values, same):
    def bowl(config):
        return {"loss": shifted(1)(config)}

    def table(losses):
        return [{"x": number, "y": 0.5, "loss": each} for number, each in enumerate(losses)]

    fit(bowl, BOWL, metric="loss", num_samples=2, learn_from=table([1.0, 2.0]))
    goal = {"metric": "loss", "mode": "min"}
    given = table([*values, 9.0] if len(values) > 1 else values)
    if same:
        assert len(restore(bowl, **goal, num_samples=3, learn_from=given)) == 3
    else:
        with pytest.raises(ConfigError, match=r"learn_from=.* differs from the experiment's"):
            restore(bowl, **goal, num_samples=3, learn_from=given)


def test_a_simulation_learns_too():
    def report(config, training_iteration, rng):
        return {"loss": shifted(1)(config), "done": True}

    settings = {"metric": "loss", "mode": "min", "num_samples": 3}
    frame = drawn(50, of=shifted(1), space=BOWL)
    results = tune.simulate(report, BOWL, tune.TuneConfig(**settings, learn_from=frame), seed=0)
    assert results.get_best_result().metrics["loss"] < 1
