"""Checkpoints: folders of plain tensors and values, written by one or all workers and replaced as a whole.

    <path>/checkpoint.json    format, epoch, world size, each file's size and checksum, and its own checksum
    <path>/state.pt           the state, readable by torch.load(..., weights_only=True)
    <path>/shards/            tensors that are sharded over workers (shards.py); state.pt has "meta" tensors

A checkpoint is first written to a temporary folder beside its final path, and then moved to the final path in
one step. So even if the program is killed, either the complete old or the complete new checkpoint exists. If
no single worker has the whole state, all workers write into the same temporary folder:

    worker 0    make temporary folder ─▶ ─┬─ write own shards ─▶ state.pt, checkpoint.json ─▶ move to <path>
    worker n                              └─ write own shards ─▶

After each step, which is an arrow in the diagram, the workers tell each other if they succeeded. If a worker
failed, the old checkpoint stays.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import importlib
import json
import logging
import os
import pickle
import secrets
import shutil
import socket
import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trainkit.errors import CheckpointError
from trainkit.train.distributed.failure_cause import file_error
from trainkit.train.distributed.process_group import ProcessGroup, agreed
from trainkit.train.distributed.tensors import Spread, is_spread, joined, map_state

log = logging.getLogger(__name__)

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_SUPPORTED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM}


@contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill; the folder replaces `path` in one step at the end of the block.

    A reader of `path` always finds either the complete old contents or the complete new contents, even if the
    writer is killed or the power fails. If the block raises an error, `path` is unchanged. Leftovers of an
    earlier, killed writer are removed.

    Args:
        path: final path of the folder; an existing folder is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_left_over(path.parent, glob.escape(path.name))
    if path.exists():
        shutil.rmtree(_previous(path), ignore_errors=True)
    aside = aside_of(path, os.getpid(), _own_host())
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        for file in sorted(aside.rglob("*")):
            sync(file)
        sync(aside)
        _take_place(aside, path)
        sync(path.parent)
    finally:
        # After an exchange of the two folders, `aside` contains the old checkpoint, which is no longer
        # needed.
        shutil.rmtree(aside, ignore_errors=True)


def remove_all(outdated: Iterable[Path]) -> None:
    """Delete checkpoints. Each checkpoint disappears in one step."""
    for path in outdated:
        aside = aside_of(path, os.getpid(), _own_host())
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("the outdated checkpoint %s can't be deleted: %s", path, error)
        shutil.rmtree(aside, ignore_errors=True)


def aside_of(path: Path, writer: int, host: int) -> Path:
    """Return the temporary folder that the process `writer` of a machine fills before it replaces `path`."""
    return path.with_name(f".{path.name}.writing-{host:08x}-{writer}")


def _own_host() -> int:
    """Return a number that identifies this machine, for the names of temporary folders on a shared file
    system.
    """
    return zlib.crc32(socket.gethostname().encode())


def resolve(path: Path) -> Path:
    """Return `path`, or its backup if a process was killed after it had moved `path` to the backup.

    A backup is only made on file systems that can't exchange two folders in one step.
    """
    previous = _previous(path)
    return previous if not path.exists() and previous.exists() else path


def _take_place(aside: Path, path: Path) -> None:
    try:
        os.rename(aside, path)  # The rename works if `path` is missing or an empty folder.
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if _exchange(aside, path):
        return
    previous = _previous(path)
    os.rename(path, previous)
    os.rename(aside, path)
    shutil.rmtree(previous)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False if the system or its file system can't do this."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_SUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _previous(path: Path) -> Path:
    return path.with_name(f".{path.name}.previous")


def remove_left_over(folder: Path, pattern: str, *, everywhere: bool = False) -> None:
    """Remove the temporary folders of killed writers of checkpoints in `folder` whose names fit `pattern`.

    Args:
        folder: folder of the checkpoints.
        pattern: pattern of the checkpoints' names.
        everywhere: True if no process on another machine writes checkpoints in `folder` any more.
    """
    for left in folder.glob(f".{pattern}.writing-*"):
        host, pid = left.name.split("-")[-2:]
        own = host == f"{_own_host():08x}"
        if not Path(f"/proc/{pid}").exists() if own else everywhere:
            shutil.rmtree(left, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


FORMAT = "trainkit.train"
VERSION = 1

SHARDS = "shards"
_METADATA = "checkpoint.json"
_STATE = "state.pt"
_EARLIER = "use an earlier checkpoint"
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
class CheckpointMetadata:
    """Content of `checkpoint.json`.

    Attributes:
        epoch: number of finished epochs.
        global_step: number of training steps that have run.
        world_size: number of workers that trained; any number of workers can load the checkpoint.
    """

    epoch: int
    global_step: int
    world_size: int


def write(path: Path, state: Mapping[str, Any], metadata: CheckpointMetadata) -> None:
    """Write a checkpoint; `path` is replaced in one step after the new checkpoint is on disk.

    Args:
        path: folder of the checkpoint.
        state: the whole state.
        metadata: contents of `checkpoint.json`.

    Raises:
        CheckpointError: `state` contains values that can't be stored plainly, or writing failed; `path` is
            then unchanged.
    """
    refuse_foreign_folder(path)
    values = plain(state, "state")
    try:
        with written_aside(path) as aside:
            fill(aside, values, metadata, {})
    except (OSError, RuntimeError) as error:
        raise CheckpointError(_not_written(path, str(error))) from error


def _not_written(path: Path, reason: str) -> str:
    if any(os.strerror(code) in reason for code in (errno.ENOSPC, errno.EDQUOT)):
        folder = next(folder for folder in path.parents if folder.exists())
        reason += f"; {shutil.disk_usage(folder).free / 1e6:.1f} MB are free in {folder}"
    return f"the checkpoint {path} was not written ({reason}); an earlier checkpoint there is unchanged"


def fill(
    aside: Path, state: Any, metadata: CheckpointMetadata, files: Mapping[str, Mapping[str, int]]
) -> None:
    """Write the files of a checkpoint into its folder.

    Args:
        aside: folder to fill.
        state: the state, made of plain values.
        metadata: contents of `checkpoint.json`.
        files: size and checksum of each file that is already in the folder, by file name.
    """
    file = aside / _STATE
    try:
        with file.open("wb") as stream:
            torch.save(state, stream)
    except RuntimeError as error:
        raise file_error(error) from None
    prints = {_STATE: fingerprint(file), **files}
    content = {"format": FORMAT, "version": VERSION, **asdict(metadata), "files": prints}
    content["crc32"] = _checksum(content)
    (aside / _METADATA).write_text(json.dumps(content, indent=2) + "\n")


def read(path: Path, *, rank: int = 0, world_size: int = 1) -> tuple[dict[str, Any], CheckpointMetadata]:
    """Read a checkpoint, with tensors on the CPU; tensors in shards are read on access.

    Args:
        path: folder of the checkpoint.
        rank: this worker's rank among the workers that read the checkpoint together; each worker checks a
            share of the shard files.
        world_size: number of workers that read the checkpoint together.

    Raises:
        CheckpointError: `path` is not a checkpoint, the checkpoint is damaged, or it was written by a
            different program or a newer version.
    """
    where = resolve(path)
    if where.is_file():
        raise CheckpointError(
            f"{path} is a file, but a checkpoint of TorchTrainer is a folder. Load a file of torch.save with "
            "load_state_dict(torch.load(...)), if the file has the layout of state_dict()"
        )
    try:
        content = json.loads((where / _METADATA).read_text())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise CheckpointError(
                f"{path} is not a TorchTrainer's checkpoint: its {_METADATA} has other content"
            )
        if content["version"] > VERSION:
            raise CheckpointError(
                f"{path} has format version {content['version']}, but this trainkit reads up to {VERSION}"
            )
        # Earlier versions wrote no checksum of this file, so a missing checksum is accepted.
        if content.pop("crc32", None) not in (None, _checksum(content)):
            raise CheckpointError(f"{path} is damaged: {_METADATA} does not match its checksum; {_EARLIER}")
        for name, expected in _share_of(content["files"], rank, world_size):
            if fingerprint(where / name) != expected:
                raise CheckpointError(f"{path} is damaged: {name} has a wrong size or checksum; {_EARLIER}")
        metadata = CheckpointMetadata(content["epoch"], content["global_step"], content["world_size"])
        state = torch.load(where / _STATE, map_location="cpu", weights_only=True)
        if any(name.startswith(f"{SHARDS}/") for name in content["files"]):
            stored = shard_files().read(where / SHARDS)
            state = map_state(
                lambda leaf, keys: stored[key_of(keys)] if getattr(leaf, "is_meta", False) else leaf, state
            )
        return state, metadata
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not a complete checkpoint: {error.filename} is missing") from error
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"the checkpoint {path} can't be read: {error}") from error


def is_checkpoint(path: Path) -> bool:
    """Return True if `path` is the folder of a checkpoint, whole or damaged."""
    return (path / _METADATA).is_file() or (path / _STATE).is_file()


def damage(path: Path) -> CheckpointError | None:
    """Return the error that a damaged checkpoint causes when it is read.

    Return None for a checkpoint without damage, and for a folder of a different program or newer version.
    """
    if not is_checkpoint(path):
        return None
    try:
        content = json.loads((path / _METADATA).read_text())
        if content["format"] != FORMAT or content["version"] > VERSION:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        pass  # `read` raises an error that describes the damage.
    try:
        read(path)
    except CheckpointError as error:
        return error
    return None


def _checksum(content: Mapping[str, Any]) -> int:
    """Return the checksum of the entries of `checkpoint.json`, except the entry for the checksum itself."""
    return zlib.crc32(json.dumps(content).encode())


def shard_files() -> Any:
    """Return the module shards.py, which is imported on demand, because the import of DTensors takes a
    second.
    """
    return importlib.import_module("trainkit.train.checkpoint.shards")


def key_of(where: Sequence[Any]) -> str:
    """Return the name that a tensor has in the shards; `where` are the tensor's keys in the state."""
    return "/".join(map(str, where))


