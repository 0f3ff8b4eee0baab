"""A training function with a name: the same command resumes it from its last report."""

import tempfile
from pathlib import Path

import torch
from torch import nn

from trainkit import train
from trainkit.train import Checkpoint, RunConfig, ScalingConfig, TorchTrainer


def train_line(config):
    torch.manual_seed(0)
    x = torch.randn(24, 4)
    model = train.torch.prepare_model(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    start = 0
    if (checkpoint := train.get_checkpoint()) is not None:
        state = torch.load(Path(checkpoint.path, "state.pt"))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["epoch"]
    for epoch in range(start, 4):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(6):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[batch]), x[batch].sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
            torch.save(state, Path(folder, "state.pt"))
            train.report({"loss": loss.item()}, checkpoint=Checkpoint.from_directory(folder))


if __name__ == "__main__":
    TorchTrainer(
        train_line,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name="line", verbose=0),
    ).fit()
