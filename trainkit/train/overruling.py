"""A trial's configuration goes before its checkpoint: rates that it sets otherwise are not loaded back.

An optimizer's state holds its learning rate, and a scheduler's its first one. A trial that goes on from
another's checkpoint with another `lr` would train with the other's. So a trial's checkpoint also holds what
each worker's `setup` made of the configuration; what `setup` makes otherwise now is the configuration's.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train.state import rates
from trainkit.train.tensors import cpu_copy

_FILENAME = "set_up.pt"

SetUp = Mapping[str, Any]
"""{"rates": by optimizer and group, "schedulers": their states} as `setup` made them."""


def set_up_of(optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]) -> SetUp:
    """A copy of what optimizers and schedulers hold of the configuration."""
    states = [scheduler.state_dict() for scheduler in schedulers]
    held: SetUp = cpu_copy({"rates": rates(optimizers), "schedulers": states})
    return held


def write_set_up(folder: str, set_up: Sequence[SetUp]) -> None:
    """Put it, of all workers by rank, into the folder of a checkpoint."""
    torch.save(list(set_up), Path(folder, _FILENAME))


def read_set_up(folder: str) -> Sequence[SetUp]:
    """Return what `write_set_up` has put there; [] in a checkpoint of before there was such.

    Raises:
        CheckpointError: it can't be read.
    """
    path = Path(folder, _FILENAME)
    if not path.exists():
        return []
    try:
        held: list[SetUp] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {folder} can't be read: {error}") from error
    return held


def differ(then: Sequence[SetUp], now: Sequence[SetUp]) -> bool:
    """True if a configuration has set something otherwise than that of a checkpoint."""
    pairs = zip(then, now, strict=False)
    return any(_changed(old, new) for old, new in pairs)


def overrule(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any], *, then: SetUp, now: SetUp
) -> None:
    """Change what was loaded into optimizers and schedulers where the present configuration says otherwise.

    Args:
        optimizers: that hold a checkpoint's state.
        schedulers: likewise.
        then: what `setup` made of the checkpoint's configuration.
        now: what it has made of the present one.
    """
    for optimizer, before, after in zip(optimizers, then["rates"], now["rates"], strict=True):
        for group, old, new in zip(optimizer.param_groups, before, after, strict=True):
            for key in _changed(old, new):
                _set(group, key, overruled(group.get(key), old.get(key), new[key]))
    for scheduler, old, new in zip(schedulers, then["schedulers"], now["schedulers"], strict=True):
        state = scheduler.state_dict()
        if changed := _changed(old, new):
            held = {key: overruled(state.get(key), old.get(key), new[key]) for key in changed}
            scheduler.load_state_dict({**state, **held})


def overruled(loaded: Any, then: Any, now: Any) -> Any:
    """Return the value to go on with where `setup` made `now` of the configuration, and `then` of the other.

    What a schedule has moved from `then` is moved as far from `now`, in proportion: a rate halved stays half.
    """
    if _same(then, now):
        return loaded
    if isinstance(now, Mapping) and isinstance(loaded, Mapping) and isinstance(then, Mapping):
        changed = {key: overruled(loaded.get(key), then.get(key), now[key]) for key in _changed(then, now)}
        return {**loaded, **changed}
    if (
        isinstance(now, (list, tuple))
        and isinstance(loaded, (list, tuple))
        and isinstance(then, (list, tuple))
    ):
        return type(now)(map(overruled, loaded, then, now)) if len(now) == len(loaded) == len(then) else now
    if not all(_is_real(value) for value in (loaded, then, now)) or float(then) == 0.0:
        return now
    if float(loaded) == float(then):
        return now
    moved = loaded * (float(now) / float(then))
    return round(moved) if isinstance(loaded, int) else moved


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [key for key in new if not _same(old.get(key), new[key])]


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        return torch.equal(old, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return old.keys() == new.keys() and not _changed(old, new)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    return type(old) is type(new) and bool(old == new)


def _is_real(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.is_floating_point()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _set(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(float(value))  # it may be part of a compiled step
    else:
        group[key] = value
