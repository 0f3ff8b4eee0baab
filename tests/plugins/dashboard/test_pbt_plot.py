"""plot("lineage"): members, exchanges, and the way that led to the best."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from matplotlib.collections import LineCollection

from tests.tune.schedulers.pbt.test_pbt_runs import MUTATIONS, Toy, pbt
from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.plots.style import BEST
from trainkit.tune.core.lineage import Exchange, ages
from trainkit.tune.schedulers import PopulationBasedTraining

pytestmark = pytest.mark.usefixtures("inline")


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
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[0]]
    best = grid.get_best_result()
    assert len(way.get_xdata()) == sum(map(len, best.lineage())) == 16
    assert way.get_ydata()[-1] == best.metrics["q"]


def test_a_hyperparameter_along_the_lineage(grid):
    (axes,) = grid.plot("lineage", hyperparameter="lr", log_y=True).axes
    assert (axes.get_ylabel(), axes.get_yscale()) == ("lr", "log")
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[0]]
    assert way.get_ydata()[-1] == grid.get_best_result().config["lr"]


def test_the_way_of_the_best_never_leads_back(fit):
    """Members of an asynchronous population have their own counts, and the best may come from one ahead."""

    class Uneven(Toy):
        def setup(self, config):
            super().setup(config)
            self.reported = 0

        def step(self):
            self.reported += 1
            pace = 1 if self.config["h0"] < 0.5 else 5
            return {**super().step(), "clock": pace * self.reported}

        def save_checkpoint(self, folder):
            return {**super().save_checkpoint(folder), "reported": self.reported}

        def load_checkpoint(self, checkpoint):
            super().load_checkpoint(checkpoint)
            self.reported = checkpoint["reported"]

    results = fit(
        Uneven, metric="q", mode="max", num_samples=6, seed=2, max_concurrent_trials=2,
        scheduler=PopulationBasedTraining("clock", perturbation_interval=10, hyperparam_mutations=MUTATIONS),
        run={"stop": {"training_iteration": 16}},
    )  # fmt: skip
    lines = [result.lineage() for result in results]
    assert any(new.first < old.last for line in lines for old, new in pairwise(line)), (
        "somewhere a member is behind its donor's count"
    )
    (axes,) = results.plot("lineage").axes
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[0]]
    best = results.get_best_result().lineage()
    assert list(way.get_xdata()) == list(range(1, sum(map(len, best)) + 1))
    (_, takes_over) = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert all(end[0] == begin[0] + 1 for begin, end in takes_over.get_segments())
    age = ages(results.exchanges())
    for result, line in zip(results, lines, strict=True):
        assert age(result.trial_id, line[-1].last) == sum(map(len, line))


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


def test_a_trial_begun_anew_has_all_its_reports_again():
    taken = Exchange("a", 4, {}, donor="b", donor_iteration=8)
    assert ages([taken, Exchange("a", 0, {})])("a", 6) == 6
