"""Arguments of a trainer, which are checked together and adapted to the devices of this machine."""

from __future__ import annotations

import inspect
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist

from trainkit.errors import ConfigError, did_you_mean
from trainkit.train.keys import BATCH_SIZE
from trainkit.train.operator import TrainingOperator
from trainkit.train.step.context import taken
from trainkit.train.strategies.base import StepSettings, StrategySpec, named_strategy

_CALLS: Mapping[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "setup": (("config",), {}),
    "train_epoch": (("iterator", "info"), {"num_steps": "None", "epoch_idx": "0"}),
    "train_batch": (("batch", "batch_info"), {}),
    "validate": (("val_iterator", "info"), {}),
    "validate_batch": (("batch", "batch_info"), {}),
    "state_dict": ((), {}),
    "load_state_dict": (("state_dict",), {}),
}
"""Positional arguments of an operator's methods, and arguments passed only if a method accepts them."""


def wrong_signature(operator_cls: type[Any]) -> str | None:
    """Return a message with a correction if the trainer can't call a method of `operator_cls`, else None.

    Args:
        operator_cls: a subclass of `TrainingOperator`.
    """
    for name, (positional, named) in _CALLS.items():
        try:
            method = getattr(operator_cls, name)
            signature = inspect.signature(method)
        except (TypeError, ValueError):
            continue  # A method not written in Python has no signature to check.
        own = [] if isinstance(inspect.getattr_static(operator_cls, name), staticmethod) else ["self"]
        try:
            signature.bind(*own, *positional, **taken(method, named))
        except TypeError as error:
            arguments = ", ".join([*own, *positional, *(f"{key}={value}" for key, value in named.items())])
            return f"its {name}{signature} can't be called ({error}): define {name}({arguments})"
    return None


OF_CREATORS = (
    "make an operator from the functions of RaySGD's first interface, OperatorCls = "
    "TrainingOperator.from_creators(model_creator, optimizer_creator, ...), or write a TrainingOperator "
    "with a setup(); then pass training_operator_cls=OperatorCls"
)
_OF_FUNCTIONS = "this needs a training function as in Ray Train: TorchTrainer(train_fn, scaling_config=...)"
_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(
        "model_creator data_creator optimizer_creator loss_creator scheduler_creator".split(), OF_CREATORS
    ),
    **dict.fromkeys(
        "train_loop_config torch_config scaling_config run_config datasets dataset_config metadata "
        "resume_from_checkpoint".split(),
        _OF_FUNCTIONS,
    ),
    "serialize_data_creation": "pass it to TrainingOperator.from_creators",
    "num_replicas": "pass num_workers",
    "batch_size": 'set it in config: "batch_size" is the size per worker, BATCH_SIZE the total size',
    "data_loader_args": "pass them to the DataLoader that you register",
    "apex_args": "Apex is not used: pass precision='fp16' or 'bf16'",
}
"""Arguments that are only valid in RaySGD's first trainer or with training functions, each with advice."""


def _unknown(names: Sequence[str], known: Iterable[str]) -> ConfigError:
    """Return an error about unknown arguments, with a correction for each of `names`."""
    told: dict[str, list[str]] = defaultdict(list)
    for name in names:
        near = did_you_mean(name, known, cutoff=0.6).lstrip()
        fix = _OF_OTHERS.get(name) or near or "no argument has a similar name"
        told[fix].append(name)
    fixes = "; ".join(f"{', '.join(alike)}: {fix}" for fix, alike in told.items())
    end = "" if fixes.endswith("?") else "."
    return ConfigError(f"TorchTrainer has no argument {fixes}{end} The arguments are {', '.join(known)}")


def _precision_of(precision: Any, use_fp16: Any) -> Any:
    if not isinstance(use_fp16, bool):
        raise ConfigError(f"TorchTrainer: use_fp16 must be True or False, not {use_fp16!r}; Apex is not used")
    if use_fp16 and precision not in ("32", "fp16"):
        raise ConfigError(f"TorchTrainer: use_fp16=True means precision='fp16', not {precision!r}: pass one")
    return "fp16" if use_fp16 else precision


def _is_operator(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, TrainingOperator)


def is_count(value: Any) -> bool:
    """Return True if `value` is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_positive(value: Any) -> bool:
    """Return True if `value` is a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


_Rule = tuple[Callable[[Any], bool], str]


def _one_of(*values: Any) -> _Rule:
    return lambda value: value in values, f"must be one of {values}"


def _or_none(rule: _Rule) -> _Rule:
    right, fix = rule
    return lambda value: value is None or right(value), f"{fix} or None"


