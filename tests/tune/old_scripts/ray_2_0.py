"""As one wrote it for Ray 2.0: `ray.air`, `session.report`, checkpoints of dictionaries."""

import ray
from ray import air, tune
from ray.air import Checkpoint, session
from ray.air.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.tune import Tuner
from ray.tune.schedulers import ASHAScheduler
from ray.tune.tune_config import TuneConfig


def train(config):
    restored = session.get_checkpoint()
    step = restored.to_dict()["step"] if restored else 0
    while step < 8:
        step += 1
        session.report(
            {"score": config["a"] ** 2 + config["nested"]["b"] - 1 / step, "name": session.get_trial_name()},
            checkpoint=Checkpoint.from_dict({"step": step}),
        )
        if step == 4 and restored is None and config["a"] == 0.5:
            raise RuntimeError("in the middle")


class Squares(tune.Trainable):
    def setup(self, config):
        self.x = 0

    def step(self):
        self.x += 1
        return {"score": self.x**2}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]


if __name__ == "__main__":
    ray.init(num_cpus=4)
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"a": tune.grid_search([0.1, 0.5]), "nested": {"b": tune.choice([1, 2, 3])}},
        tune_config=tune.TuneConfig(metric="score", mode="min", scheduler=ASHAScheduler(grace_period=8)),
        run_config=air.RunConfig(
            failure_config=air.FailureConfig(max_failures=1),
            checkpoint_config=air.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score"),
            verbose=0,
        ),
    )
    results = tuner.fit()
    best = results.get_best_result()
    assert best.metrics["score"] == min(result.metrics["score"] for result in results)
    assert results.num_errors == 0
    assert best.checkpoint.to_dict()["step"] == 8
    assert len(results.get_dataframe()) == 2

    squares = Tuner(
        tune.with_resources(Squares, ScalingConfig(trainer_resources={"CPU": 0}, num_workers=1)),
        tune_config=TuneConfig(num_samples=2, max_concurrent_trials=1),
        run_config=RunConfig(
            stop={"training_iteration": 3},
            failure_config=FailureConfig(fail_fast=True),
            checkpoint_config=CheckpointConfig(checkpoint_frequency=1, checkpoint_at_end=True),
            verbose=0,
        ),
    ).fit()
    assert squares[0].metrics["score"] == 9
    print("best:", best.config)
