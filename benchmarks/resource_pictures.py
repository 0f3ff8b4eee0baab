"""Picture of a simulated run in which trials get the CPUs of ended trials, beside a run without this.

It is a part of `benchmarks.search_pictures`, and shows the reservations of trials over time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainkit import tune
from trainkit.plugins.compat.resource_changing import DistributeResources
from trainkit.plugins.plots import style
from trainkit.tune import schedulers as sch
from trainkit.tune.display import count_words

CPUS, TRIALS, LAST = 16, 27, 81
SECONDS = 10.0
"""Seconds of an iteration with one CPU; n CPUs are n times as fast."""

Bands = tuple[np.ndarray, dict[str, np.ndarray]]
"""Times of changes, and the CPUs of each trial from each of these times on."""


def simulated(curve: Callable[..., dict[str, Any]], space: Mapping[str, Any], *, changing: bool) -> Any:
    """Run ASHA, by itself or inside a `ResourceChangingScheduler`.

    Args:
        curve: objective without durations.
        space: search space of the objective; no two trials have the same "lr".
        changing: True: trials get the CPUs that ended trials leave.
    """
    share = DistributeResources()
    has: dict[float, float] = {}

    def allocate(*seen: Any) -> Any:
        given = share(*seen)
        if given is not None:
            has[seen[1].config["lr"]] = given.required_resources["CPU"]
        return given

    def faster(
        config: Mapping[str, Any], training_iteration: int, rng: np.random.Generator
    ) -> dict[str, Any]:
        seconds = SECONDS / has.get(config["lr"], 1.0)
        return {**curve(config, training_iteration, rng), "time_this_iter_s": seconds * rng.uniform(0.8, 1.2)}

    asha = sch.ASHAScheduler(max_t=LAST, reduction_factor=3)
    return tune.simulate(
        faster,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=TRIALS,
            search_alg="random",
            scheduler=sch.ResourceChangingScheduler(asha, allocate) if changing else asha,
        ),
        workers=CPUS,
        seed=1,
    )


def bands(results: tune.ResultGrid) -> Bands:
    """Return the CPUs of each trial over time, from its attempts and the decisions between them."""
    spans = results.timeline
    changes = [each for each in results.decisions() if each.get("rule") == "resources" and "after" in each]
    times = np.unique([time for span in spans for time in (span.started, span.ended)])
    heights = {span.trial_id: np.zeros(len(times)) for span in spans}
    for span in spans:
        before = [
            each for each in changes if each["trial_id"] == span.trial_id and each["attempt"] < span.attempt
        ]
        cpus = float(before[-1]["after"].split()[0]) if before else 1.0
        heights[span.trial_id][(times >= span.started) & (times < span.ended)] = cpus
    return times, heights


def draw(curve: Callable[..., dict[str, Any]], space: Mapping[str, Any], path: Path, dpi: int) -> None:
    """Draw both runs over the same seconds, with the longest trials in colour."""
    _, axes = style.figure_of(None, (12.0, 3.8))
    figure = axes.get_figure()
    axes.remove()
    runs = [simulated(curve, space, changing=changing) for changing in (False, True)]
    last = max(run.ended_s for run in runs)
    for ax, run, title in zip(
        figure.subplots(1, 2, sharey=True), runs, ("ASHA alone", "with DistributeResources"), strict=True
    ):
        times, heights = bands(run)
        # The longest trials are at the bottom, so that the CPUs of ended trials appear above them.
        order = sorted(heights, key=lambda trial_id: -np.flatnonzero(heights[trial_id])[-1])
        colours = [*style.BEST, *[style.STOPPED] * len(order)][: len(order)]
        ax.stackplot(
            times,
            [heights[trial_id] for trial_id in order],
            step="post",
            colors=colours,
            edgecolor="white",
            linewidth=0.4,
        )
        ends = f"{count_words(len(order), 'trial')}, {run.ended_s:.0f} s"
        style.dress(ax, title=f"{title}: {ends}", x="seconds", y="CPUs")
        ax.set_xlim(0, last)
        ax.set_ylim(0, CPUS)
    figure.savefig(path, dpi=dpi)
