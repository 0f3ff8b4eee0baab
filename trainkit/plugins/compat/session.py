"""Functions to call inside a trial, under the names of `ray.air.session`."""

from __future__ import annotations

from trainkit.tune.trial.context import (
    get_checkpoint,
    get_context,
    get_trial_dir,
    get_trial_id,
    get_trial_name,
    get_trial_resources,
    report,
)

__all__ = [
    "get_checkpoint",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_node_rank",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
]


def get_experiment_name() -> str:
    """Return the name of the experiment's folder."""
    return get_context().get_experiment_name()


def get_world_size() -> int:
    """Return 1: exactly one process of each trial reports."""
    return get_context().get_world_size()


def get_world_rank() -> int:
    """Return 0, the rank of the trial's only reporting process."""
    return get_context().get_world_rank()


def get_local_rank() -> int:
    """Return 0, the rank of the trial's only reporting process on its machine."""
    return get_context().get_local_rank()


def get_local_world_size() -> int:
    """Return 1: exactly one process of this trial reports on this machine."""
    return get_context().get_local_world_size()


def get_node_rank() -> int:
    """Return 0, the rank of the machine on which the trial's reporting process runs."""
    return get_context().get_node_rank()
