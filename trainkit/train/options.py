"""The arguments of a trainer, checked together and resolved to what this machine has."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from trainkit.errors import ConfigError
from trainkit.train.keys import BATCH_SIZE
from trainkit.train.operator import TrainingOperator
from trainkit.train.signatures import wrong_signature

_FREQUENCIES = ("batch", "epoch", "manual")
_BACKENDS = ("auto", "gloo", "nccl")


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """What `TorchTrainer` takes; see there for the meaning of each.

    Raises:
        ConfigError: at construction, with all mistakes at once.
    """

    training_operator_cls: type[TrainingOperator]
    initialization_hook: Callable[[], Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    num_workers: int = 1
    num_cpus_per_worker: float = 1
    use_gpu: bool | Literal["auto"] = "auto"
    backend: str = "auto"
    wrap_ddp: bool = True
    timeout_s: float = 1800
    use_tqdm: bool = False
    add_dist_sampler: bool = True
    scheduler_step_freq: str | None = None
    use_local: bool = False
    min_workers: int | None = None

    def __post_init__(self) -> None:
        mistakes = [f"{name}={value!r}: {fix}" for name, value, fix in self._mistakes()]
        if mistakes:
            raise ConfigError("TorchTrainer: " + "; ".join(mistakes))

    def _mistakes(self) -> list[tuple[str, Any, str]]:
        operator, workers = self.training_operator_cls, self.num_workers
        rules: list[tuple[str, bool, str]] = [
            (
                "training_operator_cls",
                _is_operator(operator),
                "give a subclass of TrainingOperator, the class itself",
            ),
            (
                "initialization_hook",
                self.initialization_hook is None or callable(self.initialization_hook),
                "give a function without arguments",
            ),
            ("config", isinstance(self.config, Mapping), "give a dictionary"),
            ("num_workers", is_count(workers), "give a whole number of 1 or more"),
            (
                "min_workers",
                self.min_workers is None
                or (is_count(self.min_workers) and is_count(workers) and self.min_workers <= workers),
                f"give a whole number from 1 to num_workers={workers}, or None for no fewer than that",
            ),
            ("num_cpus_per_worker", _is_positive(self.num_cpus_per_worker), "give a number above 0"),
            ("use_gpu", self.use_gpu in (True, False, "auto"), "give True, False or 'auto'"),
            ("backend", self.backend in _BACKENDS, f"give one of {_BACKENDS}"),
            ("timeout_s", _is_positive(self.timeout_s), "give seconds, above 0"),
            (
                "scheduler_step_freq",
                self.scheduler_step_freq in (None, *_FREQUENCIES),
                f"give one of {_FREQUENCIES}, or None without schedulers",
            ),
        ]
        found = [(name, getattr(self, name), fix) for name, right, fix in rules if not right]
        if self.backend == "nccl" and not self.use_gpu:
            found.append(("backend", "nccl", "NCCL needs GPUs: pass use_gpu=True, or backend='gloo'"))
        if _is_operator(operator) and (fix := wrong_signature(operator)) is not None:
            found.append(("training_operator_cls", operator, fix))
        if not found and BATCH_SIZE in self.config:
            size = self.config[BATCH_SIZE]
            if not is_count(size) or size % workers:
                found.append((f"config[{BATCH_SIZE!r}]", size, f"give a multiple of num_workers={workers}"))
        return found

    @property
    def gpus_per_worker(self) -> int:
        """GPUs that each worker is given; of resolved options."""
        return int(self.use_gpu is True)

    @property
    def bundle(self) -> dict[str, float]:
        """What each worker needs; of resolved options."""
        needs: dict[str, float] = {"CPU": self.num_cpus_per_worker}
        return {**needs, "GPU": self.gpus_per_worker} if self.gpus_per_worker else needs

    @property
    def worker_config(self) -> dict[str, Any]:
        """The configuration as each operator sees it: the global batch size split among workers."""
        config = dict(self.config)
        if BATCH_SIZE in config:
            config[BATCH_SIZE] //= self.num_workers
        return config

    def resolved(self) -> TrainerOptions:
        """A copy without "auto": GPUs if this process sees any, and the backend that suits.

        Raises:
            ConfigError: what was asked for can't run here.
        """
        use_gpu = torch.cuda.is_available() if self.use_gpu == "auto" else bool(self.use_gpu)
        backend = self.backend
        if backend == "auto":
            backend = "nccl" if use_gpu and dist.is_nccl_available() else "gloo"
        if backend == "nccl" and not (use_gpu and dist.is_nccl_available()):
            missing = "this torch has no NCCL" if use_gpu else "no GPU is used"
            raise ConfigError(f"TorchTrainer: backend='nccl', but {missing}: pass backend='gloo' or 'auto'")
        if self.use_local and use_gpu:
            if not torch.cuda.is_available():
                raise ConfigError("TorchTrainer: use_local=True, use_gpu=True, but this process sees no GPU")
            if self.num_workers > 1:
                raise ConfigError(
                    "TorchTrainer: use_local=True with several GPU workers: this process can't be given one "
                    "GPU of its own; pass use_local=False"
                )
        return replace(self, use_gpu=use_gpu, backend=backend)


def _is_operator(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, TrainingOperator)


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
