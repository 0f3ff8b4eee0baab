"""Hyperband on the simulator: the totals of its tables, and experiments that end whatever happens in them."""

from __future__ import annotations

import pytest

from tests.tune.schedulers.test_hyperband import TOTALS
from trainkit import tune
from trainkit.tune.schedulers import HyperBandScheduler
from trainkit.tune.schedulers.halving import bracket_plans


def noisy(config, training_iteration, rng):
    return {"m": config["x"] + rng.normal() / training_iteration}


def simulate(scheduler, samples: int, **how):
    settings = tune.TuneConfig(metric="m", mode="max", num_samples=samples, scheduler=scheduler)
    return tune.simulate(noisy, {"x": tune.uniform(0, 1)}, settings, **{"seed": 1, **how})


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("pair", TOTALS)
def test_14_totals_of_one_turn(pair, resume):
    trials, scratch, resumed = TOTALS[pair]
    scheduler = HyperBandScheduler(max_t=pair[0], reduction_factor=pair[1])
    simulation = simulate(scheduler, trials, workers=9, resume=resume)
    assert (len(simulation), simulation.work) == (trials, resumed if resume else scratch)


@pytest.mark.parametrize("max_t", [60, 100])
def test_14_every_bracket_ends_at_the_maximum(max_t):
    plans = bracket_plans(max_t, 3)
    simulation = simulate(HyperBandScheduler(max_t=max_t), sum(plan.size for plan in plans), workers=4)
    furthest: dict[int, int] = {}
    for each in simulation.decisions():
        furthest[each["bracket"]] = max(furthest.get(each["bracket"], 0), each["iteration"])
    assert furthest == dict.fromkeys(range(len(plans)), max_t)


def test_those_that_an_end_finds_paused_say_how_they_stood():
    scheduler = HyperBandScheduler(max_t=9)
    simulation = simulate(scheduler, 17, workers=1, horizon_s=5.5)
    left = [each for each in simulation.decisions() if each["rule"] == "not chosen"]
    assert len(left) == 5  # and one that ran when the end came
    assert {(each["entries"], each["awaits"], each["rung"]) for each in left} == {(6, 3, 1)}
    reasons = [result.reason for result in simulation if "not promoted" in result.reason]
    words = "time budget: not promoted: rung 1 of bracket 0, rank {} of 6 so far, trials still expected: 3"
    assert sorted(reasons) == sorted(words.format(each["rank"]) for each in left)

    simulation = simulate(scheduler, 17, workers=1, horizon_s=9.5)  # the round is judged, and one goes on
    reasons = [result.reason for result in simulation if "not promoted" in result.reason]
    assert sorted(reasons) == [
        f"time budget: not promoted: rung 1 of bracket 0, rank {rank} of 9, 3 places, still waiting to resume"
        for rank in (2, 3)
    ]


def test_rungs_are_drawn_in_the_order_of_arrival_with_one_cutoff_each():
    pytest.importorskip("matplotlib")
    from matplotlib.collections import PathCollection

    simulation = simulate(HyperBandScheduler(max_t=9), 9, workers=4, stragglers=0.5)
    (axes,) = simulation.plot("rungs").axes
    decisions = simulation.decisions()
    for index, level in enumerate((1, 3)):
        arrived: dict[str, float] = {}
        for each in decisions:
            if each.get("rung") == level:
                arrived.setdefault(each["trial_id"], each["iteration"])
        histories = {result.trial_id: history for result, history in simulation.histories()}
        expected = [
            next(
                report["m"]
                for report in histories[trial_id]
                if report["training_iteration"] == arrived[trial_id]
            )
            for trial_id in arrived
        ]
        points = [
            point
            for each in axes.collections
            if isinstance(each, PathCollection)
            for point in each.get_offsets()
            if index - 0.5 < point[0] < index + 0.5
        ]
        assert [y for _, y in sorted(map(tuple, points))] == pytest.approx(expected)
        cutoffs = {each["cutoff"] for each in decisions if each["rule"] == "rung" and each["rung"] == level}
        assert len(cutoffs) == 1
        assert set(axes.get_lines()[index].get_ydata()) == cutoffs
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["stopped", "continued", "cutoff"]
