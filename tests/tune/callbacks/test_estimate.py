"""How long an experiment will take: on simulated sweeps, and as callbacks hear it."""

from __future__ import annotations

import heapq
import random
import statistics

import pytest

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.tune.controller.estimate import RunningTrial, remaining_s


def off_at_a_quarter(lengths: list[float], slots: int, full: list[float] | None = None) -> float:
    """How far off the estimate is, as a part of the truth, when a quarter of the trials have ended."""
    ends: list[tuple[float, int]] = []
    starts: dict[int, float] = {}
    waiting = list(range(len(lengths)))
    ended: list[tuple[float, int]] = []
    now, seen = 0.0, None
    while waiting or ends:
        while waiting and len(ends) < slots:
            number = waiting.pop(0)
            starts[number] = now
            heapq.heappush(ends, (now + lengths[number], number))
        if seen is None and len(ended) >= len(lengths) / 4:
            finished = [lengths[number] for _, number in ended]
            running = [
                RunningTrial(now - starts[number], (now - starts[number]) / full[number] if full else None)
                for _, number in ends
            ]
            seen = (now, remaining_s(finished, running, len(waiting)))
        now, number = heapq.heappop(ends)
        ended.append((now, number))
    assert seen is not None and seen[1] is not None
    return seen[1] / (now - seen[0]) - 1


@pytest.mark.parametrize("slots", [1, 4, 16])
@pytest.mark.parametrize(("trials", "sigma"), [(80, 0.15), (400, 0.4)])
def test_after_a_quarter_it_is_within_a_fifth(slots, trials, sigma):  # row 2.12
    for seed in range(20):
        draw = random.Random(seed)
        lengths = [draw.lognormvariate(3, sigma) for _ in range(trials)]
        assert abs(off_at_a_quarter(lengths, slots)) < 0.2
        assert abs(off_at_a_quarter(lengths, slots, full=lengths)) < 0.2


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_so_it_is_where_some_are_stopped_early(slots):  # row 2.12
    for seed in range(20):
        draw = random.Random(seed)
        full = [draw.lognormvariate(3, 0.2) for _ in range(400)]
        lengths = [whole * draw.choice([draw.random(), 1.0]) for whole in full]
        assert abs(off_at_a_quarter(lengths, slots, full=full)) < 0.2


@pytest.mark.parametrize("slots", [1, 4, 16])
def test_where_few_go_all_the_way_it_is_of_the_right_size(slots):
    errors = []
    for seed in range(40):
        draw = random.Random(seed)
        full = [draw.lognormvariate(3, 0.2) for _ in range(400)]
        # As by rungs at 1, 3, 9 and 27 of 81: a third goes on each time.
        parts = draw.choices([1 / 81, 3 / 81, 9 / 81, 27 / 81, 1], [162, 54, 18, 6, 3], k=400)
        lengths = [whole * part for whole, part in zip(full, parts, strict=True)]
        errors.append(off_at_a_quarter(lengths, slots, full=full))
    # Which of the trials to come go all the way, nobody can know: by themselves they decide the truth.
    assert -0.2 < statistics.median(errors) < 0.3


def test_those_that_run_long_count_though_they_have_not_ended():
    # Ten quick ones have ended, but three of four places are taken by slow ones.
    slow = [
        RunningTrial(100.0, 0.1),
        RunningTrial(100.0, 0.1),
        RunningTrial(100.0, 0.1),
        RunningTrial(1.0, 0.5),
    ]
    assert remaining_s([1.0] * 10, slow, 0) == pytest.approx(900)
    assert remaining_s([1.0] * 10, slow, 40) > 900


def test_nothing_is_said_before_there_is_something_to_say():
    assert remaining_s([], [RunningTrial(5.0)], 10) is None
    assert remaining_s([3.0], [RunningTrial(5.0)], 10) is None
    assert remaining_s([3.0, 3.0], [RunningTrial(1.0)], None) is None, "endless"
    assert remaining_s([], [RunningTrial(5.0, 0.5), RunningTrial(5.0, None)], 10) is None
    assert remaining_s([], [RunningTrial(5.0, 0.5), RunningTrial(5.0, 0.5)], 10) == pytest.approx(55)
    assert remaining_s([3.0], [], 0) == 0
    assert remaining_s([2.0, 2.0], [RunningTrial(0.5)], 3) == pytest.approx(7.5)


def test_the_experiment_knows_its_trials():
    play = Play(num_samples=8, cpus=2, max_iteration=4)
    assert play.controller.remaining_s(play.time) is None
    for index in range(8):
        play.started(index)
        if index % 2:
            play.time += 10
            play.reported(index - 1, {}, done=True)
            play.reported(index, {}, done=True)
            told = play.controller.remaining_s(play.time)
            assert told == pytest.approx((7 - index) / 2 * 10, rel=0.02)
    endless = Play(num_samples=-1, cpus=1)
    for index in range(5):
        endless.ends(index)
    assert endless.controller.remaining_s(endless.time) is None


@pytest.mark.usefixtures("inline")
def test_callbacks_are_told(fit):
    import time

    told = []

    class Look(tune.Callback):
        def on_step_end(self, iteration, trials, **info):
            told.append(info["remaining_s"])

    def trainable(config):
        time.sleep(0.03)
        return 1.0

    fit(trainable, num_samples=40, run={"callbacks": [Look()]}, max_concurrent_trials=1)
    assert told[0] is None
    assert any(each is not None and each > 0 for each in told)
