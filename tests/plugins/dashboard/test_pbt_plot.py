"""plot("lineage"): members, exchanges, and the way that led to the best."""

from __future__ import annotations

import io

import pytest
from matplotlib.collections import LineCollection

from tests.tune.schedulers.pbt.test_pbt_runs import Toy, pbt
from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.charts.figures import BEST
from trainkit.tune.core.lineage import Exchange, ages

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(scope="module", autouse=True)
def session() -> None:
    """Start none for the module: what needs one starts its own."""


@pytest.fixture
def grid(fit):
    return fit(
        Toy, metric="q", mode="max", num_samples=6, scheduler=pbt(synch=True), seed=2,
        run={"stop": {"training_iteration": 16}},
    )  # fmt: skip


def test_a_lineage(grid):
    figure = grid.plot("lineage")
    figure.savefig(io.BytesIO())
    (axes,) = figure.axes
    exchanges = grid.exchanges()
    members, takes_over = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert len(members.get_segments()) == len(grid) + len(exchanges)
    assert len(takes_over.get_segments()) == len(exchanges) > 0
    assert axes.get_title(loc="left") == f"lineage of 6 trials, {len(exchanges)} exchanges"
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[1]]
    best = grid.get_best_result()
    assert len(way.get_xdata()) == sum(map(len, best.lineage())) == 16
    assert way.get_ydata()[-1] == best.metrics["q"]


def test_a_hyperparameter_along_the_lineage(grid):
    (axes,) = grid.plot("lineage", hyperparameter="lr", log_y=True).axes
    assert (axes.get_ylabel(), axes.get_yscale()) == ("lr", "log")
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[1]]
    assert way.get_ydata()[-1] == grid.get_best_result().config["lr"]


def test_without_an_exchange_there_is_nothing_to_draw(fit):
    grid = fit(lambda config: {"q": 1.0}, metric="q", mode="max", num_samples=2)
    with pytest.raises(ConfigError, match="PopulationBasedTraining"):
        grid.plot("lineage")


def test_reports_are_counted_along_the_weights():
    age = ages(
        [
            Exchange("a", 4, {}, donor="b", donor_iteration=8),
            Exchange("a", 4, {}),  # tried again with another configuration, from the state taken over
            Exchange("c", 6, {}, donor="a", donor_iteration=6),
            Exchange("b", 0, {}),  # begun anew
        ]
    )
    assert [age("a", iteration) for iteration in (3, 4, 5, 6)] == [3, 4, 9, 10]
    assert [age("c", iteration) for iteration in (6, 7)] == [6, 11]
    assert age("b", 9) == 9
