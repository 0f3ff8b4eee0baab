"""As one wrote it for Ray 1.13: `tune.run`, keyword reports, checkpoint_dir, an analysis."""

import json
import os

import ray
from ray import tune
from ray.tune.logger import LoggerCallback
from ray.tune.schedulers import AsyncHyperBandScheduler
from ray.tune.suggest.basic_variant import BasicVariantGenerator

ray.init(num_cpus=2, ignore_reinit_error=True)


class Shouting(LoggerCallback):
    def log_trial_end(self, trial, failed=False):
        print("ended", trial.trial_id, failed)


def loss_of(step, width, height):
    return 1 / (0.1 + width * step / 100) + height * 0.1


def train(config, checkpoint_dir=None):
    start = 0
    if checkpoint_dir:
        with open(os.path.join(checkpoint_dir, "checkpoint")) as file:
            start = json.load(file)["step"]
    for step in range(start, 8):
        with tune.checkpoint_dir(step=step) as folder, open(os.path.join(folder, "checkpoint"), "w") as file:
            json.dump({"step": step + 1}, file)
        tune.report(iterations=step, mean_loss=loss_of(step, config["width"], config["height"]))


if __name__ == "__main__":
    analysis = tune.run(
        train,
        name="asynchyperband_test",
        metric="mean_loss",
        mode="min",
        search_alg=BasicVariantGenerator(),
        scheduler=AsyncHyperBandScheduler(grace_period=5, max_t=100),
        stop={"training_iteration": 6},
        num_samples=3,
        verbose=1,
        resources_per_trial={"cpu": 1, "gpu": 0},
        config={
            "steps": 100,
            "width": tune.uniform(0, 20),
            "height": tune.uniform(-100, 100),
            "power": tune.sample_from(lambda spec: spec.config.width**2),
        },
        callbacks=[Shouting()],
        keep_checkpoints_num=1,
        queue_trials=True,
    )
    best = analysis.best_config
    assert best == analysis.get_best_config(metric="mean_loss", mode="min")
    assert best["power"] == best["width"] ** 2
    assert len(analysis.results_df) == 3
    frame = analysis.trial_dataframes[analysis.best_logdir]
    assert frame["mean_loss"].iloc[-1] == analysis.best_result["mean_loss"]
    trial = analysis.get_best_trial("mean_loss", "min", "last")
    assert trial.config == best
    assert trial.last_result["mean_loss"] == analysis.best_result["mean_loss"]
    print("best:", best)
