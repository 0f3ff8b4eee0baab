"""Constraints on reported metrics: their texts, the rule behind them, and searches that keep to them."""

from __future__ import annotations

import logging
import math
import random
from pathlib import Path

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.plugins.dashboard.charts import chart
from trainkit.plugins.dashboard.experiments.board import TrialTable
from trainkit.plugins.pb2.scheduler import PB2
from trainkit.tune import TuneConfig, simulate
from trainkit.tune.core.constraints import VIOLATION, Constraint, constraints_of, violation_of
from trainkit.tune.results.overview import Overview
from trainkit.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    ParetoScheduler,
    PopulationBasedTraining,
)
from trainkit.tune.search import (
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    Repeater,
    Searcher,
)

pytestmark = pytest.mark.usefixtures("inline")

SPACE = {"x": tune.uniform(0, 10), "y": tune.uniform(0, 1)}
LIMITS = ["size <= 4", "eval/accuracy >= 0.5"]
STOP = tune.RunConfig(stop={"training_iteration": 9})
# fmt: off
WRONG = [
    "size < 4", "size == 4", "4 >= size", "size", "<= 4", "size <= ", "size <= nan", "size <= inf", "a <= b",
    "1 <= size <= 4", "size <= 4 MB", "", 4, None, ("size", "<=", 4),
]
# fmt: on


def report(config, iteration, rng=None):
    x, y = config["x"], config["y"]
    return {"loss": (9 - x) ** 2 + y + 1 / iteration, "size": x, "eval": {"accuracy": y}}


def ok(config):
    return config["x"] <= 4 and config["y"] >= 0.5


# --- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("latency_ms <= 20", ("latency_ms", "<=", 20.0)),
        ("size<=1.5", ("size", "<=", 1.5)),
        ("  eval/top-5 acc.  >=  -1e-3 ", ("eval/top-5 acc.", ">=", -0.001)),
        ("x >= 0", ("x", ">=", 0.0)),
    ],
)
def test_a_text_is_a_metric_a_sense_and_a_limit(text, parsed):
    assert constraints_of([text]) == (parsed,)


@pytest.mark.parametrize(
    "text",
    WRONG,
)
def test_a_wrong_text_is_an_error_with_the_remedy(text):
    with pytest.raises(ConfigError, match=r"is not supported: give a metric, <= or >=, and a finite number"):
        TuneConfig(constraints=["loss >= 0", text])


@pytest.mark.parametrize("given", [3, {"size": 4}])
def test_constraints_are_a_list(given):
    with pytest.raises(ConfigError, match="give a list of texts"):
        TuneConfig(constraints=given)


def test_a_single_text_is_a_list_of_one_and_none_is_an_empty_list():
    assert TuneConfig(constraints="size <= 4").constraints == ("size <= 4",)
    assert TuneConfig(constraints=None).constraints == ()


def test_a_limit_of_a_parameter_is_refused():
    with pytest.raises(ConfigError, match=r"limits a parameter.*tune\.forbid"):
        TuneConfig(constraints=["config/width <= 5"])


# --- the rule -------------------------------------------------------------------------------------


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite, finite, st.sampled_from(["<=", ">="]))
def test_a_value_is_feasible_exactly_if_it_is_on_the_right_side_of_the_limit(value, limit, sense):
    excess = Constraint("m", sense, limit).excess(value)
    assert (excess <= 0) == (value <= limit if sense == "<=" else value >= limit)


def test_the_violation_is_the_sum_of_relative_excesses():
    limits = constraints_of(["a <= 20", "b >= 4", "c <= 0"])
    assert violation_of({"a": 20, "b": 4, "c": -1}, limits) == 0
    assert violation_of({"a": 30, "b": 3, "c": 2}, limits) == 0.5 + 0.25 + 2
    assert violation_of({"a": math.nan, "b": 4, "c": 0}, limits) == math.inf
    assert violation_of({"a": math.inf, "b": 4, "c": 0}, limits) == math.inf
    assert math.isnan(violation_of({"a": 20, "b": 4}, limits))  # unknown
    assert violation_of({"a": 30}, limits) == 0.5  # certainly infeasible


# --- searches -------------------------------------------------------------------------------------

