"""As one wrote it for Ray 2.9: `train.report`, `train.RunConfig`, checkpoints of directories."""

import json
import os
import tempfile

from ray import train, tune
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig


def train_fn(config):
    step = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as file:
            step = json.load(file)["step"]
    while step < 5:
        step += 1
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "state.json"), "w") as file:
                json.dump({"step": step}, file)
            metrics = {"loss": (config["x"] - 3) ** 2 / step, "id": train.get_context().get_trial_id()}
            train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


if __name__ == "__main__":
    tuner = tune.Tuner(
        train_fn,
        param_space={"x": tune.grid_search([1, 3, 5])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=1),
        run_config=RunConfig(
            name="nine",
            stop={"training_iteration": 4},
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            verbose=0,
        ),
    )
    grid = tuner.fit()
    best = grid.get_best_result()
    assert best.config["x"] == 3
    assert best.metrics["training_iteration"] == 4
    assert len(best.best_checkpoints) == 2
    restored = tune.Tuner.restore(grid.experiment_path, trainable=train_fn).get_results()
    assert restored.get_best_result().config == best.config
    print("best:", best.config)
