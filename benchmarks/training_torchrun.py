"""Two data-parallel workers under PyTorch's own launcher.

The command is `torchrun --nproc-per-node 2 -m benchmarks.training_torchrun`.

With `--serve` the workers train as long as lines arrive: each is a number of steps, answered by the seconds.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.interleaved import leave
from benchmarks.training_data import make_data
from benchmarks.training_job import BATCH_SIZE, WARM_UP, make_model, make_optimizer, train_epoch, train_steps


def main() -> None:
    """Train one epoch, or the requested steps."""
    dist.init_process_group("gloo")
    model, optimizer, loader = make_parts()
    if "--serve" in sys.argv:
        serve(model, optimizer, loader)
    else:
        loss = train_epoch(model, optimizer, loader)
        if dist.get_rank() == 0:
            print(f"first epoch done: loss {loss:.4f}", flush=True)
    leave()


def make_parts() -> tuple[torch.nn.Module, object, DataLoader[object]]:
    """Return the wrapped model, the optimizer, and the loader of this rank's share."""
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    data = make_data()
    sampler: DistributedSampler[object] = DistributedSampler(data)
    sampler.set_epoch(0)
    return model, make_optimizer(model), DataLoader(data, BATCH_SIZE, sampler=sampler)


def serve(model: torch.nn.Module, optimizer: object, loader: DataLoader[object]) -> None:
    """Train as many steps as each input line of worker 0 requests, until its input ends."""
    train_steps(model, optimizer, loader, WARM_UP)
    steps = torch.zeros(1, dtype=torch.int64)
    while True:
        if dist.get_rank() == 0:
            steps[0] = int(sys.stdin.readline() or 0)
        dist.broadcast(steps, src=0)
        if not int(steps):
            return
        start = time.perf_counter()
        train_steps(model, optimizer, loader, int(steps))
        if dist.get_rank() == 0:
            print(f"took {time.perf_counter() - start}", flush=True)


if __name__ == "__main__":
    main()
