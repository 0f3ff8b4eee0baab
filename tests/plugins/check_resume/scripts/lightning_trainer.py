"""A script for Lightning that saves after each epoch."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))

    def training_step(self, batch, index):
        features, target = batch
        return nn.functional.mse_loss(self.layers(features), target)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


class Epochs(torch.utils.data.Sampler):
    """Order that depends only on the epoch, which Lightning sets."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 24

    def __iter__(self):
        return iter(torch.randperm(24, generator=torch.Generator().manual_seed(self.epoch)).tolist())


lightning.seed_everything(0)
x = torch.randn(24, 4)
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=5,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[lightning.pytorch.callbacks.ModelCheckpoint("saved", save_last=True)],
)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6, sampler=Epochs())
last = "saved/last.ckpt"
trainer.fit(Line(), loader, ckpt_path=last if os.path.exists(last) else None)
