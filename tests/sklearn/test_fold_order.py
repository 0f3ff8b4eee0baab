"""The order in which folds are evaluated where workers share copies of them."""

from __future__ import annotations

import heapq
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from trainkit.sklearn.experiment import FoldScheduler, fold_priority
from trainkit.sklearn.outcomes import report_of
from trainkit.tune.schedulers.base import Verdict


class Fit(NamedTuple):
    begin: float
    end: float
    candidate: int
    fold: int


def report(folds: int) -> dict[str, Any]:
    outcome = {"test_scores": 0.5, "fit_time": 0.1, "score_time": 0.1, "n_test_samples": 1, "fit_error": None}
    return report_of([outcome] * folds)


def evaluated(candidates: int, folds: int, workers: int, block: int, seconds: list[int]) -> list[Fit]:
    """The fits that so many workers make one after another, if each takes the next of `seconds`."""
    order = FoldScheduler(block)
    paused: list[str] = []
    running: list[tuple[float, int]] = []
    fits: list[Fit] = []
    done = [0] * candidates
    now, suggested = 0.0, 0
    while True:
        while len(running) < workers and (paused or suggested < candidates):
            chosen = order.choose_trial_to_run((), sorted(paused), new=suggested < candidates)
            if chosen is None:
                chosen, suggested = f"{suggested:04}", suggested + 1
                order.on_trial_add(chosen)
            else:
                paused.remove(chosen)
            candidate = int(chosen)
            end = now + seconds[len(fits) % len(seconds)]
            fits.append(Fit(now, end, candidate, done[candidate]))
            heapq.heappush(running, (end, candidate))
        if not running:
            return fits
        now, candidate = heapq.heappop(running)
        done[candidate] += 1
        decision = order.on_result(
            f"{candidate:04}", report(done[candidate]) | {"done": done[candidate] == folds}
        )
        if decision.verdict is Verdict.PAUSE:
            paused.append(f"{candidate:04}")


CASES: dict[str, Any] = {
    "candidates": st.integers(1, 12),
    "folds": st.integers(1, 5),
    "workers": st.integers(1, 4),
    "block": st.integers(1, 8),
}


@given(**CASES, seconds=st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_every_fold_of_every_candidate_once_and_none_past_one_that_waits(
    candidates: int, folds: int, workers: int, block: int, seconds: list[int]
) -> None:
    fits = evaluated(candidates, folds, workers, block, seconds)
    assert sorted((fit.candidate, fit.fold) for fit in fits) == [
        (candidate, fold) for candidate in range(candidates) for fold in range(folds)
    ]
    for number, fit in enumerate(fits):
        mine = fold_priority(fit.candidate, fit.fold, block)[:2]
        for later in fits[number + 1 :]:
            if (
                fold_priority(later.candidate, later.fold, block)[:2] < mine
            ):  # it was still at the fold before
                before = next(f for f in fits if f[2:] == (later.candidate, later.fold - 1))
                assert before.end >= fit.begin  # of those that end at once, one is heard first


@given(**CASES)
def test_fits_that_take_alike_are_at_two_folds_at_once_at_most(
    candidates: int, folds: int, workers: int, block: int
) -> None:
    fits = evaluated(candidates, folds, workers, max(block, workers), [1])
    for moment in {fit.begin for fit in fits}:
        at_once = {
            fold_priority(fit.candidate, fit.fold, max(block, workers))[:2]
            for fit in fits
            if fit.begin <= moment < fit.end
        }
        assert len(at_once) <= 2
