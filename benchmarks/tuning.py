"""What the tuner itself costs: `python -m benchmarks.tuning`.

Prints a small table and one line of JSON. Trials do nothing, so all the time is the tuner's.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import tempfile
import time

import trainkit
from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.seeds import scheduler_generator

TRIALS = 100
REPORTS = 1_000
ROUNDS = 3


def trivial(config: dict[str, float]) -> dict[str, float]:
    """Report once, by returning."""
    return {"loss": config["x"] ** 2}


def chatty(config: dict[str, float]) -> None:
    """Report as fast as possible."""
    for step in range(REPORTS):
        tune.report({"loss": config["x"] / (step + 1)})


def seconds(trainable: object, num_samples: int) -> float:
    """Wall time of one `fit`, with the default loggers and the lines of a console without a terminal."""
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            trainable,
            param_space={"x": tune.uniform(-1, 1)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=num_samples, seed=0),
            run_config=tune.RunConfig(storage_path=folder, name="benchmark", verbose=0),
        )
        start = time.perf_counter()
        results = tuner.fit()
        took = time.perf_counter() - start
        assert results.num_terminated == num_samples, results
        return took


def decision_us() -> float:
    """Microseconds for one decision of ASHA at a rung that holds 10,000 entries."""
    scheduler = ASHAScheduler(metric="loss", mode="min")
    scheduler.set_search_properties("loss", "min", scheduler_generator(0))
    losses = random.Random(0)
    for number in range(11_000):
        if number == 10_000:
            start = time.perf_counter()
        scheduler.on_trial_add(str(number))
        scheduler.on_result(str(number), {"training_iteration": 1, "loss": losses.random()})
    return (time.perf_counter() - start) / 1_000 * 1e6


def main() -> None:
    """Measure and print."""
    trainkit.init(num_cpus=2)
    seconds(trivial, 2)  # NumPy's import and the first fork are the session's, not a trial's
    trials_s = [seconds(trivial, TRIALS) for _ in range(ROUNDS)]
    reports_s = [seconds(chatty, 2) for _ in range(ROUNDS)]
    trainkit.shutdown()
    trial_s = statistics.median(trials_s)
    rate = 2 * REPORTS / statistics.median(reports_s)
    print(f"{'work':<58}{'measured':>12}{'aim':>12}{'Ray Tune 2.60':>16}")
    print(
        f"{f'{TRIALS} trivial trials, a fresh process each':<58}{trial_s:>10.2f} s{'1.5 s':>12}{'85 s':>16}"
    )
    print(f"{'results a second from two trials, all loggers on':<58}{rate:>12,.0f}{'-':>12}{'420':>16}")
    decision = decision_us()
    print(
        f"{'one decision of ASHA at a rung of 10,000 entries':<58}{decision:>9.0f} us{'100 us':>12}{'-':>16}"
    )
    print(
        json.dumps(
            {
                "benchmark": "tuning",
                "cores": os.cpu_count(),
                "trivial_trials_s": [round(value, 3) for value in trials_s],
                "times_faster_than_ray": round(85 / trial_s, 1),
                "results_per_s": round(rate),
                "asha_decision_us": round(decision, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
