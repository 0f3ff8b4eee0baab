"""The state of a trainer: parts of each worker, random generators, and hyperparameters set anew.

{"epoch", "global_step", "models", "optimizers", "schedulers", "scaler", "operator"}    equal on all workers
{"workers": [{"data_rank", "rng", "data"}, ...]}                                        each worker's own

A trial's configuration goes before its checkpoint. The state of an optimizer holds its learning rate, and
that of a scheduler its first one, so a trial that goes on from another's checkpoint would train with the
other's rate. So a trial's checkpoint also holds the hyperparameters that each worker's `setup` made of the
configuration. Where `setup` makes others now, these are the ones to go on with.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train.distributed.tensors import cpu_copy, joined, whole


def seed_generators(value: int) -> None:
    """Seed torch's, Python's and, where it is loaded, NumPy's global generator."""
    torch.manual_seed(value)
    random.seed(value)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(value % 2**32)


def generator_states() -> dict[str, Any]:
    """Return the states of all generators, as plain values and tensors."""
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


PARTS = ("epoch", "global_step", "models", "optimizers", "schedulers", "operator")
"""Without these it is no trainer's state."""

MISFITS = (CheckpointError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Errors of loading the state of another model, optimizer or scheduler."""


@dataclass(frozen=True)
class WorkerState:
    """One worker's share of a snapshot.

    Attributes:
        shared: what is alike on all workers, as far as this one holds it, detached (spread.py); None where
            the first worker holds all of it.
        own: random generators and the position in the data, which are this worker's.
    """

    shared: dict[str, Any] | None
    own: dict[str, Any]


@dataclass(frozen=True)
class SmallState:
    """The part of one worker's state that a validation may change.

    Attributes:
        operator: its own state, as in `WorkerState.shared`.
        own: as in `WorkerState`.
        schedulers: their states, as a validation of the user's own may step them by its loss.
        rates: see `rates`.
    """

    operator: dict[str, Any]
    own: dict[str, Any]
    schedulers: list[dict[str, Any]]
    rates: list[list[dict[str, Any]]]


def rates(optimizers: Sequence[torch.optim.Optimizer]) -> list[list[dict[str, Any]]]:
    """Return the values that schedulers change: learning rates, and the other settings of a group."""
    return [
        [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def set_rates(
    optimizers: Sequence[torch.optim.Optimizer], held: Sequence[Sequence[Mapping[str, Any]]]
) -> None:
    """Take over what `rates` returned."""
    for optimizer, groups in zip(optimizers, held, strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].copy_(value)  # It may be part of a compiled step.
                else:
                    group[key] = value


def joined_state(states: Sequence[WorkerState]) -> dict[str, Any]:
    """Return the trainer's state made of all workers' shares; tensors may be in pieces.

    Args:
        states: one a worker, in order of rank.
    """
    shared: dict[str, Any] = joined([state.shared for state in states if state.shared is not None])
    return {**shared, "workers": [state.own for state in states]}


def whole_state(states: Sequence[WorkerState]) -> dict[str, Any]:
    """Return the state of all workers with whole tensors."""
    state: dict[str, Any] = whole(joined_state(states))
    return state


def own_of(workers: Sequence[Mapping[str, Any]], *, rank: int, data_rank: int) -> Mapping[str, Any] | None:
    """Return the former worker's share that a worker continues from, or None; the number may have changed.

    Args:
        workers: "own" shares by rank.
        rank: of the worker.
        data_rank: its number among those that share the samples, which workers that hold one model together
            have in common.
    """
    if rank < len(workers) and workers[rank].get("data_rank", rank) == data_rank:
        return workers[rank]
    return next((own for own in workers if own.get("data_rank") == data_rank), None)


def check_state(state: Any, registered: Mapping[str, int], what: str) -> None:
    """Raise CheckpointError unless `state` is a trainer's, with as many of each as were registered.

    Args:
        state: to be loaded.
        registered: numbers of models, optimizers and schedulers.
        what: the state, for the message.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{what} is no trainer's state: it is a {type(state).__name__}")
    if missing := sorted(set(PARTS) - set(state)):
        raise CheckpointError(f"{what} is no trainer's state: it lacks {', '.join(missing)}")
    for name, count in registered.items():
        if not isinstance(state[name], (list, tuple)):
            raise CheckpointError(f"{what} is no trainer's state: its {name} are no list")
        if len(state[name]) != count:
            raise CheckpointError(
                f"{what} holds {len(state[name])} {name}, but {count} were registered: register the same"
            )


_FILENAME = "set_up.pt"

Hyperparameters = Mapping[str, Any]
"""{"rates": by optimizer and group, "schedulers": their states} as `setup` made them."""


def hyperparameters_of(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]
) -> Hyperparameters:
    """Return a copy of the rates and states that optimizers and schedulers have from the configuration."""
    states = [scheduler.state_dict() for scheduler in schedulers]
    held: Hyperparameters = cpu_copy({"rates": rates(optimizers), "schedulers": states})
    return held


def write_hyperparameters(folder: str, set_up: Sequence[Hyperparameters]) -> None:
    """Put it, of all workers by rank, into the folder of a checkpoint."""
    torch.save(list(set_up), Path(folder, _FILENAME))


def read_hyperparameters(folder: str) -> Sequence[Hyperparameters]:
    """Return what `write_set_up` has put there; [] in a checkpoint of before there was such.

    Raises:
        CheckpointError: it can't be read.
    """
    path = Path(folder, _FILENAME)
    if not path.exists():
        return []
    try:
        held: list[Hyperparameters] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {folder} can't be read: {error}") from error
    return held


def differ(then: Sequence[Hyperparameters], now: Sequence[Hyperparameters]) -> bool:
    """Return True if a configuration sets something otherwise than that of a checkpoint."""
    pairs = zip(then, now, strict=False)
    return any(_changed(old, new) for old, new in pairs)


def override_hyperparameters(
    optimizers: Sequence[torch.optim.Optimizer],
    schedulers: Sequence[Any],
    *,
    then: Hyperparameters,
    now: Hyperparameters,
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
                _set(group, key, overridden(group.get(key), old.get(key), new[key]))
    for scheduler, old, new in zip(schedulers, then["schedulers"], now["schedulers"], strict=True):
        state = scheduler.state_dict()
        if changed := _changed(old, new):
            held = {key: overridden(state.get(key), old.get(key), new[key]) for key in changed}
            scheduler.load_state_dict({**state, **held})


def overridden(loaded: Any, then: Any, now: Any) -> Any:
    """Return the value to go on with where `setup` made `now` of the configuration, and `then` of the other.

    What a schedule has moved from `then` is moved as far from `now`, in proportion: a rate halved stays half.
    """
    if _same(then, now):
        return loaded
    if isinstance(now, Mapping) and isinstance(loaded, Mapping) and isinstance(then, Mapping):
        changed = {key: overridden(loaded.get(key), then.get(key), now[key]) for key in _changed(then, now)}
        return {**loaded, **changed}
    if (
        isinstance(now, (list, tuple))
        and isinstance(loaded, (list, tuple))
        and isinstance(then, (list, tuple))
    ):
        return type(now)(map(overridden, loaded, then, now)) if len(now) == len(loaded) == len(then) else now
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
