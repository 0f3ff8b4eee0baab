"""A loop that saves when it receives SIGTERM, after the step in hand, and at no other time."""

import os
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
torch.manual_seed(0)
x = torch.randn(24, 4)
model = nn.Linear(4, 1)
shadow = {name: weight.detach().clone() for name, weight in model.named_parameters()}
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
start, taken = 0, 0
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    shadow = state["shadow"]
    start, taken = state["place"]
for epoch in range(start, 4):
    loader = DataLoader(TensorDataset(x), 4, shuffle=True, generator=torch.Generator().manual_seed(epoch))
    for number, (batch,) in enumerate(loader):
        if number < taken:
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True)).backward()
        optimizer.step()
        for name, weight in model.named_parameters():
            shadow[name] = 0.9 * shadow[name] + 0.1 * weight.detach()
        if asked:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "shadow": shadow}
            torch.save(state | {"place": (epoch, number + 1)}, "checkpoint.pt")
            raise SystemExit(143)
    taken = 0
