"""`ray.tune.utils`: functions on dictionaries, and a check of a trainable's checkpoints."""

from __future__ import annotations

import datetime
import json
import math
import os
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from trainkit.tune.core.metrics import merge_dicts as merge_dicts
from trainkit.tune.trial.trainable import Trainable

STEPS = 3
"""So many steps are taken before `validate_save_restore` saves."""


def date_str() -> str:
    """Return the date and the time as parts of names of folders have them."""
    return f"{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"


def flatten_dict(
    dt: Mapping[str, Any], delimiter: str = "/", prevent_delimiter: bool = False
) -> dict[str, Any]:
    """Return a nested dictionary as one level, with names such as "a/b"; an empty dictionary stays a value.

    Args:
        dt: the dictionary.
        delimiter: between the names.
        prevent_delimiter: refuse names that contain it.

    Raises:
        ValueError: a name contains the delimiter, and it is to be refused.
    """
    flat: dict[str, Any] = {}
    for key, value in dt.items():
        if prevent_delimiter and delimiter in str(key):
            raise ValueError(f"the name {key!r} contains {delimiter!r}: give another delimiter=")
        if isinstance(value, Mapping) and value:
            inner = flatten_dict(value, delimiter, prevent_delimiter)
            flat.update({f"{key}{delimiter}{name}": each for name, each in inner.items()})
        else:
            flat[key] = value
    return flat


def unflatten_dict(dt: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Return the nested dictionary that `flatten_dict` makes `dt` of."""
    nested: dict[str, Any] = {}
    for path, value in dt.items():
        *outer, last = path.split(delimiter)
        place = nested
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return nested


def unflattened_lookup(flat_key: str, lookup: Mapping[str, Any], delimiter: str = "/", **options: Any) -> Any:
    """Return the value at a path such as "a/b".

    Args:
        flat_key: the path.
        lookup: a nested dictionary.
        delimiter: between the names.
        options: `default`, which is returned where there is none.

    Raises:
        KeyError: there is none, and no default.
    """
    place: Any = lookup
    try:
        for name in [flat_key] if flat_key in lookup else flat_key.split(delimiter):
            place = place[int(name)] if isinstance(place, (list, tuple)) else place[name]
    except (KeyError, IndexError, TypeError, ValueError):
        if "default" in options:
            return options["default"]
        raise KeyError(f"there is no value at {flat_key!r}") from None
    return place


def deep_update(
    original: MutableMapping[str, Any], new_dict: Mapping[str, Any], new_keys_allowed: bool = False
) -> MutableMapping[str, Any]:
    """Put the values of one nested dictionary into another, and return that.

    Args:
        original: the one that is changed.
        new_dict: the values.
        new_keys_allowed: names at the top that `original` lacks may be added.

    Raises:
        KeyError: there is such a name, and it may not.
    """
    for key, value in new_dict.items():
        if key not in original and not new_keys_allowed:
            raise KeyError(f"there is no {key!r}: give new_keys_allowed=True to add it")
        if isinstance(value, Mapping) and isinstance(original.get(key), MutableMapping):
            deep_update(original[key], value, new_keys_allowed=True)
        else:
            original[key] = value
    return original


def validate_save_restore(
    trainable_cls: type[Trainable], config: Mapping[str, Any] | None = None, num_gpus: int = 0
) -> bool:
    """Check, in this process, that a trainable saves, and that another one goes on from that.

    Args:
        trainable_cls: the class.
        config: of the trial.
        num_gpus: Ray's; the trainable sees what this process sees.

    Returns:
        True. What the class raises is raised.
    """
    del num_gpus
    first, second = (trainable_cls(config=dict(config or {})) for _ in range(2))
    try:
        for _ in range(STEPS):
            first.train()
        with tempfile.TemporaryDirectory() as folder:
            second.restore(first.save(os.path.join(folder, "checkpoint")))
            second.train()
    finally:
        first.stop()
        second.stop()
    return True


class MyTrainableClass(Trainable):
    """Trainable whose `episode_reward_mean` rises to `height`, the slower the larger `width` is."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin at step 0."""
        self.timestep = 0

    def step(self) -> dict[str, Any]:
        """Return the reward of the next step."""
        self.timestep += 1
        rise = math.tanh(self.timestep / self.config.get("width", 1))
        return {"episode_reward_mean": rise * self.config.get("height", 1)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the step that it has come to."""
        Path(checkpoint_dir, "checkpoint").write_text(json.dumps({"timestep": self.timestep}))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Go on from the step that was written."""
        self.timestep = json.loads(Path(checkpoint, "checkpoint").read_text())["timestep"]
