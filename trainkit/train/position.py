"""Where a worker is in its data: what the order of the next pass hangs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader


def loader_state(loader: Any, sampler: Any) -> dict[str, Any]:
    """Generators of a loader and its sampler, and their own states where they have some.

    Args:
        loader: of the batches.
        sampler: the user's, which decides the order, or None.
    """
    held: dict[str, Any] = {"started": _keeps_processes(loader) and loader._iterator is not None}
    for name, owner in (("loader", loader), ("sampler", sampler)):
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator):
            held[f"{name}_generator"] = generator.get_state()
        if callable(getattr(owner, "state_dict", None)):
            held[name] = owner.state_dict()
    return held


def load_loader_state(loader: Any, sampler: Any, held: Mapping[str, Any]) -> None:
    """Take over what `loader_state` returned."""
    for name, owner in (("loader", loader), ("sampler", sampler)):
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator) and f"{name}_generator" in held:
            generator.set_state(held[f"{name}_generator"])
        if name in held and callable(getattr(owner, "load_state_dict", None)):
            owner.load_state_dict(held[name])
    if _keeps_processes(loader) and not held.get("started"):
        # Those that were started since would spare the next pass a draw.
        loader._iterator = None


def started_iterator(loader: Any, *, resumed: bool) -> Iterator[Any]:
    """The loader's iterator.

    Args:
        loader: of the batches.
        resumed: a state was loaded in which a loader that keeps its processes had started them. It draws
            their seed once, as it starts them; this one, too, has to go on without. What the processes draw
            themselves begins anew, as their generators ended with them.
    """
    if not resumed or not _keeps_processes(loader) or loader._iterator is not None:
        return iter(loader)
    before = loader.generator
    # As far along as this worker's own, which goes on as if nothing had been drawn.
    loader.generator = torch.Generator()
    loader.generator.set_state(torch.get_rng_state())
    try:
        return iter(loader)
    finally:
        loader.generator = before


def _keeps_processes(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and loader.persistent_workers and loader.num_workers > 0
