"""Classify pictures by Accelerate, in the form of its `cv_example`: a frozen part, checkpoints by epoch."""

import argparse
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset


class Stripes(Dataset):
    """Noisy pictures of stripes, which lie, stand, or go aslant."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=generator)
        rows, columns = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        kinds = torch.stack([rows, columns, rows + columns]).mul(1.5).sin()
        noise = torch.randn(count, 1, 8, 8, generator=generator)
        self.pictures = kinds[self.labels].unsqueeze(1) + 0.8 * noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.pictures[index], "label": self.labels[index]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(128, 3)

    def forward(self, pictures):
        return self.head(self.backbone(pictures))


def training_function(config, arguments):
    accelerator = Accelerator(cpu=arguments.cpu, mixed_precision=arguments.mixed_precision)
    set_seed(config["seed"])
    train_loader = DataLoader(Stripes(120, 1), shuffle=True, batch_size=config["batch_size"], drop_last=True)
    eval_loader = DataLoader(Stripes(45, 2), batch_size=16)
    model = Classifier()
    for parameter in model.backbone[:2].parameters():
        parameter.requires_grad = False
    mean, std = torch.tensor(0.0), torch.tensor(1.2)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"] / 25)
    schedule = OneCycleLR(
        optimizer, max_lr=config["lr"], epochs=config["num_epochs"], steps_per_epoch=len(train_loader)
    )
    model, optimizer, train_loader, eval_loader, schedule = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, schedule
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        total = torch.zeros(())
        for batch in train_loader:
            outputs = model((batch["image"] - mean) / std)
            loss = nn.functional.cross_entropy(outputs, batch["label"])
            total += loss.detach()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.save_state(os.path.join(arguments.output_dir, f"epoch_{epoch}"))
        model.eval()
        correct = seen = 0
        for batch in eval_loader:
            with torch.no_grad():
                predicted = model((batch["image"] - mean) / std).argmax(dim=-1)
            predicted, labels = accelerator.gather_for_metrics((predicted, batch["label"]))
            correct += int((predicted == labels).sum())
            seen += len(labels)
        total = accelerator.reduce(total).item()
        accelerator.print(
            "epoch", epoch, total.hex(), f"{correct} of {seen}", accelerator.num_processes, flush=True
        )
    accelerator.wait_for_everyone()
    accelerator.print(*sorted(os.listdir(arguments.output_dir)), flush=True)
    accelerator.end_training()
    sys.stdout.flush()
    # Here, with the model alive: DDP would free the group with the interpreter locked, and may wait for ever
    # for a thread of the group that wants the interpreter; other threads of it may abort an end in order.
    os._exit(0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--output_dir", default="checkpoints")
    training_function({"lr": 3e-2, "num_epochs": 3, "seed": 42, "batch_size": 8}, parser.parse_args())


if __name__ == "__main__":
    main()
