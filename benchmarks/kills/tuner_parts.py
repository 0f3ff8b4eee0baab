"""Programs that tune: a Tuner with each scheduler, whose trials acknowledge each report that has returned."""

from __future__ import annotations

import hashlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.kills.job import OWN, Job
from trainkit import tune
from trainkit.plugins.searchers.bohb import TuneBOHB
from trainkit.tune.schedulers import (
    PB2,
    ASHAScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

STEPS = 6
TRIALS = 8
STEP_S = 0.02


def settings(name: str) -> dict[str, Any]:
    """Return the arguments of TuneConfig for a scheduler, with as many trials at once as repeat exactly."""
    alone = {"num_samples": TRIALS, "max_concurrent_trials": 1}
    by_step = {"time_attr": "training_iteration"}
    schedulers: dict[str, dict[str, Any]] = {
        # With concurrent trials, only random search repeats exactly.
        "fifo": {"num_samples": TRIALS, "max_concurrent_trials": 2, "search_alg": "random"},
        "eight": {"num_samples": TRIALS, "max_concurrent_trials": TRIALS, "search_alg": "random"},
        "asha": {**alone, "scheduler": ASHAScheduler(**by_step, max_t=STEPS, reduction_factor=2)},
        "hyperband": {**alone, "scheduler": HyperBandScheduler(**by_step, max_t=STEPS, reduction_factor=2)},
        "bohb": {
            **alone,
            "scheduler": HyperBandForBOHB(**by_step, max_t=STEPS, reduction_factor=2),
            "search_alg": TuneBOHB(),
        },
        "median": {
            **alone,
            "scheduler": MedianStoppingRule(**by_step, grace_period=1, min_samples_required=2),
        },
        "pbt": {
            "num_samples": 4,
            "max_concurrent_trials": 2,
            "scheduler": PopulationBasedTraining(
                **by_step, perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}
            ),
        },
        "pb2": {
            "num_samples": 4,
            "max_concurrent_trials": 2,
            "scheduler": PB2(**by_step, perturbation_interval=2, hyperparam_bounds={"x": [0, 1]}),
        },
    }
    return schedulers[name]


def advance(x: float, step: int, state: str) -> str:
    """Return a state that contains the whole history of a trial."""
    return hashlib.sha256(f"{x!r} {step} {state}".encode()).hexdigest()[:12]


def objective(config: dict[str, Any], job: Job) -> None:
    """Report each step with a checkpoint, and acknowledge each report that has returned."""
    job.enter("setup")
    step, state = 0, ""
    if checkpoint := tune.get_checkpoint():
        step, state = json.loads(Path(checkpoint.path, OWN).read_text())
    context = tune.get_context()
    folder = Path(context.get_trial_dir(), "state")
    folder.mkdir(exist_ok=True)
    while step < STEPS:
        job.enter("step")
        time.sleep(STEP_S)
        step += 1
        state = advance(config["x"], step, state)
        (folder / OWN).write_text(json.dumps([step, state]))
        loss = (config["x"] - 0.3) ** 2 + 1 / step
        job.enter("save")
        tune.report({"loss": loss, "state": state}, checkpoint=tune.Checkpoint(folder))
        job.ack("report", context.get_trial_id(), state)


def tuner(job: Job, name: str) -> None:
    """Run an experiment, or resume it, with the scheduler of this name."""
    trainable: Any = partial(objective, job=job)
    if name == "eight":
        trainable = tune.with_resources(trainable, {"cpu": 1 / TRIALS})
    folders = [path for path in sorted(job.kept.glob("e*")) if tune.Tuner.can_restore(path)]
    if folders:
        made = tune.Tuner.restore(folders[0], trainable, resume_errored=True)
    else:
        made = tune.Tuner(
            trainable,
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", seed=3, **settings(name)),
            run_config=tune.RunConfig(
                name="e",
                storage_path=job.kept,
                verbose=0,
                stop={"training_iteration": STEPS},
                failure_config=tune.FailureConfig(max_failures=-1),
                checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            ),
        )
    results = made.fit()
    # An interrupt between two trials leaves none unfinished.
    if len(results) < settings(name)["num_samples"] or results.num_unfinished or results.num_errors:
        return
    job.finish(
        {
            result.trial_id: [
                result.config["x"],
                [[row["training_iteration"], row["loss"], row["state"]] for row in result.history],
            ]
            for result in results
        }
    )
