"""A classifier of digits as a blog post of 2022 tunes it: tune.run, ./model.pth, its best folder."""

import os

import numpy as np
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from sklearn.datasets import load_digits
from torch import nn, optim

images, labels = load_digits(return_X_y=True)
images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)


def make_model():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train_digits(config):
    model = make_model()
    optimizer = optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    for i in range(6):
        for start in range(0, 1500, 100):
            optimizer.zero_grad()
            batch = slice(start, start + 100)
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            acc = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
        if i % 5 == 0:
            torch.save(model.state_dict(), "./model.pth")
        tune.report(mean_accuracy=acc)


if __name__ == "__main__":
    search_space = {
        "lr": tune.sample_from(lambda spec: 10 ** (-3 * np.random.rand())),
        "momentum": tune.uniform(0.1, 0.9),
    }
    analysis = tune.run(train_digits, config=search_space, verbose=0)
    dfs = analysis.trial_dataframes
    assert [len(frame.mean_accuracy) for frame in dfs.values()] == [6]
    logdir = analysis.get_best_logdir("mean_accuracy", mode="max")
    make_model().load_state_dict(torch.load(os.path.join(logdir, "model.pth")))

    analysis = tune.run(
        train_digits,
        num_samples=3,
        scheduler=ASHAScheduler(metric="mean_accuracy", mode="max"),
        config=search_space,
        verbose=0,
    )
    assert len(analysis.results_df) == 3
    best = analysis.get_best_config(metric="mean_accuracy", mode="max")
    assert set(best) == {"lr", "momentum"}
    print("best:", best)
