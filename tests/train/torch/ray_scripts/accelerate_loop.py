"""Train by Accelerate on several workers, in the form of Ray Train's guide for Hugging Face Accelerate."""

import os
import tempfile

import ray
import ray.train
import torch
from accelerate import Accelerator
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_func(config):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    features = torch.randn(96, 8)
    loader = DataLoader(TensorDataset(features, (features.sum(dim=1) > 0).long()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(config["epochs"]):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        metrics = {
            "epoch": epoch,
            "loss": accelerator.gather(loss.detach().reshape(1)).mean().item(),
            "batches": len(loader),
            "processes": accelerator.num_processes,
        }
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if accelerator.is_main_process:
                unwrapped = accelerator.unwrap_model(model)
                accelerator.save(unwrapped.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    result = TorchTrainer(
        train_func,
        train_loop_config={"lr": 1e-2, "epochs": 3},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=os.path.abspath("results"), name="accelerate"),
    ).fit()
    for _, metrics in result.best_checkpoints:
        names = ("epoch", "batches", "processes")
        print("LINE", *(metrics[name] for name in names), metrics["loss"].hex())
    held = torch.load(os.path.join(result.checkpoint.path, "model.pt"))
    print("LINE", [value.double().sum().item().hex() for value in held.values()])
