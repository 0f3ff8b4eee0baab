"""Workers that run a user's training function, each in its own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from trainkit.runtime import api as runtime
from trainkit.settings import PAUSES
from trainkit.train.distributed.observers import check_libraries
from trainkit.train.distributed.process_group import join_workers
from trainkit.train.distributed.rendezvous import LocalRank, own_node, set_torchrun_variables
from trainkit.train.torch.context import TrainContext, keep_returned
from trainkit.train.torch.options import TrialLoop
from trainkit.train.workers.member import GroupMember, WorkerSpec
from trainkit.train.workers.pausing import own_vote
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.trial.actor import FunctionRunner, seed_generators
from trainkit.tune.trial.environment import divert
from trainkit.tune.trial.messages import Reply

PARTS = ".checkpoint_000000000.partial"
"""Subfolder of a trial's folder for each worker's part of a checkpoint, until the parts are joined.

A copy of the experiment leaves out folders of this name. The next attempt of the trial removes a folder that
remains.
"""


def part_dir(trial_dir: str, rank: int) -> str:
    """Return the path of the folder for one worker's parts of checkpoints."""
    return os.path.join(trial_dir, PARTS, str(rank))


def set_library_variables(run: str, locality: LocalRank, device: torch.device) -> None:
    """Set further environment variables for libraries, in addition to `set_torchrun_variables`.

    Args:
        run: identifier of the run, by which Lightning recognizes that a launcher started the workers.
        locality: the worker's position among the workers of its machine.
        device: device of the worker.
    """
    os.environ["TORCHELASTIC_RUN_ID"] = run
    os.environ["NODE_RANK"] = os.environ["GROUP_RANK"] = str(locality.node_rank)
    os.environ["ACCELERATE_TORCH_DEVICE"] = str(device)
    if device.type == "cpu":
        # Without this variable Accelerate would treat each of several CPU processes as the only process.
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")


GPUs = tuple[str, tuple[str, ...]]
"""Machine of a worker, and the names of the worker's GPUs, as CUDA_VISIBLE_DEVICES expects them."""


def shared_gpus(all_gpus: Sequence[GPUs], own: GPUs) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the GPUs of all workers on a worker's machine, and the indices of its own GPUs among them.

    Args:
        all_gpus: GPUs of all workers, by rank within a machine.
        own: GPUs of the worker.
    """
    machine, names = own
    there = tuple(dict.fromkeys(name for node, held in all_gpus if node == machine for name in held))
    return there, tuple(there.index(name) for name in names)


class LoopWorker(GroupMember):
    """Worker that runs a training function step by step, from report to report."""

    _runner: FunctionRunner
    _devices: tuple[torch.device, ...] = (torch.device("cpu"),)

    def gpus(self) -> GPUs:
        """Return the machine and the GPUs of this worker."""
        return own_node(), tuple(map(str, runtime.get_gpu_ids()))

    def share_gpus(self, all_gpus: Sequence[GPUs]) -> None:
        """Make all workers' GPUs on this machine visible to this process, before any GPU is used.

        Libraries need to see all GPUs, because they use the local rank as the index of a GPU, and copy data
        between GPUs.

        Args:
            all_gpus: GPUs of all workers, by rank within a machine.
        """
        visible, own = shared_gpus(all_gpus, self.gpus())
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        self._devices = tuple(torch.device("cuda", number) for number in own)

    def start(self, spec: WorkerSpec[TrialLoop]) -> frozenset[str]:
        """Join the other workers and prepare the function, without running it yet."""
        options, trial, locality = spec.options, spec.options.trial, spec.locality
        if trial.environment.log_files is not None:
            divert([os.path.join(trial.trial_dir, name) for name in trial.environment.log_files])
        devices = self._devices
        if "isolation" in runtime.promises():  # Without isolation, this process is the user's process.
            place = "" if spec.rendezvous is None else spec.rendezvous.place
            set_torchrun_variables(place, spec.rank, options.num_workers, locality)
            set_library_variables(trial.trial_id, locality, devices[0])
            if spec.page is not None:
                os.environ[PAUSES] = str(spec.page)
                own_vote()
            if trial.seed is not None:
                # Seeds differ between workers, like the random states of processes without a seed, but are
                # reproducible.
                seed_generators(trial.seed + spec.rank)
        join_workers(
            spec.rendezvous,
            rank=spec.rank,
            world_size=options.num_workers,
            device=devices[0],
            listener=self._listener,
        )
        check_libraries()
        shards = {name: parts[spec.rank] for name, parts in options.shards.items()}
        context = TrainContext(
            trial,
            spec.rank,
            options.num_workers,
            locality,
            shards,
            options.metadata,
            devices,
            self._metered(spec, options.name),
        )
        own = replace(
            trial, trial_dir=part_dir(trial.trial_dir, spec.rank), config=dict(options.train_loop_config)
        )
        os.makedirs(own.trial_dir, exist_ok=True)

        def run(config: dict[str, Any]) -> None:
            returned = options.function(config)
            if spec.rank == 0 and returned is not None:
                keep_returned(trial.trial_dir, returned)

        self._runner = FunctionRunner(own, run, {}, context)
        return frozenset()

    def advance(self, checkpoint: str | None) -> Reply:
        """Run the function to its next report or to its end.

        Args:
            checkpoint: path of the stored checkpoint of the last report; None if the report had no
                checkpoint.
        """
        if checkpoint is not None:
            self._runner.go_on_from(Checkpoint(checkpoint))
        return self._runner.advance()

    def __cancelled__(self) -> NoReturn:
        self._runner.interrupt()

    def stop(self) -> None:
        """End the training function, which waits in a report, and leave the other workers."""
        try:
            self._end_function()
        finally:
            self.leave()

    def exit(self) -> None:
        """End the training function if it still waits in a report, and end this process like a program."""
        self._end_function()
        super().exit()

    def _end_function(self) -> None:
        if hasattr(self, "_runner"):
            # An error in the user's cleanup code is only printed, because the run is already over.
            sys.stderr.write(self._runner.stop(save=False)[4])

    def leave(self) -> None:
        # A training function may have left the group itself, like scripts for torchrun, which do so at their
        # end.
        if dist.is_initialized():
            dist.destroy_process_group()
        super().leave()
