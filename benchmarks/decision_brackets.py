"""Ray's HyperBand compared with ours: the trials that continue in each round of a bracket.

Ray's bracket class receives the reports of the trials of one of our brackets. A trial that ours stops leaves
Ray's bracket too. So both judge the same trials in each round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

import numpy as np

from benchmarks import ray_schedulers
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import HyperBandScheduler, Verdict

NAME = "Ray HyperBand"
KINDS = ("plain", "ties", "NaN")
ROUNDED_UP = "places are rounded up at each halving, and counted from those planned"
LATER = "of equal scores the later go on"
NAN_SORTED = "NaN goes through a plain sort, so the order is any"
INFINITE = "infinities are numbers as others"

MAX_T, ETA, TRIALS = 81, 3, 143


def drive(kind: str, seed: int) -> tuple[int, list[tuple[str | None, str]]]:
    """Run all brackets once; return the number of reports, and cause and line of each difference."""
    module = ray_schedulers.load("hyperband")
    rng = np.random.default_rng([seed, *kind.encode()])
    ours = HyperBandScheduler(metric="u", mode="max", max_t=MAX_T, reduction_factor=ETA)
    ours.set_search_properties("u", "max", scheduler_generator(seed))
    brackets: dict[int, list[str]] = {}
    for number in range(TRIALS):
        ours.on_trial_add(str(number))
        brackets.setdefault(ours.bracket_of(str(number)), []).append(str(number))
    ours.on_no_more_trials()
    reports, lines = 0, []
    for bracket, trials in brackets.items():
        level, alive = ETA**bracket, list(trials)  # the widest begins at 1
        ray = module._Bracket(
            "training_iteration", len(trials), level, MAX_T, ETA, len(brackets) - 1 - bracket
        )
        twins = {trial: ray_schedulers.Trial(trial) for trial in trials}
        for trial in trials:
            ray.add_trial(twins[trial])
        while level < MAX_T:
            scores = {trial: _value(kind, rng) for trial in alive}
            reports += len(alive)
            stopped = _round(ours, scores, level)
            for trial, score in scores.items():
                ray.update_trial_stats(twins[trial], {"training_iteration": level, "u": score})
            good, _ = ray.successive_halving("u", 1.0)
            theirs, own = {each.trial_id for each in good}, scores.keys() - stopped
            for trial in sorted(theirs ^ own, key=int):
                cause = cause_of(trial, scores, theirs, own)
                fate = "goes on, ours stops it" if trial in theirs else "stops, in ours it goes on"
                lines.append(
                    (
                        cause,
                        f"{NAME}, {kind} {seed}: bracket {bracket}, trial {trial} at {level} with "
                        f"{scores[trial]}: {fate}: {cause or 'UNEXPLAINED'}",
                    )
                )
            for trial in stopped:
                ray.cleanup_trial(twins[trial])
            alive, level = [trial for trial in alive if trial not in stopped], level * ETA
    return reports, lines


def _value(kind: str, rng: np.random.Generator) -> float:
    if kind == "ties":
        return float(rng.integers(6))
    if kind == "NaN" and rng.random() < 0.1:
        return float(rng.choice([math.nan, math.inf, -math.inf]))
    return float(rng.normal())


def _round(ours: HyperBandScheduler, scores: Mapping[str, float], level: int) -> set[str]:
    """Let all trials of a bracket report at a level; return the trials that ours stops there."""
    stopped = set()
    for trial, score in scores.items():
        decision = ours.on_result(trial, {"training_iteration": level, "u": score})
        if decision.verdict is Verdict.STOP:
            stopped.add(trial)
    stopped |= {trial for trial, decision in ours.verdicts() if decision.verdict is Verdict.STOP}
    for trial in scores:
        if trial in stopped:
            ours.on_trial_complete(trial)
        else:
            ours.on_trial_resume(trial)
    return stopped


def cause_of(trial: str, scores: Mapping[str, float], theirs: Set[str], ours: Set[str]) -> str | None:
    """Return why only one of the two continues `trial`; None if Ray's known rule does not explain it."""
    ranked = sorted((each for each in scores if math.isfinite(scores[each])), key=lambda each: -scores[each])
    places = min(len(ranked), max(1, len(scores) // ETA))
    if ours != set(ranked[:places]):
        return None  # the fault is ours
    if any(math.isnan(score) for score in scores.values()):
        return NAN_SORTED
    if any(math.isinf(score) for score in scores.values()):
        return INFINITE
    if any(scores[other] == scores[trial] for other in (theirs | ours) - {trial}):
        return LATER
    return ROUNDED_UP if trial in theirs and len(theirs) > len(ours) else None
