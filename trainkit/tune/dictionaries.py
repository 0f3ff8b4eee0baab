"""A dictionary as a checkpoint: one file in its folder. The one pickle there is, as it may hold anything.

Read only checkpoints that you trust: reading a pickle runs what it says.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from trainkit.errors import CheckpointError

FILENAME = "dictionary.pkl"
RETURNED = ".returned_path"
"""Holds the path, within the folder, that `save_checkpoint` returned."""


def write_dictionary(folder: str, state: Mapping[str, Any]) -> None:
    """Write `state` into `folder`.

    Raises:
        CheckpointError: a part of it can't be pickled.
    """
    try:
        data = cloudpickle.dumps(dict(state))
    except Exception as error:
        raise CheckpointError(
            f"a checkpoint can't be made of the dictionary with {', '.join(map(repr, state))}: {error}"
        ) from error
    Path(folder, FILENAME).write_bytes(data)


def read_dictionary(folder: str) -> dict[str, Any]:
    """Return what `write_dictionary` wrote into `folder`.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    try:
        state: dict[str, Any] = pickle.loads(Path(folder, FILENAME).read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"the checkpoint in {folder} was not made of a dictionary: read its files, in as_directory()"
        ) from None
    except Exception as error:
        raise CheckpointError(
            f"the dictionary in {folder} can't be read: {type(error).__name__}: {error}"
        ) from error
    return state


def keep_returned(folder: str, returned: Any) -> None:
    """Keep in `folder` what `save_checkpoint(folder)` returned besides writing files.

    Raises:
        CheckpointError: it is neither None, a dictionary, nor a path within the folder.
    """
    if returned is None:
        return
    if isinstance(returned, Mapping):
        write_dictionary(folder, returned)
        return
    path = Path(returned) if isinstance(returned, (str, Path)) else None
    if path is None or not path.is_relative_to(folder) or not path.exists():
        raise CheckpointError(
            f"save_checkpoint({folder!r}) returned {returned!r}: return None, a dictionary, or the path "
            "of a file that it has written into that folder"
        )
    if path != Path(folder):
        Path(folder, RETURNED).write_text(str(path.relative_to(folder)))


def given_back(folder: str) -> Any:
    """What `load_checkpoint` is called with: the dictionary or path that was returned, or the folder."""
    if Path(folder, FILENAME).exists():
        return read_dictionary(folder)
    returned = Path(folder, RETURNED)
    return str(Path(folder, returned.read_text())) if returned.exists() else folder
