"""State of a trainer: each worker's share, random generators, and changed hyperparameters.

{"epoch", "global_step", "models", "optimizers", "schedulers", "scaler", "operator"}    equal on all workers
{"workers": [{"data_rank", "rng", "data"}, ...]}                                        each worker's own

A trial's configuration takes precedence over its checkpoint. However, an optimizer's state contains its
learning rate, and a scheduler's state contains its initial rate. So a trial that loads another trial's
checkpoint would train with the other trial's rate. Therefore a trial's checkpoint also contains the
hyperparameters that each worker's `setup` derived from the configuration. If `setup` of the trial that loads
the checkpoint derives different values, training continues with the new values.
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
    """Seed the global generators of torch, Python and, if it is loaded, NumPy."""
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
    """Load a result of `generator_states`; a generator without an entry in `held` stays unchanged."""
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
"""Required keys of a trainer's state."""

MISFITS = (CheckpointError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""Exceptions that can occur when a state is loaded into a different model, optimizer or scheduler."""


@dataclass(frozen=True)
class WorkerState:
    """Part of a snapshot that belongs to one worker.

    Attributes:
        shared: this worker's part of the state that all workers have in common, detached (tensors.py); None
            on other workers if the first worker has the whole common state.
        own: this worker's random generators and its position in the data.
    """

    shared: dict[str, Any] | None
    own: dict[str, Any]


@dataclass(frozen=True)
class SmallState:
    """The part of a worker's state that a validation may change.

    Attributes:
        operator: the operator's own state; see `WorkerState.shared`.
        own: see `WorkerState`.
        schedulers: states of the schedulers, because a user's validation may step them by its loss.
        rates: learning rates and other group settings; see `rates`.
    """

    operator: dict[str, Any]
    own: dict[str, Any]
    schedulers: list[dict[str, Any]]
    rates: list[list[dict[str, Any]]]


def rates(optimizers: Sequence[torch.optim.Optimizer]) -> list[list[dict[str, Any]]]:
    """Return the values that schedulers change: learning rates and other settings of parameter groups."""
    return [
        [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        for optimizer in optimizers
    ]


def set_rates(
    optimizers: Sequence[torch.optim.Optimizer], held: Sequence[Sequence[Mapping[str, Any]]]
) -> None:
    """Load a result of `rates`."""
    for optimizer, groups in zip(optimizers, held, strict=True):
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for key, value in values.items():
                assign(group, key, value)


def joined_state(states: Sequence[WorkerState]) -> dict[str, Any]:
    """Return the trainer's state, joined from all workers' parts; tensors may be sharded.

    Args:
        states: one state for each worker, by rank.
    """
    shared: dict[str, Any] = joined([state.shared for state in states if state.shared is not None])
    return {**shared, "workers": [state.own for state in states]}


def whole_state(states: Sequence[WorkerState]) -> dict[str, Any]:
    """Return the state of all workers with whole tensors."""
    state: dict[str, Any] = whole(joined_state(states))
    return state


def own_of(workers: Sequence[Mapping[str, Any]], *, rank: int, data_rank: int) -> Mapping[str, Any] | None:
    """Return the saved state of an earlier worker from which a new worker continues; None if no state fits.

    Args:
        workers: saved states of the earlier workers, by rank; the number of workers may have changed.
        rank: rank of the new worker.
        data_rank: index of the new worker's model copy; workers that hold one copy together have the same
            index.
    """
    if rank < len(workers) and workers[rank].get("data_rank", rank) == data_rank:
        return workers[rank]
    return next((own for own in workers if own.get("data_rank") == data_rank), None)


def dealt_progress(
    workers: Sequence[Mapping[str, Any]], data_rank: int, data_ways: int
) -> list[Mapping[str, Any]]:
    """Return the metrics of an interrupted epoch that a worker takes over; [] between two epochs.

    Args:
        workers: saved states of the earlier workers, by rank.
        data_rank: index of the worker's model copy. Workers that hold a copy together take over the same
            metrics.
        data_ways: number of model copies.
    """
    # Among the workers that held a model copy together, only the worker that reports has metrics.
    found: dict[int, Mapping[str, Any]] = {}
    for rank, own in enumerate(workers):
        if (held := own.get("progress")) is not None:
            copy = own.get("data_rank", rank)
            found[copy] = max(found.get(copy, held), held, key=lambda each: len(each["series"]))
    dealt = [found[copy] for copy in sorted(found)]
    if not dealt:
        return []
    steps = max(held["steps"] for held in dealt)
    return [*dealt[data_rank::data_ways], {"steps": steps, "samples": 0, "series": {}}]


def check_state(state: Any, registered: Mapping[str, int], what: str) -> None:
    """Raise CheckpointError unless `state` belongs to a trainer with equally many registered objects.

    Args:
        state: the state to load.
        registered: the keys "models", "optimizers" and "schedulers", each with the number of registered
            objects.
        what: name of the state, for the message.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{what} is not a trainer's state: it is a {type(state).__name__}")
    if missing := sorted(set(PARTS) - set(state)):
        raise CheckpointError(f"{what} is not a trainer's state: it lacks {', '.join(missing)}")
    for name, count in registered.items():
        if not isinstance(state[name], (list, tuple)):
            raise CheckpointError(f"{what} is not a trainer's state: its {name} are not a list")
        if len(state[name]) != count:
            raise CheckpointError(
                f"{what} has {len(state[name])} {name}, but {count} are registered: register the same number"
            )
    check_places(state.get("workers") or [], what)


class UnequalPlacesError(CheckpointError):
    """State whose workers have finished different numbers of batches."""


def check_places(workers: Sequence[Mapping[str, Any]], what: str) -> None:
    """Raise UnequalPlacesError unless all workers have finished the same number of batches of the epoch.

    Args:
        workers: own states of all workers, by rank.
        what: name of the state, for the message.
    """
    finished = [own["data"].get("train", {}).get("position", {}).get("taken", 0) for own in workers]
    if len(set(finished)) > 1:
        raise UnequalPlacesError(
            f"the workers of {what} have finished different numbers of batches of the epoch ({finished}, by "
            "rank), so that no training can continue from it: load an earlier checkpoint"
        )


_FILENAME = "set_up.pt"

Hyperparameters = Mapping[str, Any]
"""{"rates": rates by optimizer and group, "schedulers": scheduler states}, as `setup` set them."""


def hyperparameters_of(
    optimizers: Sequence[torch.optim.Optimizer], schedulers: Sequence[Any]
) -> Hyperparameters:
    """Return a copy of the rates and scheduler states that `setup` derived from the configuration."""
    states = [scheduler.state_dict() for scheduler in schedulers]
    held: Hyperparameters = cpu_copy({"rates": rates(optimizers), "schedulers": states})
    return held


def write_hyperparameters(folder: str, set_up: Sequence[Hyperparameters]) -> None:
    """Write the hyperparameters of all workers, by rank, into a checkpoint's folder."""
    torch.save(list(set_up), Path(folder, _FILENAME))


def read_hyperparameters(folder: str) -> Sequence[Hyperparameters]:
    """Return the values that `write_hyperparameters` wrote; [] if an older version wrote the checkpoint.

    Raises:
        CheckpointError: the file with the hyperparameters can't be read.
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
    """Return True if a hyperparameter in `now` differs from its value in `then`."""
    pairs = zip(then, now, strict=False)
    return any(_changed(old, new) for old, new in pairs)


def override_hyperparameters(
    optimizers: Sequence[torch.optim.Optimizer],
    schedulers: Sequence[Any],
    *,
    then: Hyperparameters,
    now: Hyperparameters,
) -> None:
    """Override the loaded hyperparameters that the current configuration sets to a different value.

    Args:
        optimizers: optimizers with a checkpoint's state.
        schedulers: schedulers with a checkpoint's state.
        then: values that `setup` derived from the checkpoint's configuration.
        now: values that `setup` derived from the current configuration.
    """
    for optimizer, before, after in zip(optimizers, then["rates"], now["rates"], strict=True):
        for group, old, new in zip(optimizer.param_groups, before, after, strict=True):
            for key in _changed(old, new):
                assign(group, key, overridden(group.get(key), old.get(key), new[key]))
    for scheduler, old, new in zip(schedulers, then["schedulers"], now["schedulers"], strict=True):
        state = scheduler.state_dict()
        if changed := _changed(old, new):
            held = {key: overridden(state.get(key), old.get(key), new[key]) for key in changed}
            scheduler.load_state_dict({**state, **held})


def overridden(loaded: Any, then: Any, now: Any) -> Any:
    """Return the value that training continues with, after `setup` set `then` for the checkpoint's
    configuration and `now` for the current configuration.

    If a schedule has changed the value, the change is kept in proportion: a rate that is half of `then`
    becomes half of `now`.
    """
    if _same(then, now):
        return loaded
    if isinstance(now, Mapping) and isinstance(loaded, Mapping) and isinstance(then, Mapping):
        changed = {key: overridden(loaded.get(key), then.get(key), now[key]) for key in _changed(then, now)}
        return {**loaded, **changed}
    if all(isinstance(value, (list, tuple)) for value in (now, loaded, then)):
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


def assign(group: dict[str, Any], key: str, value: Any) -> None:
    """Set a value of an optimizer's parameter group; a tensor is kept and gets the new value."""
    if isinstance(group.get(key), torch.Tensor):
        # A compiled step may refer to this tensor object, so the tensor is changed in place.
        group[key].copy_(torch.as_tensor(value, dtype=group[key].dtype))
    else:
        group[key] = value
