"""Search hyperparameters of a trainer, in the form of Ray Train's guide on hyperparameter optimization."""

import os
import tempfile

import ray
import torch
from ray import train, tune
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from ray.tune import Tuner


def train_func(config):
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    features = torch.ones(8, 4)
    for _ in range(config["epochs"]):
        loss = ((model(features) - 1) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # In Ray's second version a report without a checkpoint leaves no metrics in the result.
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), os.path.join(folder, f"{train.get_context().get_world_rank()}.pt"))
            train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(folder))


def drive(config):
    result = TorchTrainer(
        train_func,
        train_loop_config=config["train_loop_config"],
        scaling_config=ScalingConfig(num_workers=config["num_workers"]),
        run_config=RunConfig(
            name=f"train-{tune.get_context().get_trial_id()}", storage_path=os.path.abspath("results")
        ),
    ).fit()
    tune.report({"loss": result.metrics["loss"]})


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False)
    tuner = Tuner(
        drive,
        param_space={
            "num_workers": 2,
            "train_loop_config": {"epochs": 3, "lr": tune.grid_search([0.01, 0.1])},
        },
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=os.path.abspath("results")),
    )
    grid = tuner.fit()
    for result in sorted(grid, key=lambda each: repr(each.config)):
        print("LINE", result.config["train_loop_config"]["lr"], result.metrics["loss"])
    print("LINE", grid.get_best_result().config["train_loop_config"]["lr"])
