"""An experiment that is kept in memory: the same results, and nothing on the disk."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.core.resources import Bound
from trainkit.tune.experiment.run import ExperimentRun
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.space.search_space import Space
from trainkit.tune.store.restore import ResumeRule

pytestmark = pytest.mark.usefixtures("inline")


def descends(config):
    for step in range(1, 5):
        tune.report({"loss": config["x"] / step})


SPACE = {"x": tune.grid_search([1, 2, 3, 4])}
SETTINGS = {"metric": "loss", "mode": "min", "seed": 0, "max_concurrent_trials": 1}


@pytest.fixture
def kept(tmp_path, caplog) -> ResultGrid:
    """With the loggers that come by themselves: they have nowhere to write."""
    config = tune.TuneConfig(**SETTINGS, scheduler=ASHAScheduler(max_t=4, reduction_factor=2))
    run = tune.RunConfig(verbose=0)
    experiment = ExperimentRun(Bound(descends), Space.of(SPACE), config, run, tmp_path / "e", in_memory=True)
    grid = experiment.fit()
    assert experiment.ended_by is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "the experiment continues" not in caplog.text
    return grid


def test_it_comes_to_what_one_in_a_folder_comes_to(kept, fit):
    filed = fit(descends, SPACE, **SETTINGS, scheduler=ASHAScheduler(max_t=4, reduction_factor=2))
    for one, other in zip(kept, filed, strict=True):
        assert (one.config, one.status, one.reason) == (other.config, other.status, other.reason)
        assert [row["loss"] for row in one.history] == [row["loss"] for row in other.history]
    assert [row["rule"] for row in kept.decisions()] == [row["rule"] for row in filed.decisions()]
    assert kept.get_best_result().config == filed.get_best_result().config
    assert kept.facts()["space"] == filed.facts()["space"]


def test_there_is_nothing_to_go_on_with(tmp_path):
    with pytest.raises(ConfigError, match="can't be resumed"):
        ExperimentRun(
            Bound(descends),
            Space.of(SPACE),
            tune.TuneConfig(**SETTINGS),
            tune.RunConfig(verbose=0),
            tmp_path / "e",
            resume=ResumeRule(),
            in_memory=True,
        )
