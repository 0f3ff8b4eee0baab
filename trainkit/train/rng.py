"""Random generators of a worker's process: seeding them, and taking them up where they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch


def seed_generators(value: int) -> None:
    """Seed torch's, Python's and, where it is loaded, NumPy's global generator."""
    torch.manual_seed(value)
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value % 2**32)


def generator_states() -> dict[str, Any]:
    """Of all of them, as plain values and tensors."""
    version, numbers, gauss = random.getstate()
    held: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": [version, list(numbers), gauss],
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        held["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        held["numpy"] = [
            kind,
            torch.from_numpy(keys.astype("int64")),
            int(position),
            int(has_gauss),
            float(cached),
        ]
    return held


def load_generator_states(held: Mapping[str, Any]) -> None:
    """Take over what `generator_states` returned; generators that are not in it go on as they are."""
    if "torch" in held:
        torch.set_rng_state(held["torch"])
    if "python" in held:
        version, numbers, gauss = held["python"]
        random.setstate((version, tuple(numbers), gauss))
    if "cuda" in held and torch.cuda.is_available() and len(held["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(held["cuda"])
    if "numpy" in held:
        import numpy

        kind, keys, position, has_gauss, cached = held["numpy"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