_FLAG: _Rule = (lambda value: isinstance(value, bool), "must be True or False")
_COUNT: _Rule = (is_count, "must be a positive integer")
_POSITIVE: _Rule = (is_positive, "must be a positive number")
_RULES: Mapping[str, _Rule] = {
    "training_operator_cls": (_is_operator, "must be a TrainingOperator class or from_ptl(LightningModule)"),
    "initialization_hook": _or_none((callable, "must be a function without arguments")),
    "config": (lambda value: isinstance(value, Mapping), "must be a dictionary"),
    "num_workers": _COUNT,
    "num_cpus_per_worker": _POSITIVE,
    "use_gpu": _one_of(True, False, "auto"),
    "backend": _one_of("auto", "gloo", "nccl"),
    "timeout_s": (is_positive, "must be a positive number of seconds"),
    "scheduler_step_freq": _or_none(_one_of("batch", "epoch", "manual")),
    "gpus_per_worker": _or_none(_COUNT),
    "min_workers": _or_none(_COUNT),
    "precision": _one_of("32", "bf16", "fp16"),
    "grad_accumulation_steps": _COUNT,
    "max_grad_norm": _or_none(_POSITIVE),
    "ema_decay": _or_none((lambda value: is_positive(value) and value < 1, "must be between 0 and 1")),
    "checkpoint_dir": _or_none(
        (lambda value: isinstance(value, (str, os.PathLike)) and str(value) != "", "must be a path")
    ),
    "checkpoint_config": _or_none(
        (
            lambda value: isinstance(value, CheckpointRules),
            "must be a CheckpointConfig(every_steps=..., num_to_keep=...)",
        )
    ),
    **dict.fromkeys(("wrap_ddp", "use_tqdm", "add_dist_sampler", "use_local"), _FLAG),
    **dict.fromkeys(("compile", "channels_last", "detect_nan"), _FLAG),
}
"""Rule for each argument: a test of the value, and a text that states the requirement in messages."""


