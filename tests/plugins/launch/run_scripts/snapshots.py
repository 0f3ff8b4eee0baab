"""Go on from a snapshot once a rank has failed, in the form of torchrun's tutorial of fault tolerance."""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.model, self.train_data, self.optimizer = model, train_data, optimizer
        self.save_every, self.snapshot_path = save_every, snapshot_path
        self.epochs_run = 0
        if os.path.exists(snapshot_path):
            self._load_snapshot()
        self.began_at = self.epochs_run
        self.model = DistributedDataParallel(self.model)

    def _load_snapshot(self):
        snapshot = torch.load(self.snapshot_path)
        self.model.load_state_dict(snapshot["MODEL_STATE"])
        self.optimizer.load_state_dict(snapshot["OPTIMIZER_STATE"])
        self.epochs_run = snapshot["EPOCHS_RUN"]
        if self.global_rank == 0:
            print(f"Resuming training from snapshot at epoch {self.epochs_run}", flush=True)

    def _save_snapshot(self, epoch):
        torch.save(
            {
                "MODEL_STATE": self.model.module.state_dict(),
                "OPTIMIZER_STATE": self.optimizer.state_dict(),
                "EPOCHS_RUN": epoch + 1,
            },
            self.snapshot_path,
        )
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}", flush=True)

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for source, targets in self.train_data:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if self.global_rank == 0:
            print(f"Epoch {epoch} | Steps: {len(self.train_data)} | {total.item().hex()}", flush=True)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.global_rank == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)
            dist.barrier()
            if epoch == 3 and self.began_at == 0 and self.global_rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)  # between two snapshots


def main(save_every, total_epochs, batch_size):
    init_process_group(backend="gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(64, 20), torch.rand(64, 1))
    model = nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    loader = DataLoader(data, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(data))
    Trainer(model, loader, optimizer, save_every, "snapshot.pt").train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch_size", default=8, type=int)
    arguments = parser.parse_args()
    main(arguments.save_every, arguments.total_epochs, arguments.batch_size)
    sys.stdout.flush()
    os._exit(0)  # torch's threads of a group that is gone may abort a process that ends in order