SEARCHERS = {
    "random": BasicVariantGenerator,
    "gp": GaussianProcessSearch,
    "auto": lambda: "auto",
    "limited": lambda: ConcurrencyLimiter(GaussianProcessSearch(), 2),
    "repeated": lambda: Repeater(GaussianProcessSearch(), 2),
    "optuna": OptunaSearch,
    "hyperopt": HyperOptSearch,
    "bayesopt": BayesOptSearch,
}
MUTATIONS = {"x": tune.uniform(0, 10), "y": tune.uniform(0, 1)}
SCHEDULERS = {
    "none": lambda: None,
    "asha": lambda: ASHAScheduler(max_t=9),
    "promotion": lambda: ASHAScheduler(max_t=9, type="promotion"),
    "hyperband": lambda: HyperBandScheduler(max_t=9),
    "median": lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=1),
    "pbt": lambda: PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations=MUTATIONS),
    "pb2": lambda: PB2(perturbation_interval=2, hyperparam_bounds={"x": [0, 10], "y": [0, 1]}),
}


def simulated(searcher, scheduler, seed, *, num_samples=12, limits=LIMITS, objective=report, **more):
    config = TuneConfig(
        **{"metric": "loss", "mode": "min", **more},
        search_alg=SEARCHERS[searcher](),
        scheduler=SCHEDULERS[scheduler](),
        num_samples=num_samples,
        constraints=limits,
    )
    return simulate(objective, SPACE, tune_config=config, run_config=STOP, workers=3, seed=seed)


def check_best(grid):
    """Check the best trial, and that nothing is best if no trial is feasible."""
    feasible = [result for result in grid if result.metrics and ok(result.metrics["config"])]
    assert [result.feasible for result in grid if result.metrics] == [
        ok(result.metrics["config"]) for result in grid if result.metrics
    ]
    for scope in ("last", "all", "avg"):
        if feasible:
            best = grid.get_best_result(scope=scope)
            assert best.feasible
            assert best.violation == 0
        else:
            with pytest.raises(MetricError, match=r"no trial satisfies size <= 4 and eval/accuracy >= 0\.5"):
                grid.get_best_result()
    if feasible:
        assert grid.get_best_result().metrics["loss"] == min(each.metrics["loss"] for each in feasible)
    else:
        nearest = grid.get_best_result(require_feasible=False)
        assert nearest.violation == min(result.violation for result in grid if result.metrics)


@pytest.mark.filterwarnings("ignore")
@settings(max_examples=12)
@given(st.sampled_from(["random", "repeated"]), st.sampled_from(sorted(SCHEDULERS)), st.integers(0, 10**6))
def test_no_infeasible_trial_is_the_best(searcher, scheduler, seed):
    check_best(simulated(searcher, scheduler, seed, num_samples=6))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("searcher", SEARCHERS)
def test_no_searcher_and_scheduler_make_an_infeasible_trial_the_best(searcher, scheduler):
    for seed in range(2):
        check_best(simulated(searcher, scheduler, seed))


@pytest.mark.slow
@pytest.mark.parametrize("searcher", ["gp", "optuna", "hyperopt"])
def test_a_searcher_comes_near_the_best_feasible_configuration(searcher):
    grid = simulated(searcher, "none", 1, num_samples=40)
    later = list(grid)[20:]
    assert sum(ok(result.config) for result in later) > 6  # of 20 random trials, 4 are feasible
    assert grid.get_best_result().config["x"] > 3.4  # without constraints x comes near to 9


def test_optuna_4_which_reads_no_constraints_gets_worse_values(fit, monkeypatch):
    for owner in optuna.trial.Trial.__mro__:
        monkeypatch.delattr(owner, "set_constraint", raising=False)
    storage = optuna.storages.InMemoryStorage()
    fit(
        lambda config: report(config, 1),
        SPACE,
        metric="loss",
        search_alg=OptunaSearch(storage=storage, study_name="limited"),
        num_samples=12,
        seed=1,
        max_concurrent_trials=1,
        constraints=["size <= 4"],
    )
    trials = optuna.load_study(study_name="limited", storage=storage).trials
    feasible = [trial.params["x"] <= 4 for trial in trials]
    first = feasible.index(True)
    assert not all(feasible[first:])
    for place in range(first, 12):
        known = [trials[each].value for each in range(place) if feasible[each]]
        assert feasible[place] or trials[place].value > max(known)


def test_a_rung_stops_infeasible_trials_before_feasible_trials():
    grid = simulated("random", "asha", 3, num_samples=60)
    iterations = {result.feasible: 0 for result in grid} | {
        result.feasible: result.metrics["training_iteration"]
        for result in sorted(grid, key=lambda result: result.metrics["training_iteration"])
    }
    assert iterations[True] == 9
    judged = [each for each in grid.decisions() if each.get("rule") == "rung"]
    late = {result.trial_id for result in list(grid)[20:]}
    infeasible = {result.trial_id for result in grid if not result.feasible} & late
    assert all(each["verdict"] == "STOP" for each in judged if each["trial_id"] in infeasible)