@runtime_checkable
class CheckpointRules(Protocol):
    """Settings of `CheckpointConfig`, which documents them."""

    num_to_keep: int | None
    checkpoint_score_attribute: str | None
    checkpoint_score_order: Literal["min", "max"]
    checkpoint_frequency: int
    checkpoint_at_end: bool | None
    every_steps: int | None
    every_s: float | None


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Arguments of a `TorchTrainer` that trains an operator; `TorchTrainer` documents each of them.

    Raises:
        ConfigError: an argument is wrong; the message lists all mistakes at once.
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
    checkpoint_dir: str | os.PathLike[str] | None = None
    checkpoint_config: CheckpointRules | None = None
    step: StepSettings = field(default_factory=StepSettings)

    def __post_init__(self) -> None:
        if mistakes := self._mistakes():
            raise ConfigError("TorchTrainer: " + "; ".join(mistakes))

    @classmethod
    def of(cls, **arguments: Any) -> TrainerOptions:
        """Make options from arguments of `TorchTrainer`; missing arguments get their default values.

        Raises:
            ConfigError: an argument does not exist or is wrong.
        """
        steps = {field.name for field in fields(StepSettings)}
        known = [*(field.name for field in fields(cls) if field.name != "step"), *sorted(steps)]
        arguments["precision"] = _precision_of(
            arguments.get("precision", "32"), arguments.pop("use_fp16", False)
        )
        if unknown := [name for name in arguments if name not in known]:
            raise _unknown(unknown, known)
        if arguments.get("training_operator_cls") is None:
            raise ConfigError(
                "TorchTrainer needs training_operator_cls=, a subclass of TrainingOperator, or a "
                "training function: TorchTrainer(train_fn)"
            )
        step = StepSettings(**{name: arguments.pop(name) for name in list(arguments) if name in steps})
        arguments["config"] = {} if arguments.get("config") is None else arguments["config"]
        return cls(**arguments, step=step)

    def arguments(self) -> dict[str, Any]:
        """Return arguments of `TorchTrainer` from which the method `of` makes equal options."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "step"}
        return {**own, **{field.name: getattr(self.step, field.name) for field in fields(self.step)}}

    def _mistakes(self) -> list[str]:
        given, operator = self.arguments(), self.training_operator_cls
        checked = ((name, given[name], *rule) for name, rule in _RULES.items())
        found = [f"{name} {rule}, not {value!r}" for name, value, right, rule in checked if not right(value)]
        if self.backend == "nccl" and not self.use_gpu:
            found.append("backend='nccl' needs GPUs: pass use_gpu=True, or backend='gloo'")
        if _is_operator(operator) and (fix := wrong_signature(operator)) is not None:
            found.append(f"training_operator_cls={operator!r}: {fix}")
        return found or self._mistakes_together()

    def _mistakes_together(self) -> list[str]:
        """Return messages about conflicts between arguments, each of which is valid by itself."""
        workers, found = self.num_workers, []
        if self.min_workers is not None and self.min_workers > workers:
            found.append(f"min_workers must be at most num_workers={workers}, not {self.min_workers}")
        if self.gpus_per_worker is not None and self.use_gpu is False:
            found.append(f"gpus_per_worker={self.gpus_per_worker} needs GPUs: leave it or use_gpu=False out")
        spec = named_strategy(self.strategy, num_workers=workers)
        if workers % spec.model_ways:
            found.append(f"num_workers must be a multiple of {spec.model_ways} with {spec!r}, not {workers}")
        elif BATCH_SIZE in self.config:
            size, ways = self.config[BATCH_SIZE], workers // spec.model_ways
            if not is_count(size) or size < ways:
                sharing = f"the {ways} workers" if spec.model_ways == 1 else f"{ways} copies of the model"
                found.append(
                    f"config[{BATCH_SIZE!r}]={size!r} must be at least {ways}, one sample for each of "
                    f"{sharing}"
                )
        if (saving := self.checkpoint_config) is not None:
            if self.checkpoint_dir is None:
                found.append("checkpoint_config needs checkpoint_dir, the folder of the checkpoints")
            if saving.checkpoint_frequency or saving.checkpoint_at_end is not None:
                found.append(
                    "checkpoint_frequency and checkpoint_at_end are only for Trainable classes: pass "
                    "every_steps or every_s; the end of each epoch is always saved"
                )
        devices = self.gpus_per_worker or 1
        wrong = spec.mistakes(num_workers=workers, devices_per_worker=devices, step=self.step)
        return found + [f"strategy={spec!r}: {fix}" for fix in wrong]

    @property
    def spec(self) -> StrategySpec:
        """The strategy."""
        return named_strategy(self.strategy, num_workers=self.num_workers)

    @property
    def meets(self) -> bool:
        """True if the workers join a process group.

        Strategies that shard need a process group even for one worker.
        """
        return self.num_workers > 1 or self.spec.spreads

    @property
    def data_ways(self) -> int:
        """Number of copies of the model; the copies share the samples."""
        return self.num_workers // self.spec.model_ways

    @property
    def devices_per_worker(self) -> int:
        """Number of GPUs for each worker, 0 without GPUs; only valid for a result of `resolved`."""
        return (self.gpus_per_worker or 1) if self.use_gpu is True else 0

    @property
    def bundle(self) -> dict[str, float]:
        """Resources of each worker; only valid for a result of `resolved`."""
        needs: dict[str, float] = {"CPU": self.num_cpus_per_worker}
        return {**needs, "GPU": self.devices_per_worker} if self.devices_per_worker else needs

    @property
    def worker_config(self) -> dict[str, Any]:
        """Configuration for the operator of each worker, with the largest share of the global batch size."""
        config = dict(self.config)
        if BATCH_SIZE in config:
            config[BATCH_SIZE] = -(-config[BATCH_SIZE] // self.data_ways)
        return config

    def resolved(self) -> TrainerOptions:
        """Return a copy in which "auto" is replaced: GPUs are used if this process sees any, and the backend
        matches the devices.

        Raises:
            ConfigError: the requested devices or backend are not available here.
        """
        use_gpu = torch.cuda.is_available() if self.use_gpu == "auto" else bool(self.use_gpu)
        backend = self.backend
        if backend == "auto":
            backend = "nccl" if use_gpu and dist.is_nccl_available() else "gloo"
        if backend == "nccl" and not (use_gpu and dist.is_nccl_available()):
            missing = "this build of PyTorch has no NCCL" if use_gpu else "no GPU is used"
            raise ConfigError(f"TorchTrainer: backend='nccl' can't run ({missing}): pass 'gloo' or 'auto'")
        if self.use_local and use_gpu:
            if not torch.cuda.is_available():
                raise ConfigError("TorchTrainer: use_local=True, use_gpu=True, but this process sees no GPU")
            if self.num_workers > 1:
                raise ConfigError(
                    "TorchTrainer: use_local=True does not support several GPU workers, because this "
                    "process can't get a GPU of its own: pass use_local=False"
                )
        return replace(self, use_gpu=use_gpu, backend=backend)
