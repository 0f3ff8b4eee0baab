"""As one writes it for Ray 2.60: everything from `tune`."""

import os

from ray import tune
from ray.tune import Callback, CheckpointConfig, RunConfig, TuneConfig
from ray.tune.schedulers import ASHAScheduler


class Told(Callback):
    def __init__(self):
        self.results = 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results += 1


def objective(config, offset):
    for epoch in range(1, 10):
        tune.report({"accuracy": config["lr"] * epoch + offset, "where": os.getcwd()})


if __name__ == "__main__":
    told = Told()
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(objective, offset=1), {"cpu": 1}),
        param_space={"lr": tune.loguniform(1e-4, 1e-1), "layers": tune.randint(1, 4)},
        tune_config=TuneConfig(
            metric="accuracy", mode="max", num_samples=4, scheduler=ASHAScheduler(max_t=9, grace_period=3)
        ),
        run_config=RunConfig(
            name="sixty",
            stop={"accuracy": 100},
            callbacks=[told],
            checkpoint_config=CheckpointConfig(num_to_keep=1),
            verbose=0,
        ),
    )
    grid = tuner.fit()
    best = grid.get_best_result()
    assert best.metrics["accuracy"] == max(result.metrics["accuracy"] for result in grid)
    assert all(result.metrics["where"] == result.path for result in grid)
    assert told.results == sum(len(result.metrics_dataframe) for result in grid)
    print("best:", best.config)
