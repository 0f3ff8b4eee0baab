"""Schedulers and searchers of other packages: given by name, and made again by a restore."""

from __future__ import annotations

import pytest

from tests.packages import install_from_page
from trainkit import tune
from trainkit.cli.main import main
from trainkit.errors import ConfigError

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture
def limit(tmp_path, monkeypatch):
    install_from_page("docs/extending/add-a-scheduler.md", tmp_path, monkeypatch)


@pytest.fixture
def climb(tmp_path, monkeypatch):
    install_from_page("docs/extending/add-a-searcher.md", tmp_path, monkeypatch)


def objective(config):
    for _ in range(4):
        tune.report({"loss": config["x"]})


def test_the_scheduler_of_the_page_is_given_by_name_and_made_again(limit, fit, restore, tmp_path, capsys):
    scheduler = tune.create_scheduler("limit", limit=0.5, grace_period=1)
    grid = fit(objective, {"x": tune.grid_search([0.1, 0.9])}, metric="loss", scheduler=scheduler)
    assert [len(result.history) for result in grid] == [4, 2]
    again = restore(objective, num_samples=2)
    assert [len(result.history) for result in again] == [4, 2, 4, 2]
    assert main(["why", str(tmp_path / "e"), "1"]) == 0
    assert "report 2: STOP, worse than 0.5 at 2" in capsys.readouterr().out


def test_the_searcher_of_the_page_is_given_by_name_and_made_again(climb, fit, restore):
    space = {"x": tune.uniform(-10, 10), "kind": tune.choice(["a", "b"])}
    settings = {"metric": "loss", "search_alg": "climb", "max_concurrent_trials": 1, "seed": 0}
    whole = fit(quadratic, space, **settings, num_samples=8, run={"name": "whole"})
    fit(quadratic, space, **settings, num_samples=4)
    again = restore(quadratic, num_samples=8)
    assert [result.config for result in again] == [result.config for result in whole]


def quadratic(config):
    tune.report({"loss": (config["x"] - 3) ** 2})


def test_a_class_of_a_script_does_not_stand_for_one_of_a_package_by_its_name(limit, fit, tmp_path):
    mine = type("LimitScheduler", (tune.schedulers.FIFOScheduler,), {})
    fit(objective, {"x": 1}, scheduler=mine())
    with pytest.raises(ConfigError, match=r"was started with scheduler=.*LimitScheduler.*pass it again"):
        tune.Tuner.restore(tmp_path / "e", objective)
