"""`results.to_optuna()`: states, values, distributions, and Optuna's own plots and importances of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.integrations.hyperparameters import hyperparameters_of
from trainkit.plugins.integrations.optuna_study import distribution_of, param_of
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.results.result_grid import Hyperparameter, ResultGrid
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.store.writer import ExperimentStore

optuna = pytest.importorskip("optuna")
from optuna.distributions import (  # noqa: E402
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState  # noqa: E402

pytestmark = pytest.mark.usefixtures("inline")


def objective(config):
    if config["x"] > 9:
        raise ValueError("too far")
    for step in range(1, 10):
        loss = (config["x"] - 2) ** 2 * config["net"]["lr"] * 100 + config["net"]["layers"] + 1 / step
        tune.report({"loss": loss + (config["kind"] == "b")})


SPACE = {
    "x": tune.uniform(-10, 10),
    "net": {"lr": tune.loguniform(1e-4, 1e-1), "layers": tune.randint(1, 5), "act": "relu"},
    "kind": tune.choice(["a", "b"]),
}


@pytest.fixture
def grid(fit) -> ResultGrid:
    return fit(
        objective,
        SPACE,
        metric="loss",
        num_samples=30,
        seed=1,
        scheduler=ASHAScheduler(max_t=9, reduction_factor=3),
    )


def test_trials_as_they_were(grid):
    study = grid.to_optuna()
    assert study.direction.name == "MINIMIZE"
    assert [trial.user_attrs["trial_id"] for trial in study.trials] == [result.trial_id for result in grid]
    for trial, result in zip(study.trials, grid, strict=True):
        if result.status == "ERROR":
            assert trial.state is TrialState.FAIL
            assert trial.value is None
            continue
        full = "max_t" in result.reason
        assert trial.state is (TrialState.COMPLETE if full else TrialState.PRUNED)
        assert trial.value == result.metrics["loss"]
        assert trial.intermediate_values == {
            report["training_iteration"]: report["loss"] for report in result.history
        }
        assert trial.params == {
            "x": result.config["x"],
            "net/lr": result.config["net"]["lr"],
            "net/layers": result.config["net"]["layers"],
            "kind": result.config["kind"],
        }
        assert trial.datetime_start <= trial.datetime_complete
    assert {trial.state.name for trial in study.trials} == {"COMPLETE", "PRUNED", "FAIL"}
    assert study.trials[0].distributions == {
        "x": FloatDistribution(-10, 10),
        "net/lr": FloatDistribution(1e-4, 1e-1, log=True),
        "net/layers": IntDistribution(1, 4),
        "kind": CategoricalDistribution(["a", "b"]),
    }
    complete = [result for result in grid if "max_t" in result.reason]
    assert study.best_value == min(result.metrics["loss"] for result in complete)


PLOTS = ("optimization_history", "param_importances", "contour", "timeline")


@pytest.fixture(scope="module")
def study(inline, tmp_path_factory):
    run = tune.RunConfig(storage_path=tmp_path_factory.mktemp("plots"), name="e", verbose=0)
    config = tune.TuneConfig(metric="loss", mode="min", num_samples=15, seed=2)
    return tune.Tuner(objective, param_space=SPACE, tune_config=config, run_config=run).fit().to_optuna()


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("kind", PLOTS)
def test_every_plot_of_optuna_works(study, kind):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    more = {}
    if kind == "contour":
        more["params"] = ["x", "net/lr"]
    if kind == "param_importances":
        more["evaluator"] = optuna.importance.PedAnovaImportanceEvaluator()
    axes = getattr(plots, f"plot_{kind}")(study, **more)
    assert axes is not None
    pyplot.close("all")


def test_the_scope_says_which_report_is_the_value(fit):
    def up_and_down(config):
        for score in (0.2, 0.9, 0.1):
            tune.report({"score": score})

    grid = fit(up_and_down, {"x": tune.uniform(0, 1)}, metric="score", mode="max")
    assert grid.to_optuna().best_value == 0.1
    assert grid.to_optuna(scope="all").best_value == 0.9
    assert grid.to_optuna(scope="avg").best_value == pytest.approx(0.4)
    assert grid.to_optuna(mode="min", scope="all").best_value == 0.1
    assert grid.to_optuna(metric="training_iteration", mode="max").best_value == 3
    with pytest.raises(ConfigError, match="scope='mean'"):
        grid.to_optuna(scope="mean")


def test_trials_that_have_not_ended(tmp_path):
    facts = {
        "seed": 1,
        "space": {"x": tune.uniform(0, 1)},
        "tune_config": {"metric": "loss", "mode": "min"},
    }
    store = ExperimentStore.create(tmp_path / "e", facts)
    trials = [Trial(f"t_{n}", n, {"x": n / 4}, f"f_{n}", f"f_{n}") for n in range(4)]
    metrics = {"training_iteration": 1, "loss": 0.5}
    store.commit(
        [
            *(ev.TrialAdded(trial) for trial in trials),
            *(ev.AttemptStarted(trial, 0, 10.0, 1, "host", "ip", 0) for trial in trials[:3]),
            *(ev.ResultAdded(trial, 0, 1, 11.0, metrics, metrics) for trial in trials[:3]),
            ev.StatusChanged(trials[0], 12.0, TrialStatus.TERMINATED, "time budget", 0, 0),
            ev.StatusChanged(trials[1], 12.0, TrialStatus.PENDING, "interrupted", 1, 0),
        ]
    )
    store.close()
    study = ResultGrid.from_path(tmp_path / "e").to_optuna()
    assert [trial.state.name for trial in study.trials] == ["PRUNED", "WAITING", "RUNNING", "WAITING"]
    assert study.trials[2].intermediate_values == {1: 0.5}
    assert (study.trials[0].datetime_complete - study.trials[0].datetime_start).total_seconds() == 2


def test_branches_lists_and_objects(fit):
    """What a trial doesn't have is absent from its params; what Optuna can't hold is there as text."""
    space = {
        "optimizer": tune.choice(
            [{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam", "beta": 0.9}]
        ),
        "layers": [tune.randint(8, 64), tune.choice([[1, 2], (3,), None])],
        "odd": tune.choice([1, True, 1.0]),
    }
    grid = fit(lambda config: {"loss": random.random()}, space, metric="loss", num_samples=30, seed=3)
    study = grid.to_optuna()
    for trial, result in zip(study.trials, grid, strict=True):
        chosen = result.config["optimizer"]
        assert trial.params["optimizer/name"] == chosen["name"]
        assert trial.params.get("optimizer/momentum") == chosen.get("momentum")
        assert trial.params["layers/0"] == result.config["layers"][0]
        assert trial.params["layers/1"] in ("[1, 2]", "(3,)", None)
        assert trial.params["odd"] == str(result.config["odd"])
    names = {distribution for trial in study.trials for distribution in trial.distributions}
    assert "optimizer/momentum" in names
    assert study.trials[0].distributions["layers/0"] == IntDistribution(8, 63)
    assert study.trials[0].distributions["odd"] == CategoricalDistribution(["1", "True", "1.0"])


def test_every_kind_of_domain(fit):
    space = {
        "kind": tune.choice(["a", "b"]),
        "only_a": tune.when({"kind": "a"}, tune.quniform(0, 1, 0.25)),
        "steps": tune.qrandint(4, 64, 4),
        "log": tune.lograndint(1, 1000),
        "normal": tune.randn(0, 1),
        "coarse": tune.qloguniform(1e-3, 1, 1e-3),
        "computed": tune.sample_from(lambda spec: spec.config.steps * 2),
    }
    grid = fit(lambda config: {"loss": 1.0}, space, metric="loss", num_samples=20, seed=1)
    study = grid.to_optuna()
    for trial, result in zip(study.trials, grid, strict=True):
        assert trial.params == result.config  # without only_a where the kind is b
    first = next(trial for trial in study.trials if "only_a" in trial.params)
    assert first.distributions["only_a"] == FloatDistribution(0, 1)
    assert (first.distributions["log"].low, first.distributions["log"].log) == (1, True)
    assert first.distributions["coarse"] == FloatDistribution(1e-3, 1, log=True)
    normal = [trial.params["normal"] for trial in study.trials]
    assert first.distributions["normal"] == FloatDistribution(min(normal), max(normal))
    assert isinstance(first.distributions["computed"], IntDistribution)


def test_a_grid_returns_hyperparameters_with_values_and_domains(grid):
    found: dict[str, Hyperparameter] = {each.name: each for each in grid.hyperparameters()}
    assert list(found) == ["x", "net/lr", "net/layers", "kind"]
    assert found["x"].values == {place: result.config["x"] for place, result in enumerate(grid)}
    assert str(found["kind"].domain) == str(SPACE["kind"])
    assert found["kind"].choices == ["a", "b"] and not found["kind"].is_numeric
    assert found["net/lr"].is_log and found["net/lr"].bounds == (1e-4, 1e-1)
    assert found["net/layers"].is_whole and found["net/layers"].bounds == (1, 4)


def test_what_no_space_says_is_told_by_the_values():
    """Of functions that define spaces, of computed values, and of domains that are not known."""
    configs = [
        {"lr": 1e-5, "width": 16, "same": 3, "name": "x", "deep": {"flag": True}},
        {"lr": 1e-1, "width": 64, "same": 3, "name": "y", "deep": {"flag": False}},
        {"lr": 1e-3, "width": 32, "same": 3, "name": "x", "deep": {"flag": True}, "extra": 0.5},
    ]
    found = {each.name: each for each in hyperparameters_of(configs, {"$opaque": "a function"})}
    assert set(found) == {"lr", "width", "name", "deep/flag", "extra"}
    assert found["lr"].bounds == (1e-5, 1e-1)
    assert found["lr"].is_log
    assert found["width"].is_whole
    assert not found["width"].is_log
    assert found["name"].choices == ["x", "y"]
    assert found["deep/flag"].choices == [True, False]
    assert found["extra"].values == {2: 0.5}


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1000, 1000),
    st.floats(width=32),
    st.text(max_size=3),
    st.lists(st.integers(0, 3), max_size=2),
)
CONFIGS = st.recursive(
    VALUES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("xyz"), CONFIGS, max_size=3), min_size=1, max_size=5))
def test_optuna_takes_whatever_was_tried(configs):
    """Whatever values trials had, each lies in the distribution that is told of it."""
    parameters = hyperparameters_of(configs, None)
    distributions = {each.name: distribution_of(each, optuna.distributions) for each in parameters}
    for place in range(len(configs)):
        active = [each for each in parameters if place in each.values]
        trial = optuna.trial.create_trial(  # which checks that they do
            params={each.name: param_of(each, place) for each in active},
            distributions={each.name: distributions[each.name] for each in active},
            value=0.0,
        )
        assert len(trial.params) == len(active)