def _share_of(files: Mapping[str, Any], rank: int, world_size: int) -> list[tuple[str, Any]]:
    """Return the files that worker `rank` checks: all small files, and every `world_size`-th shard file."""
    large = sorted(name for name in files if name.startswith(f"{SHARDS}/__"))
    left = {*large} - {*large[rank::world_size]}
    return [(name, expected) for name, expected in files.items() if name not in left]


def refuse_foreign_folder(path: Path) -> None:
    """Raise CheckpointError if `path` is not a checkpoint, because replacing it would delete its contents."""
    if path.exists() and not (path / _METADATA).exists() and (not path.is_dir() or any(path.iterdir())):
        raise CheckpointError(f"{path} exists and is not a checkpoint, so it was kept: save to a new path")


def fingerprint(file: Path) -> dict[str, int]:
    """Return a file's size in bytes and its checksum."""
    checksum, size = 0, 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum, size = zlib.crc32(block, checksum), size + len(block)
    return {"size_bytes": size, "crc32": checksum}


def plain(value: Any, where: str) -> Any:
    """Return `value` in types that torch loads with `weights_only=True`; NumPy numbers become Python numbers.

    Raises:
        CheckpointError: `value` contains an object of a type that a checkpoint can't store; the message names
            its position.
    """
    if isinstance(value, dict):
        items = {
            plain(key, f"a key of {where}"): plain(item, f"{where}[{key!r}]") for key, item in value.items()
        }
        if type(value) not in (OrderedDict, Counter):
            return items
        # A module's state is an OrderedDict with the modules' versions in an attribute, and MultiStepLR's
        # state contains a Counter. So both classes are rebuilt with their attributes.
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
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint can't store: "
        "convert it to tensors, numbers, strings or containers of these in state_dict(), and back in "
        "load_state_dict()"
    )


