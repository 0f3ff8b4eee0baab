"""A tutorial of 2021: functools.partial, sample_from that ignores its argument, resources_per_trial."""

from functools import partial

import numpy as np
from ray import tune
from ray.tune.schedulers import ASHAScheduler


def train_cifar(config, checkpoint_dir=None, data_dir=None):
    for epoch in range(4):
        tune.report(loss=1 / (config["l1"] * (epoch + 1)), accuracy=epoch / 4, data=data_dir)


if __name__ == "__main__":
    config = {
        "l1": tune.sample_from(lambda _: 2 ** np.random.randint(2, 9)),
        "lr": tune.loguniform(1e-4, 1e-1),
        "batch_size": tune.choice([2, 4, 8, 16]),
    }
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=10, grace_period=1, reduction_factor=2)
    result = tune.run(
        partial(train_cifar, data_dir="./data"),
        resources_per_trial={"cpu": 2, "gpu": 0},
        config=config,
        num_samples=4,
        scheduler=scheduler,
        verbose=0,
    )
    best_trial = result.get_best_trial("loss", "min", "last")
    assert best_trial.last_result["data"] == "./data"
    assert best_trial.config["l1"] in [2**power for power in range(2, 9)]
    print("best:", best_trial.config)
