"""Folds of one configuration as a unit (row 2.8)."""

from __future__ import annotations

import math
import statistics

import pytest

from tests.tune.controller.harness import Play
from tests.tune.search.test_wrappers import Telling
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.repeater.repeater import TRIAL_INDEX, by_unit
from trainkit.tune.search import BasicVariantGenerator, OptunaSearch, Repeater

pytestmark = pytest.mark.usefixtures("inline")


class OfUnits(Telling):
    def on_trial_result(self, trial_id, result):
        raise AssertionError("a single report")


def end(play: Play, index: int, loss: float | None) -> None:
    play.started(index)
    if loss is None:
        play.failed(index)
    else:
        play.reported(index, {"loss": loss}, done=True)


def indexes(play: Play) -> list[int]:
    return [trial.config[TRIAL_INDEX] for trial in play.controller.trials]


# row 2.8
def test_the_searcher_sees_mean_and_spread_once_per_configuration():
    searcher = OfUnits()
    play = Play(searcher=Repeater(searcher, repeat=5), num_samples=10, cpus=1, metric="loss")
    for index, loss in enumerate([1, 2, 3, 4, 10, 1, 1, 1, 1, 1]):
        end(play, index, float(loss))
    assert play.controller.done
    assert indexes(play) == [0, 1, 2, 3, 4] * 2
    assert len({trial.config["x"] for trial in play.controller.trials}) == 2
    (first, result, error), (second, other, _) = searcher.told
    assert (first, second, error) == (0, 5, False)
    assert (result["loss"], result["repeat_count"]) == (4.0, 5)
    assert result["repeat_std"] == statistics.stdev([1, 2, 3, 4, 10])
    assert (other["loss"], other["repeat_std"]) == (1.0, 0.0)


# row 2.8
@pytest.mark.parametrize(
    ("rule", "mode", "losses", "folds"),
    [
        # the best unit has folds of 1, 2, 3: a mean above 2, or above 3, is lost
        ("aggressive", "min", [2.5], 1),
        ("aggressive", "min", [1, 3.5], 2),
        ("aggressive", "min", [1, 2.9, 3], 3),
        ("forgiving", "min", [2.5, 2.6, 2.7], 3),
        ("forgiving", "min", [2.5, 4], 2),
        ("forgiving", "min", [3.5], 1),
        ("forgiving", "min", [math.nan], 1),
        ("forgiving", "max", [0.5], 1),
        ("forgiving", "max", [1.5, 1.5, 1.5], 3),
        ("aggressive", "max", [2.5, 1.2], 2),
        (None, "min", [9, 9, 9], 3),
    ],
)
def test_folds_are_skipped_when_the_bound_is_lost(rule, mode, losses, folds):
    searcher = OfUnits()
    play = Play(
        searcher=Repeater(searcher, repeat=3, skip=rule), num_samples=9, cpus=1, metric="loss", mode=mode
    )
    for index, loss in enumerate([1.0, 2.0, 3.0, *losses]):
        end(play, index, float(loss))
    assert indexes(play) == [0, 1, 2, *range(folds), 0]
    assert [told[0] for told in searcher.told] == [0, 3]
    assert searcher.told[1][1]["repeat_count"] == folds
    assert searcher.told[1][1]["loss"] == pytest.approx(statistics.fmean(losses), nan_ok=True)


def test_folds_that_run_already_go_on_and_the_others_are_skipped():
    searcher = OfUnits()
    play = Play(searcher=Repeater(searcher, 4, skip="aggressive"), num_samples=8, cpus=2, metric="loss")
    for index in range(4):
        end(play, index, 1.0)
    # Folds 0 and 1 of the second unit run.
    assert indexes(play) == [0, 1, 2, 3, 0, 1]
    end(play, 4, 5.0)
    assert len(searcher.told) == 1
    assert play.controller.done is False
    end(play, 5, 4.0)
    assert play.controller.done
    assert [told[1]["loss"] for told in searcher.told] == [1.0, 4.5]