def test_the_pareto_front_has_only_feasible_trials():
    def two(config, iteration, rng):
        return {**report(config, iteration), "cost": config["x"]}

    config = TuneConfig(
        metric=["loss", "cost"],
        mode=["min", "min"],
        num_samples=40,
        constraints=LIMITS,
        scheduler=ParetoScheduler(max_t=9),
    )
    grid = simulate(two, SPACE, tune_config=config, run_config=STOP, workers=2, seed=1)
    front = grid.pareto_front()
    assert front
    assert all(result.feasible for result in front)
    assert grid.get_best_result("loss", "min").feasible


def test_the_best_report_of_a_trial_is_a_feasible_report(fit):
    def trained(config):
        for step in range(4):
            tune.report({"loss": -step, "size": step})

    grid = fit(trained, {}, metric="loss", constraints=["size <= 1"])
    with pytest.raises(MetricError, match=r"no trial satisfies size <= 1; the smallest violation is 2, of"):
        grid.get_best_result()
    best = grid.get_best_result(scope="all")
    assert best.best_metrics["size"] == 1
    assert not best.feasible
    assert best.violation == 2
    assert list(best.metrics_dataframe[VIOLATION]) == [0, 0, 1, 2]
    assert "infeasible by 2" in repr(best)
    assert "TERMINATED, infeasible" in repr(grid)


def saved(number, report, folder):
    path = folder / f"saved_{number}"
    path.mkdir()
    (path / "number").write_text(str(number))
    tune.report(report, checkpoint=tune.Checkpoint.from_directory(path))


def test_the_checkpoint_of_a_feasible_report_is_kept(fit, restore, tmp_path):
    def trained(config):
        for number, (loss, size) in enumerate([(0.5, 1), (0.1, 3), (0.2, math.nan), (0.6, 1)]):
            saved(number, {"loss": loss, "size": size}, tmp_path)

    keep = tune.CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )
    run = {"checkpoint_config": keep}
    best = fit(trained, {}, metric="loss", constraints=["size <= 2"], run=run).get_best_result()
    for result in (best, restore(trained)[0]):  # a restore ranks checkpoints again
        with result.best_checkpoint.as_directory() as folder:
            assert (Path(folder) / "number").read_text() == "0"


def test_a_users_own_violation_means_nothing_without_constraints(fit):
    grid = fit(
        lambda config: {"loss": config["x"], "constraint_violation": 0.5 * config["x"]},
        {"x": tune.grid_search([2, 1])},
        metric="loss",
    )
    assert [result.feasible for result in grid] == [True, True]
    assert grid.get_best_result().config["x"] == 1
    assert "infeasible" not in repr(grid)


def test_a_plateau_of_infeasible_reports_does_not_end_the_experiment(fit):
    def trained(config):
        return {"loss": 0.0 if config["x"] > 2 else config["x"], "size": config["x"]}

    stop = tune.stopper.ExperimentPlateauStopper("loss", top=2, std=0.01)
    space = {"x": tune.grid_search([5, 6, 7, 2, 1.5, 1.501, 1.502])}
    settings = {"metric": "loss", "max_concurrent_trials": 1, "run": {"stop": stop}}
    assert len(fit(trained, space, constraints=["size <= 2"], **settings)) == 6
    assert len(fit(trained, space, **{**settings, "run": {"stop": stop, "name": "free"}})) == 2


def test_a_single_trial_without_a_metric_must_be_feasible(fit):
    grid = fit(lambda config: {"size": 3}, {}, constraints=["size <= 2"])
    with pytest.raises(MetricError, match=r"no trial satisfies size <= 2; the smallest violation is 0\.5"):
        grid.get_best_result()
    assert grid.get_best_result(require_feasible=False).metrics["size"] == 3
    wide = fit(lambda config: {"size": 3}, {}, constraints=["size <= 3"], run={"name": "wide"})
    assert wide.get_best_result().feasible


def test_the_best_result_of_failed_trials_names_the_failure(fit):
    def trained(config):
        tune.report({"loss": 1, "size": 3})
        raise ValueError("no such layer")

    grid = fit(trained, {}, metric="loss", constraints=["size <= 2"], num_samples=2)
    with pytest.raises(MetricError, match=r"2 of 2 trials failed, the first error is ValueError.*such layer"):
        grid.get_best_result()


def test_none_as_a_constraints_value_is_named(fit):
    with pytest.raises(MetricError, match="'size', which is None: report a number"):
        fit(lambda config: {"loss": 1, "size": None}, {}, metric="loss", constraints=["size <= 2"])


