"""A script for torchrun that resumes exactly, on any number of ranks that divides the batch; its faults."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SAMPLES, BATCH, EPOCHS = 48, 12, 5

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = torch.randn(SAMPLES, 4)
inner = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0 if FAULT == "other_workers" else 0.3), nn.Linear(8, 1))
model = DistributedDataParallel(inner)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(rank)
step = 0
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt")
    inner.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
    if len(state["generators"]) == size:
        torch.set_rng_state(state["generators"][0 if FAULT == "one_generator" else rank])
for step in range(step, EPOCHS * SAMPLES // BATCH):  # noqa: B020 - it begins at the checkpoint's step
    epoch, place = divmod(step * BATCH, SAMPLES)
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    own = order[place : place + BATCH][rank::size]
    optimizer.zero_grad()
    nn.functional.mse_loss(model(data[own]), data[own].sum(1, keepdim=True)).backward()
    optimizer.step()
    generators = [None] * size
    dist.all_gather_object(generators, torch.get_rng_state())
    if rank == 0:
        state = {"model": inner.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state | {"generators": generators}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")
    dist.barrier()
dist.destroy_process_group()