_SPREAD = ("models", "optimizers", "ema")
"""Keys of the trainer's state whose tensors may exist on only one of the workers."""


def write_sharded(
    path: Path, state: Mapping[str, Any], metadata: CheckpointMetadata, group: ProcessGroup
) -> None:
    """Write a checkpoint on all workers together; see `write`.

    Args:
        path: a folder that all workers can reach.
        state: this worker's state. All tensors of models and optimizers, every DTensor and every `Spread` are
            written as shards, part by part, so no whole tensor is made. All other values are taken from
            worker 0.
        metadata: contents of `checkpoint.json`, equal on all workers.
        group: the workers.

    Raises:
        CheckpointError: a worker failed; `path` is unchanged, and all workers raise.
    """
    first = group.rank == 0
    spread: dict[str, torch.Tensor | Spread] = {}
    with ExitStack() as place:
        aside, token = path, secrets.randbits(62)
        with agreed(group, partial(_not_written, path)):
            outline = plain(_without_spread(state, spread), "state")
            if first:
                refuse_foreign_folder(path)
                aside = place.enter_context(written_aside(path))
                _sign(aside, token).touch()
        writer, host, token = group.broadcast_integers([os.getpid(), _own_host(), token])
        aside = aside_of(path, writer, host)
        with agreed(group, partial(_not_written, path)):
            if not _sign(aside, token).exists():
                raise CheckpointError(
                    f"worker {group.rank} can't see {path}, the folder that worker 0 writes: workers on "
                    "several machines need a folder on a shared file system"
                )
        with agreed(group, partial(_not_written, path)):
            shard_files().write(aside / SHARDS, spread)
        with agreed(group, partial(_not_written, path)):
            own = (aside / SHARDS).glob(f"__{group.rank}_*")
            written = {f"{SHARDS}/{file.name}": fingerprint(file) for file in own}
        outlines = group.gather_values((outline, written))
        with agreed(group, partial(_not_written, path)):
            if first:
                _sign(aside, token).unlink()
                files = {name: print_ for _, each in outlines for name, print_ in each.items()}
                _refuse_missing(aside, files)
                index = f"{SHARDS}/.metadata"
                files[index] = fingerprint(aside / index)
                fill(aside, joined([each for each, _ in outlines]), metadata, files)
            # On worker 0, this call moves the temporary folder to `path`.
            place.close()


