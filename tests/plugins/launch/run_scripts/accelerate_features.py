"""Accelerate's accumulation, checkpoints, early stopping and local SGD, each in the form of its example."""

import argparse
import os
import sys

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 3


def prepared(accelerator, batch_size=8):
    """Return a model, an optimizer, a loader and a scheduler for a task of two classes."""
    set_seed(42)
    features = torch.randn(96, 6)
    data = TensorDataset(features, (features[:, :3].sum(dim=1) > features[:, 3]).long())
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    loader = DataLoader(data, shuffle=True, batch_size=batch_size)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=60)
    return accelerator.prepare(model, optimizer, loader, scheduler)


def tell(accelerator, feature, epoch, total):
    total = accelerator.reduce(total).item()
    accelerator.print(feature, epoch, total.hex(), accelerator.num_processes, flush=True)
    return total


def train(accelerator, model, optimizer, loader, scheduler=None):
    """Train for an epoch; yield the loss of each batch once its step is made."""
    for features, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            if accelerator.gradient_accumulation_steps > 1 and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()
        yield loss.detach()


def gradient_accumulation(cpu):
    accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=2)
    parts = prepared(accelerator, batch_size=4)
    for epoch in range(EPOCHS):
        total, steps = torch.zeros(()), 0
        for loss in train(accelerator, *parts):
            total += loss
            steps += accelerator.sync_gradients
        tell(accelerator, f"accumulated in {steps} steps", epoch, total)


def checkpointing(cpu):
    """Train with a checkpoint every 4 steps; then go on from one in the midst of the second epoch."""
    project = ProjectConfiguration(project_dir="project", automatic_checkpoint_naming=True, total_limit=5)
    accelerator = Accelerator(cpu=cpu, gradient_accumulation_steps=1, project_config=project)
    for resumed in (False, True):
        model, optimizer, loader, scheduler = prepared(accelerator)
        start, skipped = 0, 0
        if resumed:
            accelerator.load_state("project/checkpoints/checkpoint_1")  # after 8 steps, of 6 an epoch
            start, skipped = divmod(8, len(loader))
        step = start * len(loader) + skipped
        for epoch in range(start, EPOCHS):
            model.train()
            loader.set_epoch(epoch)
            active = accelerator.skip_first_batches(loader, skipped) if epoch == start and skipped else loader
            total = torch.zeros(())
            for loss in train(accelerator, model, optimizer, active, scheduler):
                total += loss
                step += 1
                if step % 4 == 0 and not resumed:
                    accelerator.save_state()
            tell(accelerator, f"resumed={resumed}", epoch, total)
        accelerator.wait_for_everyone()
        accelerator.free_memory()
    accelerator.print(*sorted(os.listdir("project/checkpoints")), flush=True)


def early_stopping(cpu):
    """Stop all ranks once the loss of one of them is small."""
    accelerator = Accelerator(cpu=cpu)
    model, optimizer, loader, _ = prepared(accelerator)
    for epoch in range(20):
        total = torch.zeros(())
        for loss in train(accelerator, model, optimizer, loader):
            total += loss
            if accelerator.is_main_process and loss.item() < 0.3:
                accelerator.set_trigger()
            if accelerator.check_trigger():
                tell(accelerator, "stopped", epoch, total)
                return
        tell(accelerator, "not stopped", epoch, total)


def local_sgd(cpu):
    accelerator = Accelerator(cpu=cpu)
    model, optimizer, loader, scheduler = prepared(accelerator)
    for epoch in range(EPOCHS):
        total = torch.zeros(())
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=4) as local:
            for loss in train(accelerator, model, optimizer, loader, scheduler):
                local.step()
                total += loss
        weights = sum(parameter.detach().double().sum() for parameter in model.parameters()).item()
        tell(accelerator, f"local {weights.hex()}", epoch, total)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true")
    cpu = parser.parse_args().cpu
    for feature in (gradient_accumulation, checkpointing, early_stopping, local_sgd):
        feature(cpu)
    Accelerator(cpu=cpu).end_training()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # torch's threads of a group that is gone may abort a process that ends in order
