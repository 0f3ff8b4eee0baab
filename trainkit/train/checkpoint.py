"""Checkpoints: a folder of plain tensors and values, and a small file that says what they are.

    <path>/checkpoint.json    format, epoch, world size, and each file's size and checksum
    <path>/state.pt           models, optimizers, schedulers and the operator's own state
    <path>/shards/            tensors that were spread over workers (shards.py); "meta" tensors in state.pt

Nothing in it runs code when it is read.
"""

from __future__ import annotations

import importlib
import json
import pickle
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train.folders import resolve, written_aside

FORMAT = "trainkit.train"
VERSION = 1

SHARDS = "shards"
_METADATA = "checkpoint.json"
_STATE = "state.pt"
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    torch.Tensor,
    torch.Size,
    torch.dtype,
    torch.device,
    type(None),
)


@dataclass(frozen=True)
class Metadata:
    """What `checkpoint.json` says.

    Attributes:
        epoch: epochs finished.
        global_step: training steps run.
        world_size: workers that trained; the checkpoint loads on any number.
    """

    epoch: int
    global_step: int
    world_size: int


def write(path: Path, state: Mapping[str, Any], metadata: Metadata) -> None:
    """Write a checkpoint; what is at `path` is replaced in one step, once the new one is on disk.

    Raises:
        CheckpointError: `state` holds what can't be stored plainly, or writing failed; `path` is then as
            it was.
    """
    refuse_foreign_folder(path)
    values = plain(state, "state")
    try:
        with written_aside(path) as aside:
            fill(aside, values, metadata, {})
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError.
        raise CheckpointError(
            f"the checkpoint {path} was not written ({error}); what was there is as it was"
        ) from error


def fill(aside: Path, state: Any, metadata: Metadata, files: Mapping[str, Mapping[str, int]]) -> None:
    """Write the files of a checkpoint into its folder.

    Args:
        aside: the folder.
        state: of plain values.
        metadata: what `checkpoint.json` is to say.
        files: those that are there already, with their fingerprints.
    """
    torch.save(state, aside / _STATE)
    prints = {_STATE: fingerprint(aside / _STATE), **files}
    content = {"format": FORMAT, "version": VERSION, **asdict(metadata), "files": prints}
    (aside / _METADATA).write_text(json.dumps(content, indent=2) + "\n")


def read(path: Path, *, rank: int = 0, world_size: int = 1) -> tuple[dict[str, Any], Metadata]:
    """Read a checkpoint, its tensors on the CPU; those in shards are read when they are asked for.

    Args:
        path: the folder.
        rank: of workers that read it at once, each checks its share of the shards.
        world_size: how many these are.

    Raises:
        CheckpointError: there is none at `path`, it is damaged, or another program or a newer version
            wrote it.
    """
    where = resolve(path)
    if where.is_file():
        raise CheckpointError(
            f"{path} is a file, and checkpoints of TorchTrainer are folders: what torch.save wrote is given "
            f"to load_state_dict(torch.load(...)), if it has the layout of state_dict()"
        )
    try:
        content = json.loads((where / _METADATA).read_text())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} is not a checkpoint of TorchTrainer: its {_METADATA} is another program's"
            )
        if content["version"] > VERSION:
            raise CheckpointError(
                f"{path} has format version {content['version']}; this trainkit reads up to {VERSION}"
            )
        for name, expected in _share_of(content["files"], rank, world_size):
            if fingerprint(where / name) != expected:
                raise CheckpointError(
                    f"{path} is damaged: {name} is not as it was written; use an earlier checkpoint"
                )
        metadata = Metadata(content["epoch"], content["global_step"], content["world_size"])
        state = torch.load(where / _STATE, map_location="cpu", weights_only=True)
        if any(name.startswith(f"{SHARDS}/") for name in content["files"]):
            state = _with_shards(state, shard_files().read(where / SHARDS), ())
        return state, metadata
    except FileNotFoundError as error:
        raise CheckpointError(
            f"there is no whole checkpoint at {path}: {error.filename} is missing"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {path} can't be read: {error}") from error


def shard_files() -> Any:
    """The module shards.py, loaded when asked for: DTensors and what goes with them take a second."""
    return importlib.import_module("trainkit.train.shards")


def key_of(where: Sequence[Any]) -> str:
    """The name in the shards of the tensor that is found in the state by the keys `where`."""
    return "/".join(map(str, where))


def _with_shards(value: Any, stored: Mapping[str, Any], where: tuple[Any, ...]) -> Any:
    """`value` with what is stored in shards in the places of "meta" tensors."""
    if isinstance(value, torch.Tensor) and value.is_meta:
        return stored[key_of(where)]
    if isinstance(value, dict):
        for key, item in value.items():
            value[key] = _with_shards(item, stored, (*where, key))
    if type(value) in (list, tuple):
        return type(value)(_with_shards(item, stored, (*where, index)) for index, item in enumerate(value))
    return value


def _share_of(files: Mapping[str, Any], rank: int, world_size: int) -> list[tuple[str, Any]]:
    """The files that one of several readers checks: those that all read, and its share of the rest."""
    large = sorted(name for name in files if name.startswith(f"{SHARDS}/__"))
    left = {*large} - {*large[rank::world_size]}
    return [(name, expected) for name, expected in files.items() if name not in left]


def refuse_foreign_folder(path: Path) -> None:
    """Replacing a folder deletes it: only a checkpoint, or an empty folder, may be replaced."""
    if path.exists() and not (path / _METADATA).exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(
            f"{path} exists and is not a checkpoint, so it was left alone: save to a new path"
        )


def fingerprint(file: Path) -> dict[str, int]:
    """A file's size in bytes, and its checksum."""
    checksum, size = 0, 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return {"size_bytes": size, "crc32": checksum}


def plain(value: Any, where: str) -> Any:
    """`value` made of what a safe reader knows; a NumPy number becomes Python's.

    Raises:
        CheckpointError: something else is in it; the message says where.
    """
    if isinstance(value, dict):
        items = {
            plain(key, f"a key of {where}"): plain(item, f"{where}[{key!r}]") for key, item in value.items()
        }
        if type(value) not in (OrderedDict, Counter):
            return items
        # Modules keep their versions as an attribute of their OrderedDict; MultiStepLR counts in a Counter.
        rebuilt = type(value)(items)
        vars(rebuilt).update(plain(vars(value), f"attributes of {where}"))
        return rebuilt
    if isinstance(value, (list, tuple, set)) and not isinstance(value, torch.Size):
        kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
        return kind(plain(item, f"{where}[{index}]") for index, item in enumerate(value))
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, torch.nn.Parameter):
        return value.detach()
    if isinstance(value, _PLAIN):
        return value
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint can't hold: "
        f"it takes tensors, numbers, strings and containers of these; convert it in state_dict() and back "
        f"in load_state_dict()"
    )