def read_sharded(path: Path, group: ProcessGroup) -> dict[str, Any]:
    """Read a checkpoint on all workers together; each worker checks a share of the shard files.

    Raises:
        CheckpointError: a worker can't read the checkpoint, for a reason listed at `read`; all workers then
            raise the error.
    """
    with agreed(group, lambda reason: f"the checkpoint {path} was not loaded ({reason})"):
        state, _ = read(path, rank=group.rank, world_size=group.world_size)
    return state


def _without_spread(state: Mapping[str, Any], spread: dict[str, torch.Tensor | Spread]) -> Any:
    """Move all sharded tensors of `state` to `spread`; return `state` with "meta" tensors in their places."""

    def left(leaf: Any, where: tuple[Any, ...]) -> Any:
        if isinstance(leaf, Spread):
            spread[key_of(where)] = leaf
        elif isinstance(leaf, torch.Tensor) and (is_spread(leaf) or where[0] in _SPREAD):
            spread[key_of(where)] = leaf.detach()
        else:
            return leaf
        return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")

    return map_state(left, state)


def _sign(aside: Path, token: int) -> Path:
    """Return the path of a marker file; a worker that sees the file has access to worker 0's folder."""
    return aside / f"writing-{token}"


def _refuse_missing(aside: Path, files: Mapping[str, Mapping[str, int]]) -> None:
    for name, expected in files.items():
        file = aside / name
        if not file.exists() or file.stat().st_size != expected["size_bytes"]:
            raise CheckpointError(
                f"worker 0 can't see the complete file {name}, which another worker wrote: workers on "
                "several machines need a folder on a shared file system"
            )
