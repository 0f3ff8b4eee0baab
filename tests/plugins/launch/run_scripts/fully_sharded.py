"""Shard a transformer by FSDP2, in the form of its tutorial: shards are made, trained, saved and loaded."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Transformer(nn.Module):
    def __init__(self, vocabulary=32, width=16, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def sharded():
    torch.manual_seed(0)
    model = Transformer()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    rank = dist.get_rank()
    for step in steps:
        generator = torch.Generator().manual_seed(10 * step + rank)
        tokens = torch.randint(32, (8, 12), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flip(1).flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print("step", step, total.item().hex(), flush=True)


def main():
    dist.init_process_group("gloo")
    model, optimizer = sharded()
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    train(model, optimizer, range(4))
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id="sharded")
    train(model, optimizer, range(4, 6))
    again, optimizer = sharded()
    state, optimizer_state = get_state_dict(again, optimizer)
    dcp.load({"model": state, "optimizer": optimizer_state}, checkpoint_id="sharded")
    set_state_dict(again, optimizer, model_state_dict=state, optim_state_dict=optimizer_state)
    train(again, optimizer, range(4, 6))
    dist.destroy_process_group()
    sys.stdout.flush()
    # Here, with the model alive: DDP would free the group with the interpreter locked, and may wait for ever
    # for a thread of the group that wants the interpreter; other threads of it may abort an end in order.
    os._exit(0)


if __name__ == "__main__":
    main()
