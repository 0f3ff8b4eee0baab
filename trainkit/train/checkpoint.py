"""Checkpoints: a folder of plain tensors and values, and a small file that says what they are.

    <path>/checkpoint.json    format, epoch, world size, and each file's size and checksum
    <path>/state.pt           models, optimizers, schedulers and the operator's own state

Nothing in it runs code when it is read.
"""

from __future__ import annotations

import json
import pickle
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train import folders

FORMAT = "trainkit.train"
VERSION = 1

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
    _refuse_foreign_folder(path)
    plain = _plain(state, "state")
    try:
        with folders.written_aside(path) as aside:
            torch.save(plain, aside / _STATE)
            files = {_STATE: _fingerprint(aside / _STATE)}
            content = {"format": FORMAT, "version": VERSION, **asdict(metadata), "files": files}
            (aside / _METADATA).write_text(json.dumps(content, indent=2) + "\n")
    except (OSError, RuntimeError) as error:  # torch.save reports a full disk as a RuntimeError.
        raise CheckpointError(
            f"the checkpoint {path} was not written ({error}); what was there is as it was"
        ) from error


def read(path: Path) -> tuple[dict[str, Any], Metadata]:
    """Read a checkpoint, its tensors on the CPU.

    Raises:
        CheckpointError: there is none at `path`, it is damaged, or another program or a newer version
            wrote it.
    """
    where = folders.resolve(path)
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
        for name, expected in content["files"].items():
            if _fingerprint(where / name) != expected:
                raise CheckpointError(
                    f"{path} is damaged: {name} is not as it was written; use an earlier checkpoint"
                )
        metadata = Metadata(content["epoch"], content["global_step"], content["world_size"])
        return torch.load(where / _STATE, map_location="cpu", weights_only=True), metadata
    except FileNotFoundError as error:
        raise CheckpointError(
            f"there is no whole checkpoint at {path}: {error.filename} is missing"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {path} can't be read: {error}") from error


def _refuse_foreign_folder(path: Path) -> None:
    """Replacing a folder deletes it: only a checkpoint, or an empty folder, may be replaced."""
    if path.exists() and not (path / _METADATA).exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(
            f"{path} exists and is not a checkpoint, so it was left alone: save to a new path"
        )


def _fingerprint(file: Path) -> dict[str, int]:
    checksum, size = 0, 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return {"size_bytes": size, "crc32": checksum}


def _plain(value: Any, where: str) -> Any:
    """`value` made of what a safe reader knows; a NumPy number becomes Python's.

    Raises:
        CheckpointError: something else is in it; the message says where.
    """
    if isinstance(value, dict):
        items = {
            _plain(key, f"a key of {where}"): _plain(item, f"{where}[{key!r}]") for key, item in value.items()
        }
        if type(value) not in (OrderedDict, Counter):
            return items
        # Modules keep their versions as an attribute of their OrderedDict; MultiStepLR counts in a Counter.
        rebuilt = type(value)(items)
        vars(rebuilt).update(_plain(vars(value), f"attributes of {where}"))
        return rebuilt
    if isinstance(value, (list, tuple, set)) and not isinstance(value, torch.Size):
        kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
        return kind(_plain(item, f"{where}[{index}]") for index, item in enumerate(value))
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
