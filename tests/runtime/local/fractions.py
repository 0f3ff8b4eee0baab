"""A program that tells which share of a GPU's memory its workers are held to."""

from __future__ import annotations

import json
import sys

import trainkit


def queued_fractions(import_first: bool) -> tuple[list[tuple[float, int]], bool, bool]:
    """What torch will be told when CUDA is first used; whether it was imported before; whether CUDA is on."""
    was_there = "torch" in sys.modules
    if import_first:
        import importlib

        importlib.import_module("torch")
    torch = sys.modules["torch"]
    calls = [queued[0] for queued in torch.cuda._queued_calls]
    ours = [
        call.args
        for call in calls
        if getattr(call, "func", None) is torch.cuda.set_per_process_memory_fraction
    ]
    hooks = [finder for finder in sys.meta_path if type(finder).__module__.endswith(".gpu_share")]
    assert not hooks, "the import hook has removed itself"
    return ours, was_there, torch.cuda.is_initialized()


def main(preload: list[str]) -> None:
    trainkit.init(num_cpus=4, num_gpus=2, preload=preload)
    task = trainkit.remote(queued_fractions)
    asked = [task.options(num_gpus=0.25), task.options(num_gpus=1), task]
    print(json.dumps(trainkit.get([one.remote(not preload) for one in asked], timeout=100)))


if __name__ == "__main__":
    main(sys.argv[1:])
