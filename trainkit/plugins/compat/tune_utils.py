"""Functions under the names of `ray.tune.utils`: convert dictionaries, check a trainable, wait for a GPU."""

from __future__ import annotations

import inspect
import json
import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.compat.ray_util import inspect_serializability
from trainkit.runtime.api import get_gpu_ids, is_initialized
from trainkit.settings import logger
from trainkit.tune.core.metrics import merge_dicts as merge_dicts
from trainkit.tune.trial.trainable import Trainable

STEPS = 3
"""Number of steps that `validate_save_restore` runs before it saves."""


def flatten_dict(
    dt: Mapping[str, Any],
    delimiter: str = "/",
    prevent_delimiter: bool = False,
    flatten_list: bool = False,
) -> dict[str, Any]:
    """Convert a nested dictionary to a flat dictionary, with keys such as "a/b"; empty dictionaries are left
    out.

    Args:
        dt: nested dictionary.
        delimiter: text between the parts of a key.
        prevent_delimiter: True: refuse keys that already contain the delimiter.
        flatten_list: True: also flatten lists, with indices as names.

    Raises:
        ValueError: `prevent_delimiter` is True and a key contains the delimiter.
    """
    flat: dict[str, Any] = {}
    for key, value in dt.items():
        if prevent_delimiter and delimiter in str(key):
            raise ValueError(f"the name {key!r} contains the delimiter {delimiter!r}: pass another delimiter")
        if flatten_list and isinstance(value, list):
            value = {str(place): each for place, each in enumerate(value)}
        if isinstance(value, Mapping):
            inner = flatten_dict(value, delimiter, prevent_delimiter, flatten_list)
            flat.update({f"{key}{delimiter}{name}": each for name, each in inner.items()})
        else:
            flat[key] = value
    return flat


def unflatten_dict(dt: Mapping[str, Any], delimiter: str = "/") -> dict[str, Any]:
    """Convert a flat dictionary back to a nested dictionary. This function reverses `flatten_dict`."""
    nested: dict[str, Any] = {}
    for path, value in dt.items():
        *outer, last = path.split(delimiter)
        place = nested
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return nested


def diagnose_serialization(trainable: Callable[..., Any]) -> bool | set[str]:
    """Check whether a trainable can be sent to a worker; print the finding.

    Args:
        trainable: function or class.

    Returns:
        True if the trainable can be sent; otherwise the names of the variables that can't be sent.
    """
    can, failures = inspect_serializability(trainable)
    if can:
        return True
    if not inspect.isfunction(trainable):
        return {name for failure in failures for name in failure.name}
    scope = inspect.getclosurevars(trainable)
    variables = {**scope.globals, **scope.nonlocals}
    return {name for name, value in variables.items() if not inspect_serializability(value, name)[0]}


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> bool:
    """Wait until a GPU's memory is free, for example after another trial on this GPU has ended.

    Args:
        gpu_id: number or UUID of the GPU; None means the first of `trainkit.get_gpu_ids()`.
        target_util: maximum fraction of the GPU's memory that may be in use, from 0 to 1.
        retry: number of checks.
        delay_s: seconds between checks.
        gpu_memory_limit: no effect, as in Ray.

    Returns:
        True, as soon as the GPU is free.

    Raises:
        RuntimeError: the GPU was still in use at the last check; no GPU exists; or `gpu_id` is None and this
            process has requested no GPU.
        ValueError: the GPU `gpu_id` does not exist.
    """
    del gpu_memory_limit
    if gpu_id is None:
        held = get_gpu_ids() if is_initialized() else []
        if not held:
            raise NoFreeGPUError("this process has requested no GPU: request gpu=1, or pass gpu_id=")
        gpu_id = held[0]
    if not isinstance(gpu_id, (int, str)):
        raise ConfigError(f"gpu_id={gpu_id!r} must be the index or UUID of a GPU")
    used = 0.0
    for look in range(int(retry)):
        if look:
            logger.info("waiting for GPU %s: %.1f %% of its memory is in use", gpu_id, 100 * used)
            SYSTEM.sleep(delay_s)
        shares = _shares_of_memory(_nvidia_smi())
        if str(gpu_id) not in shares:
            raise ConfigError(f"gpu_id={gpu_id!r} is not one of this machine's GPUs {', '.join(shares)}")
        used = shares[str(gpu_id)]
        if used <= target_util:
            return True
    raise NoFreeGPUError(
        f"GPU {gpu_id} still used {100 * used:.1f} % of its memory after {retry} checks, {delay_s} s "
        "apart: stop the processes that use it, or pass a larger retry= or target_util="
    )


class NoFreeGPUError(TrainkitError, RuntimeError):
    """The GPU is not free, or no GPU exists or was requested."""


def _nvidia_smi() -> str:
    command = [
        "nvidia-smi",
        "--query-gpu=index,uuid,memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoFreeGPUError(f"wait_for_gpu needs nvidia-smi of NVIDIA's driver: {error}") from error


def _shares_of_memory(table: str) -> dict[str, float]:
    """Parse the output of nvidia-smi: the used fraction of memory, by each GPU's number and by its UUID."""
    shares: dict[str, float] = {}
    for line in table.splitlines():
        number, uuid, used, total = (cell.strip() for cell in line.split(","))
        shares[number] = shares[uuid] = float(used) / float(total)
    return shares


def validate_save_restore(
    trainable_cls: type[Trainable], config: Mapping[str, Any] | None = None, num_gpus: int = 0
) -> bool:
    """Check, in this process, that a trainable can save and that a second instance can resume from the save.

    Args:
        trainable_cls: class of the trainable to check.
        config: configuration that both instances receive.
        num_gpus: argument of Ray without effect. The trainable can use all GPUs that this process can use.

    Returns:
        True if the check succeeds. Errors that the class raises are not caught.

    Raises:
        AssertionError: after resuming, the second instance does not count iterations from the saved number.
    """
    del num_gpus
    first, second = (trainable_cls(config=dict(config or {})) for _ in range(2))
    try:
        for _ in range(STEPS):
            first.train()
        with tempfile.TemporaryDirectory() as folder:
            second.restore(first.save(os.path.join(folder, "checkpoint")))
            for expected in (STEPS + 1, STEPS + 2):
                iteration = second.train().get("training_iteration")
                if iteration != expected:
                    raise AssertionError(
                        f"{trainable_cls.__name__}, restored after iteration {STEPS}, reported {iteration!r} "
                        f"instead of {expected}: remove training_iteration from the result of step()"
                    )
    finally:
        first.stop()
        second.stop()
    return True


class MyTrainableClass(Trainable):
    """Example trainable. Its `episode_reward_mean` rises to `height`, more slowly if `width` is larger."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin at step 0."""
        self.timestep = 0

    def step(self) -> dict[str, Any]:
        """Return the reward of the next step, as `episode_reward_mean`."""
        self.timestep += 1
        rise = math.tanh(self.timestep / self.config.get("width", 1))
        return {"episode_reward_mean": rise * self.config.get("height", 1)}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the current step."""
        Path(checkpoint_dir, "checkpoint").write_text(json.dumps({"timestep": self.timestep}))

    def load_checkpoint(self, checkpoint: str) -> None:
        """Resume from the saved step."""
        self.timestep = json.loads(Path(checkpoint, "checkpoint").read_text())["timestep"]
