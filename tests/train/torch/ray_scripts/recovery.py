"""Go on from a checkpoint after a worker has died, in the form of Ray Train's guide on fault tolerance."""

import json
import os
import signal
import tempfile

import ray
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_func(config):
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder, open(os.path.join(folder, "state.json")) as file:
            start = json.load(file)["epoch"] + 1
    rank = train.get_context().get_world_rank()
    for epoch in range(start, 5):
        # A report is made once the one before it is heard of: by now two checkpoints are.
        if epoch == 3 and start == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if rank == 0:
                with open(os.path.join(folder, "state.json"), "w") as file:
                    json.dump({"epoch": epoch}, file)
                checkpoint = Checkpoint.from_directory(folder)
            train.report({"epoch": epoch, "start": start}, checkpoint=checkpoint)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    result = TorchTrainer(
        train_func,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=os.path.abspath("results"),
            name="recovery",
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    # Ray may not have heard of the last report when the worker died.
    print("LINE", result.metrics["epoch"], result.metrics["start"] > 0)
    with open(os.path.join(result.checkpoint.path, "state.json")) as file:
        print("LINE", json.load(file))

    def fails():
        raise ValueError("this loop is cursed")

    try:
        TorchTrainer(
            fails,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=os.path.abspath("results")),
        ).fit()
    except train.TrainingFailedError as error:
        print("LINE", "this loop is cursed" in str(error))
