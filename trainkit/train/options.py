"""The arguments of a trainer, checked together and resolved to what this machine has."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
import torch.distributed as dist

from trainkit.errors import ConfigError
from trainkit.train.former import renamed
from trainkit.train.keys import BATCH_SIZE
from trainkit.train.operator import TrainingOperator
from trainkit.train.signatures import wrong_signature
from trainkit.train.step_settings import StepSettings
from trainkit.train.strategies.base import StrategySpec
from trainkit.train.strategies.names import named_strategy

_FREQUENCIES = ("batch", "epoch", "manual")
_BACKENDS = ("auto", "gloo", "nccl")
_PRECISIONS = ("32", "bf16", "fp16")


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
    strategy: str | StrategySpec = "auto"
    gpus_per_worker: int | None = None
    min_workers: int | None = None
    step: StepSettings = field(default_factory=StepSettings)

    def __post_init__(self) -> None:
        mistakes = [f"{name}={value!r}: {fix}" for name, value, fix in self._mistakes()]
        if mistakes:
            raise ConfigError("TorchTrainer: " + "; ".join(mistakes))

    @classmethod
    def of(cls, **arguments: Any) -> TrainerOptions:
        """From the arguments of `TorchTrainer`, by name; the rest have their defaults.

        Raises:
            ConfigError: one of them doesn't exist, or is wrong.
        """
        arguments = renamed(arguments)
        steps = {field.name for field in fields(StepSettings)}
        known = [*(field.name for field in fields(cls) if field.name != "step"), *sorted(steps)]
        if unknown := sorted(set(arguments) - set(known)):
            near = [close for name in unknown for close in difflib.get_close_matches(name, known, n=1)]
            meant = f" (did you mean {', '.join(near)}?)" if near else ""
            raise ConfigError(
                f"TorchTrainer has no argument {', '.join(unknown)}{meant}; it takes {', '.join(known)}"
            )
        if arguments.get("training_operator_cls") is None:
            raise ConfigError("TorchTrainer needs training_operator_cls=, a subclass of TrainingOperator")
        step = StepSettings(**{name: arguments.pop(name) for name in list(arguments) if name in steps})
        arguments["config"] = {} if arguments.get("config") is None else arguments["config"]
        return cls(**arguments, step=step)

    def arguments(self) -> dict[str, Any]:
        """What `of` makes the same options from."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "step"}
        return {**own, **{field.name: getattr(self.step, field.name) for field in fields(self.step)}}

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
        found += [
            (name, getattr(self, name), "give a whole number of 1 or more, or None")
            for name in ("gpus_per_worker", "min_workers")
            if not _is_count_or_none(getattr(self, name))
        ]
        found += [
            (name, getattr(self, name), "give True or False")
            for name in ("wrap_ddp", "use_tqdm", "add_dist_sampler", "use_local")
            if not isinstance(getattr(self, name), bool)
        ]
        found += self._step_mistakes()
        if self.backend == "nccl" and not self.use_gpu:
            found.append(("backend", "nccl", "NCCL needs GPUs: pass use_gpu=True, or backend='gloo'"))
        if _is_operator(operator) and (fix := wrong_signature(operator)) is not None:
            found.append(("training_operator_cls", operator, fix))
        return found or self._mistakes_together()

    def _step_mistakes(self) -> list[tuple[str, Any, str]]:
        step = self.step
        rules: list[tuple[str, bool, str]] = [
            ("precision", step.precision in _PRECISIONS, f"give one of {_PRECISIONS}"),
            (
                "grad_accumulation_steps",
                is_count(step.grad_accumulation_steps),
                "give a whole number of 1 or more",
            ),
            (
                "max_grad_norm",
                step.max_grad_norm is None or _is_positive(step.max_grad_norm),
                "give a number above 0, or None",
            ),
        ]
        rules += [
            (name, isinstance(getattr(step, name), bool), "give True or False")
            for name in ("compile", "channels_last", "detect_nan")
        ]
        return [(name, getattr(step, name), fix) for name, right, fix in rules if not right]

    def _mistakes_together(self) -> list[tuple[str, Any, str]]:
        """What is wrong between arguments that are right by themselves."""
        workers, found = self.num_workers, []
        if self.min_workers is not None and self.min_workers > workers:
            found.append(("min_workers", self.min_workers, f"give at most num_workers={workers}"))
        if self.gpus_per_worker is not None and self.use_gpu is False:
            found.append(("gpus_per_worker", self.gpus_per_worker, "leave it out with use_gpu=False"))
        spec = named_strategy(self.strategy, num_workers=workers)
        if workers % spec.model_ways:
            found.append(("num_workers", workers, f"{spec!r} needs a multiple of {spec.model_ways} workers"))
        elif BATCH_SIZE in self.config:
            size, ways = self.config[BATCH_SIZE], workers // spec.model_ways
            if not is_count(size) or size % ways:
                sharing = f"the {ways} workers" if spec.model_ways == 1 else f"{ways} copies of the model"
                found.append(
                    (f"config[{BATCH_SIZE!r}]", size, f"give a multiple of {ways}: {sharing} share it")
                )
        devices = self.gpus_per_worker or 1
        wrong = spec.mistakes(num_workers=workers, devices_per_worker=devices, step=self.step)
        return found + [("strategy", spec, fix) for fix in wrong]

    @property
    def spec(self) -> StrategySpec:
        """The strategy."""
        return named_strategy(self.strategy, num_workers=self.num_workers)

    @property
    def data_ways(self) -> int:
        """How many copies of the model share the samples."""
        return self.num_workers // self.spec.model_ways

    @property
    def devices_per_worker(self) -> int:
        """GPUs that each worker is given, 0 without; of resolved options."""
        return (self.gpus_per_worker or 1) if self.use_gpu is True else 0

    @property
    def bundle(self) -> dict[str, float]:
        """What each worker needs; of resolved options."""
        needs: dict[str, float] = {"CPU": self.num_cpus_per_worker}
        return {**needs, "GPU": self.devices_per_worker} if self.devices_per_worker else needs

    @property
    def worker_config(self) -> dict[str, Any]:
        """The configuration as each operator sees it: the global batch size split among workers."""
        config = dict(self.config)
        if BATCH_SIZE in config:
            config[BATCH_SIZE] //= self.data_ways
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


def _is_count_or_none(value: Any) -> bool:
    return value is None or is_count(value)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
