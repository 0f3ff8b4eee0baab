"""Trials of `benchmarks.anatomy`; importing this module in a template makes its workers record moments."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.moments import NOTED, Watched, watch
from trainkit.runtime.local.worker import template
from trainkit.tune.trial.actor import TrialActor

MOMENTS = ("forked", "made", "told")

watch(Watched(template, "run_worker", "forked"))
watch(Watched(TrialActor, "__init__", "made"))
watch(Watched(TrialActor, "setup", "told"))


def trivial(config: dict[str, Any]) -> dict[str, float]:
    """Report the moments at which the trial's process began and the function runs."""
    return {
        "loss": config["x"],
        **{moment: NOTED[moment][-1] for moment in MOMENTS},
        "runs": time.perf_counter_ns(),
    }
