"""LBFGS, which calls the model within its step, with checkpoints in the folder that the script is given."""

import sys
from pathlib import Path

import torch
from torch import nn

file = Path(sys.argv[1], "checkpoint.pt")
torch.manual_seed(0)
x = torch.randn(20, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=3)
start = 0
if file.exists():
    state = torch.load(file)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
for step in range(start, 12):
    batch = x[torch.randperm(20, generator=torch.Generator().manual_seed(step))[:5]]

    def closure(batch=batch):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, file)
