"""Hyperband under the real controller: whatever fails, and however many run at once, nothing is left over."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.schedulers import HyperBandForBOHB, HyperBandScheduler, Verdict
from trainkit.tune.schedulers.halving import bracket_plans, shared_levels
from trainkit.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher


class Listening(BasicVariantGenerator):
    """Keeps what it is told of decisions."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, int, int]] = []

    def on_trial_decision(self, trial_id, result, decision):
        if "budget" in decision.reason:
            self.told.append((trial_id, decision.reason["budget"], result["training_iteration"]))


class Random:
    """Plays a whole experiment by chance: whose event comes next, what is reported, who fails."""

    def __init__(self, seed: int, fail_rate: float, searcher: Searcher | None = None, **play) -> None:
        self.chance = random.Random(seed)
        self.fail_rate = fail_rate
        self.searcher = searcher or Listening()
        retries = tune.FailureConfig(max_failures=self.chance.choice([0, 1, 2]))
        self.play = Play(searcher=self.searcher, metric="m", mode="max", failure=retries, **play)

    def run(self) -> Play:
        play, chance = self.play, self.chance
        while not play.controller.done:
            places = {trial.trial_id: trial.index for trial in play.controller.trials}
            trial_id = chance.choice(sorted(play.calls))
            index = places[trial_id]
            if chance.random() < self.fail_rate:
                play.failed(index)
                continue
            if self.fail_rate and chance.random() < self.fail_rate / 10:
                play.lost()
                continue
            match play.calls[trial_id]:
                case "setup":
                    play.started(index)
                case "advance":
                    play.reported(index, {"m": chance.random()}, done=chance.random() < self.fail_rate / 10)
                case "stop":
                    play.finished(index, checkpoint=f"checkpoint_{play.trial(index).next_checkpoint:06d}")
        play._take(play.controller.close(play.time))
        return play


BANDS = {
    "max_t": st.integers(2, 100),
    "eta": st.integers(2, 5),
    "samples": st.integers(1, 40),
    "workers": st.integers(1, 32),
    "seed": st.integers(0, 2**32),
}


def check_rounds(play: Play, eta: int, fail_rate: float) -> None:
    """15: in every round the best of those there go on, as many as may."""
    rounds: defaultdict[tuple[Any, ...], list[tuple[int, bool]]] = defaultdict(list)
    for each in play.recorded(ev.DecisionMade):
        reason = each.decision.reason
        if reason["rule"] == "rung":
            key = tuple(reason[name] for name in ("bracket", "rung", "entries", "places"))
            rounds[key].append((reason["rank"], each.decision.verdict is Verdict.RESUME))
    for (_, _, entries, most), ranks in rounds.items():
        goes_on = [goes for _, goes in sorted(ranks)]
        assert most == max(1, entries // eta)
        assert goes_on == sorted(goes_on, reverse=True), "best first"
        assert sum(goes_on) <= most
        assert len(goes_on) <= entries, "those that failed count, but nothing is decided on them"
        assert fail_rate or (sum(goes_on), len(goes_on)) == (most, entries)


@settings(max_examples=examples(150), deadline=None)
@given(**BANDS, fail_rate=st.sampled_from([0, 0.01, 0.1]))
@example(max_t=100, eta=2, samples=40, workers=1, seed=0, fail_rate=0.0)
@example(max_t=81, eta=3, samples=40, workers=32, seed=0, fail_rate=0.01)
def test_16_nothing_is_left_paused_or_pending(max_t, eta, samples, workers, seed, fail_rate):
    """Row 1.15."""
    cls = HyperBandScheduler if seed % 2 else HyperBandForBOHB
    scheduler = cls(metric="m", mode="max", max_t=max_t, reduction_factor=eta)
    experiment = Random(seed, fail_rate, num_samples=samples, cpus=workers, scheduler=scheduler)
    play = experiment.run()
    assert len(play.controller.trials) == samples
    assert set(play.statuses()) <= {"TERMINATED", "ERROR"}
    # The rounds have let all go by themselves: no trial had to be ended because nothing else was left.
    assert "not promoted" not in {trial.reason for trial in play.controller.trials}
    check_rounds(play, eta, fail_rate)
    # 17: every level that a trial has passed was told to the searcher once, whatever was decided there.
    levels, plans = shared_levels(max_t, eta), bracket_plans(max_t, eta)
    furthest = Counter()
    for added in play.recorded(ev.ResultAdded):
        furthest[added.trial.trial_id] = max(furthest[added.trial.trial_id], added.iteration)
    expected = Counter(
        (trial_id, levels.index(level), level)
        for trial_id, time in furthest.items()
        for level in plans[scheduler.bracket_of(trial_id) % len(plans)].levels
        if level <= time
    )
    assert Counter(experiment.searcher.told) == expected


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_limited_searcher_still_fills_the_brackets(most):
    """Paused trials don't count, so the rounds are those of an unlimited one."""
    limited = ConcurrencyLimiter(BasicVariantGenerator(), max_concurrent=most)
    scheduler = HyperBandForBOHB(metric="m", mode="max", max_t=9)
    play = Random(0, 0.0, limited, num_samples=17, cpus=8, scheduler=scheduler).run()
    ends = Counter(each.reason.partition(" of bracket")[0] for each in play.controller.trials)
    stopped = f"stopped by {scheduler.label}: "
    assert ends == {f"{stopped}rung 1": 6, f"{stopped}rung 3": 2 + 4, "reached max_t=9": 5}


class Stalling(BasicVariantGenerator):
    """Suggests nothing while `most` of its trials have not ended, paused or not."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.open = most, set()

    def suggest(self, trial_id):
        if len(self.open) >= self.most:
            return None
        self.open.add(trial_id)
        return super().suggest(trial_id)

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.open.discard(trial_id)


@settings(max_examples=examples(50), deadline=None)
@given(**BANDS, most=st.integers(1, 8), batch=st.booleans())
def test_16_a_searcher_that_waits_for_paused_trials_stops_nothing(
    max_t, eta, samples, workers, seed, most, batch
):
    """A bracket does not wait for trials that come only once its own have ended."""
    searcher = ConcurrencyLimiter(BasicVariantGenerator(), most, batch=True) if batch else Stalling(most)
    scheduler = HyperBandForBOHB(metric="m", mode="max", max_t=max_t, reduction_factor=eta)
    play = Random(seed, 0.01, searcher, num_samples=samples, cpus=workers, scheduler=scheduler).run()
    assert len(play.controller.trials) == samples
    assert set(play.statuses()) <= {"TERMINATED", "ERROR"}
    assert "not promoted" not in {trial.reason for trial in play.controller.trials}
