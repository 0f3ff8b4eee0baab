"""A plain loop that resumes exactly from a checkpoint after each step, and faults that may be planted in it.

It has two optimizers, a scheduler, an average of the weights, dropout, batch norm and accumulated gradients.
"""

import os
import sys

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

FAULT = sys.argv[1] if len(sys.argv) > 1 else ""
SAMPLES, BATCH, ACCUMULATED, EPOCHS = 40, 4, 2, 4
DATA = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
TARGETS = DATA.sum(1, keepdim=True)

torch.manual_seed(0)
body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3))
head = nn.Linear(8, 1)
model = nn.Sequential(body, head)
average = AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
optimizers = [
    torch.optim.Adam(body.parameters(), lr=0.01),
    torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9),
]
schedulers = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n) for optimizer in optimizers]
saved = {
    "model": model,
    "average": average,
    **{f"optimizer{n}": each for n, each in enumerate(optimizers)},
    **{f"scheduler{n}": each for n, each in enumerate(schedulers)},
}
LEFT_OUT = {
    "scheduler": ["scheduler0", "scheduler1"],
    "ema": ["average"],
    "optimizer": ["optimizer0", "optimizer1"],
    "one_optimizer": ["optimizer1"],
}
for name in LEFT_OUT.get(FAULT, []):
    del saved[name]

resumed_at, taken, step = 0, 0, 0
if os.path.exists("checkpoint.pt"):
    state = torch.load("checkpoint.pt")
    for name, each in saved.items():
        each.load_state_dict(state[name])
    resumed_at, taken, step = state["place"]
    if FAULT == "repeated_batch":
        taken -= ACCUMULATED
    if FAULT == "skipped_batch":
        taken += ACCUMULATED
    if FAULT == "forgets_place":
        taken = 0
    if FAULT == "wrong_step":
        step = 0
    if FAULT == "buffers":
        body[1].reset_running_stats()
    if FAULT != "generator":
        torch.set_rng_state(state["generator"])

loss_of = nn.MSELoss()
for epoch in range(resumed_at, EPOCHS):
    # With the fault "order", only the epochs after the resumed one have a wrong order.
    drawn = epoch - resumed_at if FAULT == "order" and epoch > resumed_at else epoch
    if FAULT == "order_at_once":
        drawn = epoch - resumed_at
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(drawn)).split(BATCH)
    while taken < len(order):
        x, y = DATA[order[taken]], TARGETS[order[taken]]
        taken += 1
        loss_of(model(x), y).backward()
        if FAULT == "accumulation" and taken % ACCUMULATED:
            place = (epoch, taken, step)
        if taken % ACCUMULATED:
            continue
        if FAULT == "wrong_step":
            for group in optimizers[0].param_groups:
                group["lr"] = 0.01 / (1 + step)
        for each in (*optimizers, *schedulers):
            each.step()
        model.zero_grad()
        average.update_parameters(model)
        step += 1
        if FAULT != "accumulation":
            place = (epoch, taken, step)
        state = {name: each.state_dict() for name, each in saved.items()}
        torch.save(state | {"place": place, "generator": torch.get_rng_state()}, "checkpoint.new")
        os.replace("checkpoint.new", "checkpoint.pt")
    taken = 0
