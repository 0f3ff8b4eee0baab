"""Average gradients by hand, in the form of the tutorial on distributed applications."""

import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset


def messages(rank):
    tensor = torch.zeros(1)
    if rank == 0:
        tensor += 1
        request = dist.isend(tensor=tensor, dst=1)
    else:
        request = dist.irecv(tensor=tensor, src=0)
    request.wait()
    group = dist.new_group([0, 1])
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM, group=group)
    gathered = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    dist.broadcast(tensor, src=1)
    if rank == 0:
        print("messages", tensor.tolist(), [each.tolist() for each in gathered], flush=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.conv2 = nn.Conv2d(4, 8, kernel_size=3)
        self.fc = nn.Linear(32, 3)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        return functional.log_softmax(
            self.fc(functional.dropout(x.flatten(1), training=self.training)), dim=1
        )


def partition_dataset():
    """Return this rank's share of the pictures, drawn without torch's sampler, and the size of a batch."""
    size, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(3, (96,), generator=generator)
    pictures = torch.randn(96, 1, 14, 14, generator=generator) + labels.view(-1, 1, 1, 1)
    indices = list(range(96))
    random.Random(1234).shuffle(indices)
    share = Subset(TensorDataset(pictures, labels), indices[rank * 96 // size : (rank + 1) * 96 // size])
    return DataLoader(share, batch_size=16 // size, shuffle=True), 16 // size


def average_gradients(model):
    size = float(dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad.data, op=dist.ReduceOp.SUM)
        parameter.grad.data /= size


def run(rank):
    torch.manual_seed(1234)
    train_set, _ = partition_dataset()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for epoch in range(4):
        epoch_loss = 0.0
        for data, target in train_set:
            optimizer.zero_grad()
            loss = functional.nll_loss(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        losses = [None] * dist.get_world_size()
        dist.all_gather_object(losses, (epoch_loss / len(train_set)).hex())
        if rank == 0:
            print("epoch", epoch, *losses, flush=True)


def init_process(backend="gloo"):
    dist.init_process_group(backend)
    messages(dist.get_rank())
    run(dist.get_rank())
    dist.destroy_process_group()


if __name__ == "__main__":
    init_process()
    sys.stdout.flush()
    os._exit(0)  # torch's threads of a group that is gone may abort a process that ends in order
