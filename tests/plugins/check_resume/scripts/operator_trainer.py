"""An operator's trainer that saves after each epoch, or, with an argument, by itself in the background."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainkit.train import CheckpointConfig, TorchTrainer, TrainingOperator


class Line(TrainingOperator):
    def setup(self, config):
        torch.manual_seed(0)
        x = torch.randn(24, 4)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        self.register_data(train_loader=DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6, shuffle=True))


itself = {"checkpoint_dir": "checkpoints", "checkpoint_config": CheckpointConfig(every_steps=3)}
with TorchTrainer(
    training_operator_cls=Line, num_workers=2, use_gpu=False, **itself if sys.argv[1:] else {}
) as trainer:
    epoch = trainer.epoch
    if os.path.exists("saved"):
        trainer.load("saved")
        epoch = trainer.state_dict()["epoch"]
    for _ in range(epoch, 4):
        trainer.train()
        if not sys.argv[1:]:
            trainer.save("saved")
