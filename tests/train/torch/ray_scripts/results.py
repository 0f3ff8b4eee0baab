"""What a run leaves: results, return value, errors, callbacks and collectives of Ray Train V2."""

import os
import tempfile

import ray
from ray import train
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.collective import barrier, broadcast_from_rank_zero
from ray.train.torch import TorchTrainer


class Noted(train.UserCallback):
    """Writes down what it is told; it is called in another process."""

    def __init__(self, path):
        self.path = path

    def note(self, *words):
        with open(self.path, "a") as file:
            print(*words, file=file)

    def after_report(self, run_context, metrics, checkpoint):
        name = run_context.get_run_config().name
        files = sorted(os.listdir(checkpoint.path)) if checkpoint else None
        self.note("report", name, run_context.train_loop_config, metrics, files)

    def after_exception(self, run_context, worker_exceptions):
        self.note("exception", {rank: repr(error) for rank, error in worker_exceptions.items()})


def train_func(config):
    rank = train.get_context().get_world_rank()
    shared = broadcast_from_rank_zero({"by": rank})
    for step in range(2):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, f"rank{rank}"), "w") as file:
                file.write(str(step))
            # The first two are names that all reports of trainkit have.
            metrics = {"pid": 7, "training_iteration": 70 + step, "step": step, "rank": rank}
            train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
    barrier()
    kept = [each.metrics for each in train.get_all_reported_checkpoints()]
    barrier()
    if config.get("fails") and rank == 1:
        raise LookupError("this loop is cursed")
    if config.get("fails"):
        barrier()
    return {"rank": rank, "shared": shared, "kept": kept}


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    folder = os.path.abspath("results")

    def fit(name, **config):
        return TorchTrainer(
            train_func,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder, name=name, callbacks=[Noted(os.path.abspath(name))]),
        ).fit()

    def told(name):
        with open(name) as file:
            for line in file:
                print("LINE", line, end="")

    result = fit("good")
    print("LINE", result.metrics, result.return_value)
    print("LINE", [metrics for _, metrics in result.best_checkpoints])
    print("LINE", result.metrics_dataframe.to_dict("records"))
    print("LINE", sorted(os.listdir(result.get_best_checkpoint("step", "max").path)))
    try:
        result.get_best_checkpoint("stop", "max")
    except RuntimeError as error:
        print("LINE", "stop" in str(error), "step" in str(error))
    told("good")
    try:
        fit("bad", fails=True)
    except train.WorkerGroupError as error:
        print("LINE", isinstance(error, train.TrainingFailedError), error.worker_failures)
        print("LINE", type(error.worker_failures[1]), "in train_func" in str(error))
    told("bad")
    print("LINE", ScalingConfig().total_resources, ScalingConfig(num_workers=3).total_resources)
