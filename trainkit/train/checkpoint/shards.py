"""Sharded tensors on disk, in the files of torch.distributed.checkpoint.

    <folder>/__<rank>_0.distcp    the parts of tensors that one worker wrote
    <folder>/.metadata            the index: file and position of each part of each tensor

The index is a pickle in torch's format. Reading it runs no code, because the unpickler only knows the classes
of such an index, and only tensors are stored.

Source: https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save

from trainkit.errors import CheckpointError
from trainkit.train.distributed.failure_cause import file_error
from trainkit.train.distributed.tensors import Spread

_CLASSES = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "_MEM_FORMAT_ENCODING",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "collections": {"OrderedDict"},
    "pathlib": {"Path", "PosixPath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePosixPath"},
}


class _Writer(FileSystemWriter):
    """Torch's writer of shards, with error messages that also state the cause."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise file_error(error) from None


@dataclass(frozen=True)
class _Parts:
    """A `Spread` with all its parts, as an object that torch's planner asks for its parts.

    Source: https://github.com/pytorch/pytorch/blob/main/torch/distributed/_checkpointable.py
    """

    tensor: Spread

    def __create_write_items__(self, name: str, _: object) -> list[WriteItem]:
        size = torch.Size(self.tensor.shape)
        return [
            WriteItem(
                MetadataIndex(name, offset := torch.Size(box.offset)),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    ChunkStorageMetadata(offset, box.tensor.shape),
                    TensorProperties.create_from_tensor(box.tensor),
                    size,
                ),
            )
            for box in self.tensor.boxes
        ]


class _SavePlanner(DefaultSavePlanner):
    """Torch's planner, which can also read the values of `_Parts`."""

    def lookup_object(self, index: MetadataIndex) -> Any:
        found = self.state_dict[index.fqn]
        if not isinstance(found, _Parts):
            return super().lookup_object(index)
        return next(box.tensor for box in found.tensor.boxes if torch.Size(box.offset) == index.offset)


def write(folder: Path, tensors: Mapping[str, torch.Tensor | Spread]) -> None:
    """Write this worker's parts of `tensors` while all workers write theirs; equal copies are written once.

    Args:
        folder: a folder that all workers can reach.
        tensors: tensors by name: DTensors, whole tensors that some workers may lack, or `Spread` tensors with
            all parts, which only a single process may write.
    """
    # A tensor without values has no parts, but needs a name in the index, so it is written as a whole.
    held = {
        name: (_Parts(tensor) if tensor.boxes else tensor.whole()) if isinstance(tensor, Spread) else tensor
        for name, tensor in tensors.items()
    }
    with warnings.catch_warnings():
        # The warning is hidden, because torch warns that it chooses a process group although `no_dist` leaves
        # no choice.
        warnings.simplefilter("ignore")
        save(
            held,
            storage_writer=_Writer(folder, thread_count=1, sync_files=True),
            planner=_SavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True),
            no_dist=not torch.distributed.is_initialized(),
        )


def read(folder: Path) -> dict[str, Spread]:
    """Return all tensors of `folder` by name; a tensor is read when a part of it is requested.

    Raises:
        CheckpointError: the index is damaged, or contains something other than tensors.
    """
    reader = _Reader(folder)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    found: dict[str, Spread] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{folder} has {name}, which is not a tensor: another program wrote it")
        found[name] = Stored(tuple(entry.size), entry.properties.dtype, (), name, entry, reader)
    return found


@dataclass(frozen=True)
class Stored(Spread):
    """A tensor whose parts are on disk.

    Attributes:
        name: the tensor's name in the index.
        entry: description of the tensor's parts.
        reader: reader of the folder.
    """

    name: str
    entry: TensorStorageMetadata
    reader: _Reader

    def part(self, offset: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        result = torch.empty(tuple(shape), dtype=self.dtype)
        if not result.numel():
            return result
        wanted = ChunkStorageMetadata(torch.Size(offset), torch.Size(shape))
        items = create_read_items_for_chunk_list(self.name, self.entry, [wanted])
        filled = sum(item.lengths.numel() for item in items)
        if filled != result.numel():
            raise CheckpointError(f"{self.name} is damaged: it has only {filled} of {result.numel()} values")
        self.reader.read_data(LoadPlan(items), _Into(result)).wait()
        return result


class _Into(DefaultLoadPlanner):
    """Load planner that reads the stored parts of one tensor directly into a given tensor."""

    def __init__(self, result: torch.Tensor) -> None:
        super().__init__()
        self._result = result

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        place = self._result
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            place = place.narrow(dim, start, length)
        return place

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Do nothing, because the values were read directly into the given tensor."""


class _Reader(FileSystemReader):
    """Reader that loads an index through `_Unpickler`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(self.path) / ".metadata"
        try:
            with path.open("rb") as stream:
                metadata = _Unpickler(stream).load()
        except FileNotFoundError:
            raise
        except Exception as error:  # A damaged pickle may raise any error.
            raise CheckpointError(f"{path} can't be read: {error}") from error
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise CheckpointError(f"{path} is not the index of a checkpoint")
        for place in metadata.storage_data.values():
            name = Path(place.relative_path)
            if name.is_absolute() or ".." in name.parts:
                raise CheckpointError(f"{path} refers to {name}, which is outside of the checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        return metadata


class _Unpickler(pickle.Unpickler):
    """Unpickler that refuses all classes that an index of tensors does not need."""

    def find_class(self, module: str, name: str) -> Any:
        if name in _CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        raise pickle.UnpicklingError(f"an index of tensors must not contain a {module}.{name}")