def test_an_exported_study_knows_which_trials_are_feasible():
    grid = simulated("random", "none", 3, num_samples=40)
    study = grid.to_optuna()
    assert study.best_trial.user_attrs["trial_id"] == grid.get_best_result().trial_id
    assert [trial.constraints[VIOLATION] <= 0 for trial in study.trials] == [
        result.feasible for result in grid
    ]


# --- what users are told --------------------------------------------------------------------------


def test_a_trial_that_never_reports_a_constraints_metric_fails(fit, caplog):
    grid = fit(lambda config: {"loss": 1.0, "latency": 1.0}, {}, metric="loss", constraints=["size <= 1"])
    assert "no 'size', which is the metric of a constraint" in caplog.text
    (error,) = grid.errors
    assert "a constraint names 'size', which was not reported" in str(error)
    with pytest.raises(
        MetricError, match=r"no trial satisfies size <= 1; 1 of 1 trials .*'size', .* latency, loss"
    ):
        grid.get_best_result()


@pytest.mark.parametrize("name", ["latencyms", "latency_mss", "latency_sm", "latency_msec"])
def test_a_misspelt_metric_of_a_constraint_ends_the_experiment(fit, tmp_path, caplog, name):
    def trained(config):
        with (tmp_path / "calls").open("a") as calls:
            calls.write("1")
        return {"loss": 1.0, "latency_ms": 1.0}

    with pytest.raises(MetricError, match=f"a constraint names '{name}'.*mean 'latency_ms'"):
        fit(trained, {}, metric="loss", constraints=[f"{name} <= 1"], num_samples=9, max_concurrent_trials=1)
    assert (tmp_path / "calls").read_text() == "1"
    assert "resume" not in caplog.text


def test_a_parameter_as_a_constraints_metric_ends_the_experiment(fit):
    with pytest.raises(MetricError, match=r"'width' is a parameter: exclude .* by tune\.forbid"):
        fit(
            lambda config: {"loss": 1.0},
            {"width": tune.uniform(1, 9)},
            metric="loss",
            constraints=["width <= 5"],
        )


def test_a_late_value_with_a_similar_name_is_no_mistake(fit):
    def trained(config):
        tune.report({"loss": 1.0, "val_mae": 1.0})
        tune.report({"loss": 1.0, "val_mape": 1.0})

    grid = fit(trained, {}, metric="loss", constraints=["val_mape <= 5"], num_samples=2)
    assert [result.feasible for result in grid] == [True, True]


def test_a_value_that_a_stop_rule_adds_is_too_late_for_a_constraint(fit):
    def adds(trial_id, result):
        result["extra"] = 1.0
        return False

    grid = fit(
        lambda config: {"loss": 1.0}, {}, metric="loss", constraints=["extra <= 5"], run={"stop": adds}
    )
    assert "a stop rule adds the value of a constraint" in str(grid.errors[0])


def test_a_constraint_may_limit_the_time_of_a_trial(fit):
    grid = fit(lambda config: {"loss": 1.0}, {}, metric="loss", constraints=["time_total_s <= 500"])
    assert grid.get_best_result().feasible


def test_lines_of_infeasible_trials_say_so(fit, capfd):
    def trained(config):
        return {"loss": 1.0, "size": config["x"]}

    space = {"x": tune.grid_search([4, 5])}
    fit(trained, space, metric="loss", constraints=["size <= 4"], run={"verbose": 2})
    written = capfd.readouterr()
    lines = (written.out + written.err).splitlines()
    marked = [line for line in lines if "loss=1 infeasible by 0.25" in line]
    assert len(marked) == 2  # its report and its end
    assert sum("loss=1" in line and "infeasible" not in line for line in lines) >= 2


def test_a_text_as_a_constraints_metric_fails_the_trial(fit):
    grid = fit(lambda config: {"loss": 1.0, "size": "big"}, {}, metric="loss", constraints=["size <= 1"])
    assert "metric 'size' is 'big', which is not a number" in str(grid.errors[0])


def test_without_strict_checking_a_missing_value_leaves_the_trial_without_a_judgement(fit, caplog):
    def trained(config):
        return {"loss": -config["x"], **({"size": 1} if config["x"] < 3 else {})}

    grid = fit(
        trained,
        {"x": tune.grid_search([1, 2, 3])},
        metric="loss",
        constraints=["size <= 1"],
        strict_metric_checking=False,
    )
    assert grid.num_errors == 0
    assert [result.feasible for result in grid] == [True, True, False]
    assert grid[2].violation == math.inf
    assert "not known to be feasible" in repr(grid[2])
    assert grid.get_best_result().config["x"] == 2


