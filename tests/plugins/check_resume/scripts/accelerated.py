"""A script for Accelerate that saves after each epoch."""

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(0)
x = torch.randn(32, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
epoch = 0
if os.path.exists("state/epoch"):
    accelerator.load_state("state")
    epoch = int(Path("state/epoch").read_text())
while epoch < 5:
    for features, target in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(features), target))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    epoch += 1
    accelerator.save_state("state")
    Path("state/epoch").write_text(str(epoch))
