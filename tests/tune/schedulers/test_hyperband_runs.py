"""Hyperband on trials that train and on simulated ones: what it costs, restores, and ends in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tune.pausing import Counted, CutShort, steps
from tests.tune.schedulers.test_hyperband import TOTALS
from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler, HyperBandForBOHB, HyperBandScheduler
from trainkit.tune.store.reader import ExperimentReader

pytestmark = pytest.mark.usefixtures("inline")

SPACE, BEST = {"x": tune.uniform(0, 1)}, {"metric": "m", "mode": "max"}
TRAINED: Counter[str] = Counter()
BROKEN: set[str] = set()


class Climbing(Counted):
    """Ends at no iteration of its own; x says how good it is."""

    def reports(self, number):
        if self.trial_id[-5:] in BROKEN:
            raise ValueError("broken")
        TRAINED[self.trial_id] += 1
        return {"m": self.config["x"] * number, "seen": number}


def climbing(config):
    for step, saved in steps(99):
        TRAINED[tune.get_context().get_trial_id()] += 1
        tune.report({"m": config["x"] * step, "seen": step}, checkpoint=saved)


@pytest.fixture(autouse=True)
def fresh():
    TRAINED.clear()
    BROKEN.clear()


def rungs_of(grid) -> Counter:
    """How often each verdict was given by each rule at each level."""
    return Counter((each["rule"], each.get("rung"), each["verdict"]) for each in grid.decisions())


@pytest.mark.parametrize(("cls", "trainable"), [(HyperBandScheduler, Climbing), (HyperBandForBOHB, climbing)])
def test_one_turn_trains_what_the_table_says(fit, cls, trainable):
    """14: 17 trials and 69 units for 9 and 3, as trials go on from where they paused."""
    keep = tune.CheckpointConfig(num_to_keep=1)
    grid = fit(
        trainable,
        SPACE,
        **BEST,
        num_samples=17,
        seed=1,
        scheduler=cls(max_t=9),
        run={"checkpoint_config": keep},
    )
    assert not grid.errors
    assert (grid.num_terminated, sum(TRAINED.values())) == (17, 69)
    assert all(result.metrics["seen"] == result.metrics["training_iteration"] for result in grid)
    assert rungs_of(grid)["max_t", None, "STOP"] == 1 + 1 + 3
    judged = Counter()
    for (rule, rung, verdict), count in rungs_of(grid).items():
        if rule == "rung":
            judged[rung, verdict != "STOP"] += count
    assert judged == {(1, True): 3, (1, False): 6, (3, True): 2, (3, False): 6}
    best = max(grid, key=lambda result: result.config["x"])
    assert best.metrics["training_iteration"] == 9


def test_more_samples_open_new_brackets(fit, restore):
    fit(Climbing, SPACE, **BEST, num_samples=4, seed=3, scheduler=HyperBandScheduler(max_t=9))
    first = sum(TRAINED.values())
    grid = restore(Climbing, num_samples=10)
    assert grid.num_terminated == 10
    brackets = {each["trial_id"]: each["bracket"] for each in grid.decisions()}
    assert Counter(brackets.values()) == {0: 4, 1: 5, 2: 1}
    assert first == 4 + 2 + 6  # 4 to 1, then 1 to 3, and to 9
    assert sum(TRAINED.values()) == first + (5 * 3 + 6) + 9


def test_failed_trials_that_run_again_disturb_nobody(fit, restore, tmp_path):
    """What was decided on the others, by their failing too, is replayed as it was."""
    BROKEN.update(["00000", "00004"])
    before = fit(Climbing, SPACE, **BEST, num_samples=9, seed=3, scheduler=HyperBandScheduler(max_t=9))
    assert (before.num_errors, before.num_terminated) == (2, 7)
    decided = before.decisions()
    BROKEN.clear()
    grid = restore(Climbing, resume_errored=True)
    assert (grid.num_errors, grid.num_terminated) == (0, 9)
    assert grid.decisions()[: len(decided)] == decided
    again = {each["trial_id"] for each in grid.decisions()[len(decided) :]}
    assert len(again) == 2  # each alone in a bracket, so it trains to its end
    assert all(result.metrics["training_iteration"] == 9 for result in grid if result.trial_id in again)
    # And once more: what the second one did is replayed, too.
    restore(Climbing)
    with ExperimentReader(tmp_path / "e") as reader:
        assert {str(trial.status) for trial in reader.trials()} == {"TERMINATED"}


def decided(folder: Path) -> list[dict]:
    """In order, what was decided on each trial by its number, and why."""
    with ExperimentReader(folder) as reader:
        return [
            {**each, "trial_id": each["trial_id"][-5:], "time": None, "attempt": None}
            for each in reader.decisions()
        ]


PROMOTION = ASHAScheduler(max_t=9, reduction_factor=3, type="promotion")


@pytest.mark.parametrize(
    ("scheduler", "moments"), [(HyperBandScheduler(max_t=9), (2, 35, 90)), (PROMOTION, (5, 18, 33))]
)
def test_28_a_restore_from_any_step_goes_on_with_the_same_decisions(
    fit, restore, tmp_path, scheduler, moments
):
    def begin(name: str, after: int) -> None:
        run = {"name": name, "callbacks": [CutShort(after)], "default_loggers": ()}
        how = {**BEST, "num_samples": 17, "seed": 1, "max_concurrent_trials": 1}
        fit(Climbing, SPACE, **how, scheduler=scheduler, run=run)

    begin("whole", 0)
    undisturbed = decided(tmp_path / "whole")
    for after in moments:
        with pytest.raises(KeyboardInterrupt):
            begin(f"cut at {after}", after)
        cut = decided(tmp_path / f"cut at {after}")
        assert cut == undisturbed[: len(cut)] != undisturbed
        grid = restore(Climbing, f"cut at {after}", run={"callbacks": [CutShort(0)]})
        assert grid.num_terminated == 17
        assert decided(tmp_path / f"cut at {after}") == undisturbed


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