def test_nan_is_a_violation_and_is_told_once(fit, caplog):
    def trained(config):
        return {"loss": -config["x"], "size": math.nan if config["x"] > 1 else 1}

    grid = fit(trained, {"x": tune.grid_search([1, 2, 3])}, metric="loss", constraints=["size <= 1"])
    assert grid.get_best_result().config["x"] == 1
    assert [result.violation for result in grid] == [0, math.inf, math.inf]
    assert caplog.text.count("reported NaN as size, so it counts as infeasible") == 1


@pytest.mark.parametrize("limit", [10, 0.5])
def test_the_console_and_the_overview_name_no_infeasible_trial(fit, capsys, tmp_path, limit):
    grid = fit(
        lambda config: {"loss": -config["x"], "size": config["x"]},
        {"x": tune.grid_search([1, 20])},
        metric="loss",
        constraints=[f"size <= {limit}"],
        run={"verbose": 1},
    )
    shown, words = capsys.readouterr().out, Overview.of(tmp_path / "e", 0.0).best_words
    if limit == 10:
        assert f"loss=-1 at iteration 1 of {grid[0].trial_id}" in shown
        assert words == f"loss=-1 of {grid[0].trial_id}"
    else:
        none = "none, no trial satisfies the constraints"
        assert f"{none}; the smallest violation is 1, of {grid[0].trial_id}" in shown
        assert words == none


# --- restore --------------------------------------------------------------------------------------


class Loner(Searcher):
    """A searcher of a user that knows nothing of constraints; its suggestions depend on all it was told."""

    def __init__(self, metric=None, mode=None):
        super().__init__(metric, mode)
        self.told = []

    def suggest(self, trial_id):
        rng = random.Random(repr(self.told))
        return {"x": rng.uniform(0, 10), "y": rng.uniform(0, 1)}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.told.append(None if result is None else result["loss"])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Loner, id="own"),
        pytest.param(lambda: GaussianProcessSearch(), id="gp", marks=pytest.mark.slow),
        pytest.param(lambda: OptunaSearch(), id="optuna", marks=pytest.mark.slow),
        pytest.param(lambda: HyperOptSearch(), id="hyperopt", marks=pytest.mark.slow),
    ],
)
def test_a_restore_after_any_trial_goes_on_as_if_nothing_had_happened(fit, restore, make, caplog):
    caplog.set_level(logging.ERROR)
    number = 14
    asked = {"metric": "loss", "seed": 5, "max_concurrent_trials": 1, "constraints": LIMITS}

    def trained(config):
        return report(config, 1)

    whole = fit(trained, SPACE, num_samples=number, search_alg=make(), run={"name": "whole"}, **asked)
    for ended in range(1, number, 3):
        name = f"cut_{ended}"
        fit(trained, SPACE, num_samples=ended, search_alg=make(), run={"name": name}, **asked)
        again = restore(trained, name, num_samples=number, search_alg=make())
        assert [result.config for result in again] == [result.config for result in whole]
        assert [result.violation for result in again] == [result.violation for result in whole]
    assert list(again.facts()["tune_config"]["constraints"]) == LIMITS


def test_a_restore_keeps_the_constraints(fit, restore):
    fit(lambda config: {"loss": 1, "size": 2}, {}, metric="loss", constraints=["size <= 1"])
    grid = restore(lambda config: {"loss": 1, "size": 2}, constraints=["size <= 1"])
    assert not grid[0].feasible
    with pytest.raises(ConfigError, match=r"constraints=\('size <= 3',\)\) differs from the experiment's"):
        restore(lambda config: {"loss": 1, "size": 2}, constraints=["size <= 3"])


# --- the dashboard --------------------------------------------------------------------------------


def test_the_dashboard_marks_infeasible_trials_and_draws_none_as_the_best(fit, tmp_path):
    grid = fit(
        lambda config: {"loss": -config["x"], "size": config["x"]},
        {"x": tune.grid_search([5, 20, 10])},
        metric="loss",
        constraints=["size <= 10"],
    )
    rows = TrialTable(tmp_path / "e").page()[1]
    reasons = [row["reason"].split(";")[0] for row in rows]
    assert reasons == ["finished", "infeasible by 1", "finished"]
    assert {row["state"] for row in rows} == {"finished"}
    best = chart(tmp_path / "e", "history", {})["data"][-1]
    assert list(best["y"]) == [-5, -5, -10]
    (front,) = [
        trace
        for trace in chart(tmp_path / "e", "pareto", {"metric": "loss,size"})["data"]
        if len(trace["x"]) == 2
    ]
    assert -20 not in front["x"]
    assert grid.get_best_result().config["x"] == 10
