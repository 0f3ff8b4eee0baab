"""Arguments of a `TorchTrainer` that runs a training function, which are checked together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch.distributed as dist

from trainkit.errors import ConfigError
from trainkit.resources import Bundle, normalize
from trainkit.train.torch.shards import DataConfig
from trainkit.tune.config import RunConfig
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import require, require_one_of
from trainkit.tune.core.metrics import merge_dicts
from trainkit.tune.core.resources import PlacementGroupFactory, ScalingConfig
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import OPAQUE, decode_config, encode_config, is_opaque
from trainkit.tune.space.tree import holds_leaf
from trainkit.tune.trial.messages import TrialSpec


@dataclass(frozen=True)
class TorchConfig:
    """Settings for the communication between the workers of a training function.

    Args:
        backend: backend of `torch.distributed`: "gloo" or "nccl". None means NCCL if each worker has a whole
            GPU, else gloo.
        init_method: Ray's argument; has no effect, because the workers use a private rendezvous.
        timeout_s: time limit of each collective, in seconds, and the longest time that workers wait for the
            last worker's report.

    Raises:
        ConfigError: a value is out of range.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800

    def __post_init__(self) -> None:
        require_one_of("backend", self.backend, (None, "gloo", "nccl"))
        require_one_of("init_method", self.init_method, ("env", "tcp"))
        positive = isinstance(self.timeout_s, (int, float)) and not isinstance(self.timeout_s, bool)
        require(positive and self.timeout_s > 0, f"timeout_s must be positive, not {self.timeout_s!r}")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Arguments of a `TorchTrainer` that runs a training function; `TorchTrainer` documents each of them.

    Raises:
        ConfigError: an argument is wrong.
    """

    train_loop_per_worker: Callable[..., Any]
    train_loop_config: Mapping[str, Any] = field(default_factory=dict)
    scaling_config: ScalingConfig = field(default_factory=ScalingConfig)
    torch_config: TorchConfig = field(default_factory=TorchConfig)
    run_config: RunConfig = field(default_factory=RunConfig)
    dataset_config: DataConfig = field(default_factory=DataConfig)
    resume_from_checkpoint: Checkpoint | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        takes_config(self.train_loop_per_worker)
        kinds = {
            "train_loop_config": Mapping,
            "scaling_config": ScalingConfig,
            "torch_config": TorchConfig,
            "run_config": RunConfig,
            "dataset_config": DataConfig,
            "metadata": Mapping,
        }
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise ConfigError(f"TorchTrainer: {name} must be a {kind.__name__}, not {value!r}")
        given = self.resume_from_checkpoint
        if given is not None and not isinstance(given, Checkpoint):
            raise ConfigError(
                f"TorchTrainer: resume_from_checkpoint needs a Checkpoint.from_directory(path), not {given!r}"
            )
        if self.scaling_config.num_workers < 1:
            raise ConfigError("TorchTrainer: ScalingConfig(num_workers=0) has no workers: pass 1 or more")
        if self.backend == "nccl" and not self.scaling_config.use_gpu:
            raise ConfigError("TorchTrainer: backend='nccl' needs ScalingConfig(use_gpu=True)")
        if self.backend == "nccl" and not dist.is_nccl_available():
            raise ConfigError(
                "TorchTrainer: this build of PyTorch has no NCCL, and is probably a CPU-only build: leave "
                "use_gpu out, or pass TorchConfig(backend='gloo')"
            )

    @property
    def name(self) -> str:
        """Name of the function."""
        loop = self.train_loop_per_worker
        return getattr(loop, "__name__", type(loop).__name__)

    @property
    def num_workers(self) -> int:
        """Number of workers, which are processes that run the training function."""
        return self.scaling_config.num_workers

    @property
    def use_local(self) -> bool:
        """False, because the training function never runs in the user's process."""
        return False

    @property
    def meets(self) -> bool:
        """True, because a training function always has a process group, even with one worker."""
        return True

    @property
    def bundle(self) -> Bundle:
        """Resources of each worker."""
        scaling = self.scaling_config
        return {
            "CPU": scaling.num_cpus_per_worker,
            "GPU": scaling.num_gpus_per_worker,
            **scaling.additional_resources_per_worker,
        }

    @property
    def backend(self) -> str:
        """Name of the process group's backend."""
        # NCCL does not support workers that share a GPU.
        whole = self.scaling_config.use_gpu and self.scaling_config.num_gpus_per_worker >= 1
        return self.torch_config.backend or ("nccl" if whole else "gloo")

    @property
    def timeout_s(self) -> float:
        """Time limit of one collective, in seconds."""
        return self.torch_config.timeout_s

    @property
    def request(self) -> PlacementGroupFactory:
        """Resources of a trial: `trainer_resources` for the process that waits, and `bundle` per worker."""
        scaling = self.scaling_config
        own = normalize(scaling.trainer_resources or {}, what="trainer_resources")
        return PlacementGroupFactory([own, *[self.bundle] * self.num_workers], scaling.placement_strategy)

    @property
    def function(self) -> Callable[[dict[str, Any]], Any]:
        """The training function, wrapped so that it always accepts a configuration."""
        return functools.partial(_call, self.train_loop_per_worker)

    @property
    def record(self) -> dict[str, Any]:
        """Configuration as the experiment stores it: plain values, and the text of all other values.

        Raises:
            ConfigError: the configuration contains a search space.
        """
        kept = {"train_loop_config": _plain(decode_config(encode_config(dict(self.train_loop_config))))}
        # Domains whose values are computed from other values are missing in `kept`, so they are looked up in
        # the given configuration.
        given = self.train_loop_config.items()
        computed = [f"train_loop_config/{name}" for name, value in given if holds_leaf(value)]
        if varied := sorted(Space.of(kept).varied) or computed:
            raise ConfigError(
                f"TorchTrainer: {', '.join(varied)} is a search space, but fit() runs only once: pass the "
                "space to Tuner(trainer, param_space={'train_loop_config': {...}})"
            )
        return kept

    def of_config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trainer's arguments for one trial.

        Args:
            config: sample of a search space. The sample's `train_loop_config` is merged into the trainer's
                `train_loop_config`, and takes precedence. The sample's `scaling_config` replaces the
                trainer's `scaling_config`, or only some of its settings if given as a dictionary.

        Raises:
            ConfigError: `config` has a key besides `train_loop_config` and `scaling_config`.
        """
        if unknown := sorted(set(config) - {"train_loop_config", "scaling_config"}):
            raise ConfigError(
                f"param_space has the unknown keys {', '.join(map(repr, unknown))}: pass arguments of the "
                'training function in "train_loop_config", settings of its workers in "scaling_config"'
            )
        arguments = {each.name: getattr(self, each.name) for each in fields(LoopOptions)}
        scaling = config.get("scaling_config", self.scaling_config)
        if isinstance(scaling, Mapping):
            scaling = replace(self.scaling_config, **scaling)
        own = merge_dicts(dict(self.train_loop_config), config.get("train_loop_config") or {})
        return {**arguments, "scaling_config": scaling, "train_loop_config": own}


@dataclass(frozen=True, kw_only=True)
class TrialLoop(LoopOptions):
    """Arguments of the workers of one trial.

    Attributes:
        trial: the trial that the workers form.
        shards: the shards of all workers, by rank, for each data set, by name.
    """

    trial: TrialSpec
    shards: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def _plain(value: Any) -> Any:
    if is_opaque(value):
        return value[OPAQUE]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    # Tuples become lists, because a tuple of two numbers would cause a warning that the tuple looks like a
    # range.
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _call(function: Callable[..., Any], config: dict[str, Any]) -> Any:
    return function(config) if takes_config(function) else function()


def takes_config(function: Any) -> bool:
    """Return True if a training function accepts a configuration, False if it accepts no argument.

    Raises:
        ConfigError: `function` is not a function, or requires more arguments.
    """
    if not callable(function):
        raise ConfigError(f"TorchTrainer: train_loop_per_worker must be a function, not {function!r}")
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(
            f"TorchTrainer: train_loop_per_worker={function!r} is async or a generator: pass a plain "
            "function that reports with trainkit.train.report(metrics)"
        )
    try:
        signature = inspect.signature(function)
    except ValueError:  # Some builtins have no signature.
        return True
    for takes, arguments in ((True, ({},)), (False, ())):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        # A call with a configuration is tried first, so that an optional parameter receives the
        # configuration.
        return takes
    raise ConfigError(
        f"TorchTrainer: train_loop_per_worker takes {signature}, but must take only the configuration, or "
        "nothing: bind other arguments with functools.partial"
    )
