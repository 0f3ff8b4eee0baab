"""Train a classifier on several workers, in the form of Ray Train's guide for PyTorch."""

import os
import tempfile

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(96, 8, generator=generator)
    return TensorDataset(features, (features.sum(dim=1) > 0).long())


def train_func(config):
    torch.manual_seed(0)
    loader = DataLoader(make_data(), batch_size=config["batch_size"], shuffle=True)
    loader = ray.train.torch.prepare_data_loader(loader)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    criterion = nn.CrossEntropyLoss()
    for epoch in range(config["epochs"]):
        if ray.train.get_context().get_world_size() > 1:
            loader.sampler.set_epoch(epoch)
        for features, labels in loader:
            loss = criterion(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"loss": loss.item(), "epoch": epoch}
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))
        if ray.train.get_context().get_world_rank() == 0:
            with open(config["lines"], "a") as file:
                print("LINE", epoch, metrics["loss"].hex(), file=file)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    trainer = TorchTrainer(
        train_func,
        train_loop_config={"lr": 1e-2, "batch_size": 8, "epochs": 3, "lines": os.path.abspath("lines")},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(
            storage_path=os.path.abspath("results"),
            name="guide",
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    result = trainer.fit()
    with open("lines") as file:
        print(file.read(), end="")
    print("LINE", result.metrics["epoch"], result.metrics["loss"].hex())
    with result.checkpoint.as_directory() as folder:
        held = torch.load(os.path.join(folder, "model.pt"))
    print("LINE", [value.double().sum().item().hex() for value in held.values()])
    print("LINE", len(result.best_checkpoints))
