"""Checkpoints that no single worker could write: all fill one folder, which is there once all are done.

    worker 0    make the folder aside ─▶ ─┬─ write own shards ─▶ state.pt, checkpoint.json ─▶ take its place
    worker n                              └─ write own shards ─▶

After each arrow the workers tell each other whether they could; if one could not, nothing is replaced.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train.agreement import agreed
from trainkit.train.checkpoint import (
    SHARDS,
    Metadata,
    fill,
    fingerprint,
    key_of,
    plain,
    read,
    refuse_foreign_folder,
    shard_files,
)
from trainkit.train.folders import aside_of, written_aside
from trainkit.train.process_group import WorkerGroup
from trainkit.train.spread import joined, like_mapping
from trainkit.train.tensors import is_spread

_SPREAD = ("models", "optimizers")
"""Parts of the state of which a worker may hold some tensors alone."""


def write_sharded(path: Path, state: Mapping[str, Any], metadata: Metadata, group: WorkerGroup) -> None:
    """Write a checkpoint, on all workers at once; see `write`.

    Args:
        path: a folder that all workers reach.
        state: what this worker holds; all tensors of models and optimizers, and every DTensor, are written
            in shards, and of the rest worker 0's is.
        metadata: alike on all workers.
        group: the workers.

    Raises:
        CheckpointError: one of the workers could not; `path` is as it was, and all of them raise.
    """

    def complaint(reason: str) -> str:
        return f"the checkpoint {path} was not written ({reason}); what was there is as it was"

    first = group.rank == 0
    spread: dict[str, torch.Tensor] = {}
    with ExitStack() as place:
        aside, token = path, secrets.randbits(62)
        with agreed(group, complaint):
            outline = plain(_without_spread(state, (), spread), "state")
            if first:
                refuse_foreign_folder(path)
                aside = place.enter_context(written_aside(path))
                _sign(aside, token).touch()
        writer, token = group.broadcast_integers([os.getpid(), token])
        aside = aside_of(path, writer)
        with agreed(group, complaint):
            if not _sign(aside, token).exists():
                raise CheckpointError(
                    f"worker {group.rank} does not see the folder that worker 0 writes to, {path}: workers "
                    f"on several machines need a folder that all of them reach, on a shared file system"
                )
        with agreed(group, complaint):
            shard_files().write(aside / SHARDS, spread)
        with agreed(group, complaint):
            own = (aside / SHARDS).glob(f"__{group.rank}_*")
            written = {f"{SHARDS}/{file.name}": fingerprint(file) for file in own}
        outlines = group.gather_values((outline, written))
        with agreed(group, complaint):
            if first:
                _sign(aside, token).unlink()
                files = {name: print_ for _, each in outlines for name, print_ in each.items()}
                _refuse_missing(aside, files)
                index = f"{SHARDS}/.metadata"
                files[index] = fingerprint(aside / index)
                fill(aside, joined([each for each, _ in outlines]), metadata, files)
            # Worker 0's takes its place here.
            place.close()


def read_sharded(path: Path, group: WorkerGroup) -> dict[str, Any]:
    """Read a checkpoint on all workers at once, each of which checks its share of the shards.

    Raises:
        CheckpointError: as of `read`, on all workers if on one.
    """
    with agreed(group, lambda reason: f"the checkpoint {path} was not loaded ({reason})"):
        state, _ = read(path, rank=group.rank, world_size=group.world_size)
    return state


def _without_spread(value: Any, where: tuple[Any, ...], spread: dict[str, torch.Tensor]) -> Any:
    """`value` with "meta" tensors instead of those that are put into `spread`."""
    if isinstance(value, torch.Tensor) and (is_spread(value) or where[0] in _SPREAD):
        spread[key_of(where)] = value.detach()
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, Mapping):
        items = {key: _without_spread(item, (*where, key), spread) for key, item in value.items()}
        return like_mapping(value, items)
    if type(value) in (list, tuple):
        return type(value)(_without_spread(item, (*where, index), spread) for index, item in enumerate(value))
    return value


def _sign(aside: Path, token: int) -> Path:
    """By its being there a worker knows that it sees the folder which worker 0 made, not one of that name."""
    return aside / f"writing-{token}"


def _refuse_missing(aside: Path, files: Mapping[str, Mapping[str, int]]) -> None:
    for name, expected in files.items():
        file = aside / name
        if not file.exists() or file.stat().st_size != expected["size_bytes"]:
            raise CheckpointError(
                f"{name}, which a worker wrote, is not there for worker 0 as it was written: workers on "
                f"several machines need a folder that all of them reach, on a shared file system"
            )
