"""Advice in messages: what a message names as the cure changes the outcome."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from trainkit import tune
from trainkit.errors import TrainkitError
from trainkit.tune.schedulers import PopulationBasedTraining

pytestmark = pytest.mark.usefixtures("inline")


def reports(*losses: float, name: str = "loss") -> Callable[[Any], None]:
    def trial(config: Any) -> None:
        for loss in losses:
            tune.report({name: loss})

    return trial


def best(fit: Any, *losses: float, **asked: Any) -> Any:
    return fit(reports(*losses), metric="loss").get_best_result(**asked)


def fitted(fit: Any, trial: Callable[[Any], None], **settings: Any) -> Any:
    return fit(trial, metric="loss", **settings)


def population(fit: Any, **arguments: Any) -> Any:
    scheduler = PopulationBasedTraining(
        time_attr="epoch", perturbation_interval=2, hyperparam_mutations={"x": [1, 2]}, **arguments
    )
    return fit(reports(1.0), {"x": tune.choice([1, 2])}, metric="loss", scheduler=scheduler)


CURES = {
    "a NaN at the end, all": (best, (1.0, math.nan), {}, "scope='all'", {"scope": "all"}),
    "a NaN at the end, kept": (
        best,
        (1.0, math.nan),
        {},
        "filter_nan_and_inf=False",
        {"filter_nan_and_inf": False},
    ),
    "nothing but NaN": (best, (math.nan,), {}, "filter_nan_and_inf=False", {"filter_nan_and_inf": False}),
    "another spelling": (
        fitted,
        (reports(1.0, name="los"),),
        {},
        "strict_metric_checking=False",
        {"strict_metric_checking": False},
    ),
    "no time": (population, (), {}, "require_attrs=False", {"require_attrs": False}),
}


@pytest.mark.parametrize("case", CURES)
def test_what_an_error_names_makes_it_work(fit, case):
    run, arguments, settings, words, cure = CURES[case]
    with pytest.raises(TrainkitError) as caught:
        run(fit, *arguments, **settings)
    assert words in str(caught.value)
    assert run(fit, *arguments, **settings, **cure) is not None


@pytest.mark.parametrize("scope", ["last", "all"])
def test_more_reports_are_named_only_where_they_have_a_number(fit, scope):
    with pytest.raises(TrainkitError) as caught:
        best(fit, math.nan, math.nan, scope=scope)
    assert "scope='all', or" not in str(caught.value)


def test_what_ended_by_failures_goes_on_as_its_error_says(fit, restore):
    broken = [True]

    def trial(config):
        if broken:
            raise RuntimeError("a fault")
        return {"loss": 1}

    with pytest.raises(TrainkitError, match="restart_errored=True"):
        fit(trial, num_samples=3, run={"failure_config": tune.FailureConfig(max_failed_trials=1)})
    broken.clear()
    grid = restore(trial, restart_errored=True)
    assert (len(grid), grid.num_errors) == (3, 0)
