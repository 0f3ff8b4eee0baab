"""The random generators of a worker: Python's, NumPy's, torch's, and those of its loaders."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch

from trainkit.train.operator import TrainingOperator


def capture(operator: TrainingOperator) -> dict[str, Any]:
    """The state of every generator that a worker's training draws from."""
    numpy = sys.modules.get("numpy")
    return {
        "python": random.getstate(),
        "numpy": None if numpy is None else numpy.random.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "loaders": [generator.get_state() for generator in _generators(operator)],
    }


def restore(operator: TrainingOperator, state: dict[str, Any]) -> None:
    """Let every generator go on from what `capture` returned."""
    random.setstate(state["python"])
    if state["numpy"] is not None and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"].clone())
    if state["cuda"] is not None:
        torch.cuda.set_rng_state_all(state["cuda"])
    for generator, saved in zip(_generators(operator), state["loaders"], strict=False):
        generator.set_state(saved.clone())


def _generators(operator: TrainingOperator) -> Iterator[torch.Generator]:
    """Each once: of the loaders, and of the samplers within."""
    seen: set[int] = set()
    for feed in (operator.train_feed, operator.validation_feed):
        loader = None if feed is None else feed.loader
        batches = getattr(loader, "batch_sampler", None)
        for holder in (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator) and id(generator) not in seen:
                seen.add(id(generator))
                yield generator
