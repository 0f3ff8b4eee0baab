"""What a trainer's state is: one worker's share of it, all workers' together, and its shape.

{"epoch", "global_step", "models", "optimizers", "schedulers", "scaler", "operator"}    alike on all workers
{"workers": [{"data_rank", "rng", "data"}, ...]}                                        each worker's own
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train.spread import joined, whole

PARTS = ("epoch", "global_step", "models", "optimizers", "schedulers", "operator")
"""Without these it is no trainer's state."""

MISFITS = (CheckpointError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What loading a state raises that is another model's, optimizer's or scheduler's."""


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
    """What a validation may change of one worker's state.

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
    """What schedulers change: learning rates, and whatever else stands beside a group's parameters."""
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
    """The trainer's state from all workers' shares; tensors may be in pieces.

    Args:
        states: one a worker, in order of rank.
    """
    shared: dict[str, Any] = joined([state.shared for state in states if state.shared is not None])
    return {**shared, "workers": [state.own for state in states]}


def whole_state(states: Sequence[WorkerState]) -> dict[str, Any]:
    """The same with whole tensors."""
    state: dict[str, Any] = whole(joined_state(states))
    return state


def own_of(workers: Sequence[Mapping[str, Any]], *, rank: int, data_rank: int) -> Mapping[str, Any] | None:
    """What a worker goes on with of the shares of those before, who may have been more or fewer, or None.

    Args:
        workers: "own" shares by rank.
        rank: of the worker.
        data_rank: its number among those who are dealt samples, which workers that hold one model together
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
                f"{what} holds {len(state[name])} {name}, but {count} were registered: load it into the "
                f"operator that it was saved from"
            )
