"""The job on two workers under torchrun; input lines request steps, see `interleaved.Served`."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from benchmarks.gpu.job import SMALL, Noise, Sizes, make_loader, make_model, make_optimizer, plain_steps
from benchmarks.interleaved import leave


def main() -> None:
    """Train as many steps as each input line of worker 0 requests, until its input ends."""
    gpu = "cuda" in sys.argv
    sizes = SMALL if "--small" in sys.argv else Sizes()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo")
    model: torch.nn.Module = make_model(sizes).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = DistributedDataParallel(model, device_ids=[device] if gpu else None)
    sampler: DistributedSampler[object] = DistributedSampler(Noise(sizes.steps * sizes.batch * 2, 1))
    loader, optimizer = make_loader(sizes, sizes.batch, 2, sampler), make_optimizer(model, sizes)
    asked = torch.zeros(1, dtype=torch.int64)
    while True:
        if dist.get_rank() == 0:
            asked[0] = int(sys.stdin.readline() or 0)
        dist.broadcast(asked, src=0)
        if not int(asked):
            break
        took = plain_steps(model, optimizer, loader, device, int(asked))
        if dist.get_rank() == 0:
            print(f"took {took}", flush=True)
    leave()


if __name__ == "__main__":
    main()
