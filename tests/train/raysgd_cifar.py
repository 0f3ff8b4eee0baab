"""A script for RaySGD: image classification, its imports alone changed, on images that are drawn here.

As such scripts are: hooks, a configuration with the global batch size, schedulers, `info`, `max_retries`.
"""

import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from trainkit.util.sgd.torch import TorchTrainer, TrainingOperator
from trainkit.util.sgd.utils import BATCH_SIZE, override


def initialization_hook():
    os.environ["NCCL_SOCKET_IFNAME"] = "^docker0,lo"
    os.environ["NCCL_LL_THRESHOLD"] = "0"


def drawn_images(count, seed):
    """Squares of a class's own colour on noise: 32 x 32 pixels, ten classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    images = torch.randn(count, 3, 32, 32, generator=generator) * 0.3
    images[:, 0, 8:24, 8:24] += labels.view(-1, 1, 1) / 5 - 1
    return TensorDataset(images, labels)


class CifarTrainingOperator(TrainingOperator):
    @override(TrainingOperator)
    def setup(self, config):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 10)
        )
        optimizer = torch.optim.SGD(
            model.parameters(), lr=config.get("lr", 0.1), momentum=config.get("momentum", 0.9)
        )
        train_dataset, validation_dataset = drawn_images(512, 0), drawn_images(100, 1)
        if config["test_mode"]:
            train_dataset = Subset(train_dataset, list(range(64)))
            validation_dataset = Subset(validation_dataset, list(range(63)))
        train_loader = DataLoader(train_dataset, batch_size=config[BATCH_SIZE])
        validation_loader = DataLoader(validation_dataset, batch_size=config[BATCH_SIZE])

        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 250, 350], gamma=0.1)
        criterion = nn.CrossEntropyLoss()

        self.model, self.optimizer, self.criterion, self.scheduler = self.register(
            models=model, optimizers=optimizer, criterion=criterion, schedulers=scheduler
        )
        self.register_data(train_loader=train_loader, validation_loader=validation_loader)


def train_cifar(test_mode=False, num_workers=1, use_gpu=False, num_epochs=5, fp16=False):
    trainer1 = TorchTrainer(
        training_operator_cls=CifarTrainingOperator,
        initialization_hook=initialization_hook,
        num_workers=num_workers,
        config={"lr": 0.1, "test_mode": test_mode, BATCH_SIZE: 16 * num_workers},
        use_gpu=use_gpu,
        scheduler_step_freq="epoch",
        use_fp16=fp16,
        use_tqdm=True,
    )
    for i in range(num_epochs):
        info = {"num_steps": 1} if test_mode else {}
        info["epoch_idx"] = i
        info["num_epochs"] = num_epochs
        stats = trainer1.train(max_retries=1, info=info)
        val_stats = trainer1.validate()
        print(i, stats["train_loss"], val_stats["val_accuracy"])
    rates = trainer1.apply_all_operators(lambda op: op.optimizer.param_groups[0]["lr"])
    print(trainer1.validate())
    trainer1.shutdown()
    print("success!")
    return stats, val_stats, rates
