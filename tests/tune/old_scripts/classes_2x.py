"""A class with data and branches, as a notebook of 2023 has it: `ray.tune`, `ray.air` by their full names."""

import numpy as np
import ray
import ray.air
import ray.tune


class Trainable(ray.tune.Trainable):
    def setup(self, config, data):
        self.data = data
        self.weight = 0.0

    def step(self):
        gradient = 2 * (self.weight - self.data.mean())
        self.weight -= self.config["model_args"]["lr"] * gradient
        return {"rmse": abs(self.weight - self.data.mean())}

    def save_checkpoint(self, checkpoint_dir):
        np.save(f"{checkpoint_dir}/weight.npy", self.weight)

    def load_checkpoint(self, checkpoint_dir):
        self.weight = float(np.load(f"{checkpoint_dir}/weight.npy"))


if __name__ == "__main__":
    tuner = ray.tune.Tuner(
        trainable=ray.tune.with_resources(
            ray.tune.with_parameters(Trainable, data=np.arange(10.0)), resources={"cpu": 2}
        ),
        param_space={"model": "fsr_model.LSTM", "model_args": {"lr": ray.tune.grid_search([0.01, 0.3])}},
        tune_config=ray.tune.TuneConfig(metric="rmse", mode="min"),
        run_config=ray.air.RunConfig(
            stop={"training_iteration": 5},
            checkpoint_config=ray.air.CheckpointConfig(checkpoint_at_end=True, num_to_keep=1),
            verbose=0,
        ),
    )
    best = tuner.fit().get_best_result()
    assert best.config["model_args"] == {"lr": 0.3}
    assert best.checkpoint is not None
    print("best:", best.config)