def test_a_fold_that_fails_is_left_out_and_a_unit_without_any_has_failed():
    searcher = OfUnits()
    play = Play(searcher=Repeater(searcher, repeat=2), num_samples=6, cpus=1, metric="loss")
    for index, loss in enumerate([1.0, None, None, None, 2.0, math.nan]):
        end(play, index, loss)
    first, second, third = searcher.told
    assert (first[1]["loss"], first[1]["repeat_count"], first[2]) == (1.0, 1, False)
    assert second[1:] == (None, True)
    assert math.isnan(third[1]["loss"])


# R19879
def test_over_a_grid_and_over_random_search(fit):
    space = {"a": tune.grid_search([1, 2]), "b": tune.uniform(0, 1)}
    grid = fit(
        lambda config: config["a"] + config[TRIAL_INDEX],
        space,
        metric="_metric",
        num_samples=3,
        search_alg=Repeater(BasicVariantGenerator(), 3),
    )
    units = by_unit(grid, "_metric")
    assert [(unit.config["a"], list(unit.values), unit.mean) for unit in units] == [
        (1, [1, 2, 3], 2),
        (2, [2, 3, 4], 3),
    ]
    assert [unit.std for unit in units] == [1, 1]
    assert min(units, key=lambda unit: unit.mean).config == units[0].config
    assert TRIAL_INDEX not in units[0].config


def test_leftovers_are_not_run_and_without_an_index_the_configurations_are_equal(fit):
    search = Repeater(BasicVariantGenerator(), 2, set_index=False)
    grid = fit(lambda config: config["x"], {"x": tune.uniform(0, 1)}, num_samples=5, search_alg=search)
    configs = [result.config for result in grid]
    assert len(configs) == 4
    assert configs[0] == configs[1] != configs[2] == configs[3]


def test_one_trial_cannot_change_the_others_configuration():
    play = Play(searcher=Repeater(OfUnits(), 2), num_samples=2, space={"net": {"x": tune.uniform(0, 1)}})
    first, second = play.controller.trials
    first.config["net"]["x"] = -1
    assert second.config["net"]["x"] >= 0


def fold(config):
    return {"loss": (config["x"] - 0.3) ** 2 + config[TRIAL_INDEX] / 100}


# rows 1.5, 2.8
@pytest.mark.parametrize("skip", [None, "forgiving"])
def test_it_goes_on_after_an_interruption_in_the_middle_of_a_unit(fit, restore, tmp_path, skip):
    space = {"x": tune.uniform(0, 1)}
    settings = {
        "metric": "loss",
        "seed": 4,
        "search_alg": Repeater(OptunaSearch(), 3, skip=skip),
        "max_concurrent_trials": 1,
    }
    whole = fit(fold, space, num_samples=48, run={"name": "whole"}, **settings)
    interrupted = tmp_path / "until"

    def trainable(config):
        if interrupted.exists() and config["x"] == whole[20].config["x"] and config[TRIAL_INDEX] == 1:
            raise RuntimeError("no luck")
        return fold(config)

    interrupted.touch()
    grid = fit(
        trainable,
        space,
        num_samples=48,
        run={"failure_config": tune.FailureConfig(fail_fast=True)},
        **settings,
    )
    assert 0 < len(grid) < len(whole)
    interrupted.unlink()
    restored = restore(trainable, restart_errored=True)
    assert len({str(result.config) for result in restored}) == len(restored)
    assert len(by_unit(restored, "loss")) == len(by_unit(whole, "loss")) == 16
    if skip:
        assert len(restored) < 48


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Repeater(BasicVariantGenerator(), 0), "repeat=0"),
        (lambda: Repeater("random", 2), "searcher='random'"),
        (lambda: Repeater(BasicVariantGenerator(), 2, skip="often"), "skip='often'"),
        (lambda: Play(searcher=Repeater(BasicVariantGenerator(), 5), num_samples=4), "use a multiple of 5"),
        (lambda: Play(searcher=Repeater(BasicVariantGenerator(), 2, skip="forgiving")), "needs a metric"),
    ],
)
def test_a_mistake_is_named(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
