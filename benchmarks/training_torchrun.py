"""Two data-parallel workers as PyTorch's own launcher runs them: torchrun --nproc-per-node 2 <this file>."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.training_data import make_data
from benchmarks.training_job import BATCH_SIZE, make_model, make_optimizer, train_epoch


def main() -> None:
    """One epoch."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(make_model())
    data = make_data()
    sampler: DistributedSampler[object] = DistributedSampler(data)
    sampler.set_epoch(0)
    loss = train_epoch(model, make_optimizer(model), DataLoader(data, BATCH_SIZE, sampler=sampler))
    if dist.get_rank() == 0:
        print(f"first epoch done: loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
