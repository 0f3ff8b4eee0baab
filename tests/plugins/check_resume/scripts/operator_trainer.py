"""An operator's trainer that saves after each epoch."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trainkit.train import TorchTrainer, TrainingOperator


class Line(TrainingOperator):
    def setup(self, config):
        torch.manual_seed(0)
        x = torch.randn(24, 4)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss())
        self.register_data(train_loader=DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 6, shuffle=True))


with TorchTrainer(training_operator_cls=Line, num_workers=2, use_gpu=False) as trainer:
    epoch = 0
    if os.path.exists("saved"):
        trainer.load("saved")
        epoch = trainer.state_dict()["epoch"]
    for _ in range(epoch, 4):
        trainer.train()
        trainer.save("saved")
