"""Which trial is best, said unambiguously; tables; experiments read back."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.tune.results.overview import Overview
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from trainkit.tune.search.optuna import OptunaSearch

VALUES = {0: [0.9, 0.1], 1: [0.2, 0.5], 2: [math.nan, 0.3], 3: [0.4]}


def objective(config):
    for step, value in enumerate(VALUES[config["n"]]):
        tune.report({"score": value, "eval": {"loss": -value}, "step": step})


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Iterator[ResultGrid]:
    trainkit.init(engine="inline", num_cpus=1)
    run = tune.RunConfig(storage_path=tmp_path_factory.mktemp("results"), name="e", verbose=0)
    tuner = tune.Tuner(
        objective,
        param_space={"n": tune.grid_search([0, 1, 2, 3]), "net": {"width": 8}},
        tune_config=tune.TuneConfig(metric="score", mode="max"),
        run_config=run,
    )
    yield tuner.fit()
    trainkit.shutdown()


@pytest.mark.parametrize(
    ("metric", "mode", "scope", "n"),
    [
        ("score", "max", "last", 1),
        ("score", "min", "last", 0),
        ("score", "min", "all", 0),
        ("score", "max", "avg", 0),
        ("score", "min", "avg", 2),
        ("score", "max", "last-5-avg", 0),
        ("eval/loss", "min", "last", 1),
        ("eval/loss", "min", "all", 0),
        ("step", "max", "last", 0),  # a tie: the first suggested
    ],
)
def test_the_best_by_every_scope(grid, metric, mode, scope, n):
    assert grid.get_best_result(metric, mode, scope).config["n"] == n


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda g: g.get_best_result("scroe", "max"), MetricError, "Did you mean 'score'"),
        (lambda g: g.get_best_result("eval/los", "min", "all"), MetricError, "Did you mean 'eval/loss'"),
        (lambda g: g.get_best_result(scope="best"), ConfigError, "scope='best'"),
        (lambda g: g.get_best_result(mode="most"), ConfigError, "mode='most'"),
    ],
)
def test_mistakes_are_named(grid, call, kind, words):
    with pytest.raises(kind, match=words):
        call(grid)


def test_without_a_metric_best_has_no_meaning(grid, fit):
    other = fit(lambda config: 1.0, {"n": tune.grid_search([1, 2])})
    with pytest.raises(ConfigError, match="the best trial needs"):
        other.get_best_result()
    assert other[0].best_metrics is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric": "loss"}, "metric='loss' is given without a mode: add mode='min'"),
        ({"mode": "max"}, "mode='max' is given without a metric: add metric="),
        ({"metric": "loss", "search_alg": BasicVariantGenerator()}, "without a mode"),
    ],
)
def test_a_metric_and_a_mode_come_together(grid, tmp_path, settings, words):
    run = tune.RunConfig(storage_path=tmp_path, verbose=0)
    with pytest.raises(ConfigError, match=words):
        tune.Tuner(lambda config: {"loss": 1}, tune_config=tune.TuneConfig(**settings), run_config=run)
    assert not list(tmp_path.iterdir())
    (trial,) = tune.run(lambda config: {"loss": 1}, storage_path=tmp_path, verbose=0, **settings).trials
    assert trial.metrics["loss"] == 1  # as Ray's `run`
    tune_config = tune.TuneConfig(metric="loss", scheduler=ASHAScheduler(mode="min"))
    (result,) = tune.Tuner(lambda config: {"loss": 1}, tune_config=tune_config, run_config=run).fit()
    assert result.metrics["loss"] == 1


@pytest.mark.parametrize(
    ("scores", "best"), [([1.0, math.inf, 3.0, math.nan], 3.0), ([math.nan, math.inf], None)]
)
def test_best_is_known_from_outside_where_a_searcher_names_the_metric(grid, fit, scores, best):
    """And is never NaN or infinite, for the command line neither."""
    points = [{"n": n} for n in range(len(scores))]
    optuna = OptunaSearch(metric="score", mode="max", points_to_evaluate=points)
    own = fit(
        lambda config: {"score": scores[config["n"]]},
        {"n": tune.randint(0, len(scores))},
        search_alg=ConcurrencyLimiter(optuna, 1),
        num_samples=len(scores),
    )
    again = ResultGrid.from_path(own.experiment_path)
    assert (again.metric, again.mode) == (own.metric, own.mode) == ("score", "max")
    seen = Overview.of(Path(own.experiment_path), 0.0)
    assert (seen.best and seen.best[1]) == best
    if best is not None:
        assert again.get_best_result().metrics["score"] == best


def test_of_a_single_trial_best_needs_no_metric(grid, fit):
    only = fit(lambda config: 1.0)
    assert only.get_best_result() is only[0]


def test_where_all_failed_there_is_no_best_and_it_is_told_why(grid, fit):
    def fails(config):
        raise KeyError("lr")

    failed = fit(fails, metric="loss", num_samples=2)
    with pytest.raises(
        MetricError,
        match=r"by 'loss': 2 of 2 trials failed and no trial reported, the first error is KeyError: 'lr'",
    ):
        failed.get_best_result()


def test_the_grid_is_a_sequence(grid):
    assert len(grid) == 4
    assert [result.config["n"] for result in grid] == [0, 1, 2, 3]
    assert grid[-1].config["n"] == 3
    assert [result.config["n"] for result in grid[1:3]] == [1, 2]
    assert (grid.num_errors, grid.num_terminated, grid.errors) == (0, 4, [])


def test_tables(grid):
    pytest.importorskip("pandas")
    table = grid.get_dataframe()
    assert list(table["score"]) == [0.1, 0.5, 0.3, 0.4]
    assert list(table["config/n"]) == [0, 1, 2, 3]
    assert list(table["config/net/width"]) == [8] * 4
    assert list(table["eval/loss"]) == [-0.1, -0.5, -0.3, -0.4]
    assert list(grid.get_dataframe("score", "max")["score"]) == [0.9, 0.5, 0.3, 0.4]
    assert list(grid[0].metrics_dataframe["score"]) == [0.9, 0.1]
