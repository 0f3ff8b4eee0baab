"""The trials of `benchmarks.anatomy`; a template that imports this notes what its workers come by."""

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
    """Report when its process began, and when it runs."""
    return {
        "loss": config["x"],
        **{moment: NOTED[moment][-1] for moment in MOMENTS},
        "runs": time.perf_counter_ns(),
    }
