"""What `from_ptl` is given: a module's class, its data, and what Lightning's trainer shall know."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainkit.errors import ConfigError, MissingDependencyError
from trainkit.train.step_settings import StepSettings

PACKAGES = ("pytorch_lightning", "lightning.pytorch")


def package_of(cls: Any, kind: str) -> str | None:
    """The package whose `kind`, such as "LightningModule", `cls` derives from; None: neither's."""
    for base in getattr(cls, "__mro__", ()):
        for name in PACKAGES:
            if base.__name__ == kind and base.__module__.startswith(f"{name}."):
                return name
    return None


def require_module_class(cls: Any) -> str:
    """The package of a LightningModule's class.

    Raises:
        ConfigError: it is something else.
        MissingDependencyError: neither package is installed.
    """
    if isinstance(cls, type) and (name := package_of(cls, "LightningModule")) is not None:
        return name
    if not any(map(_installed, PACKAGES)):
        raise MissingDependencyError.of("from_ptl() needs Lightning", "lightning")
    shown = repr(cls) if isinstance(cls, type) else f"an object of {type(cls).__name__}"
    raise ConfigError(
        f"from_ptl({shown}): give a subclass of LightningModule, the class itself; each worker makes its own "
        f"instance of it"
    )


def _installed(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def untaken(config: Mapping[str, Any], classes: Sequence[type[Any]]) -> list[str]:
    """Keys of the configuration that `made_from` gives to none of `classes`."""
    taken: set[str] = set()
    for cls in classes:
        parameters = inspect.signature(cls).parameters
        if "config" in parameters:
            return []
        if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
            taken |= {name for name in config if name.isidentifier()}
        taken |= set(parameters)
    return [name for name in config if name not in taken]


def made_from(cls: type[Any], config: Mapping[str, Any]) -> Any:
    """An instance of the user's class, given the whole configuration or those of its keys that it takes.

    Raises:
        ConfigError: a parameter without a default is not in `config`.
    """
    parameters = dict(inspect.signature(cls).parameters)
    if "config" in parameters:
        return cls(config=dict(config))
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return cls(**{name: value for name, value in config.items() if name.isidentifier()})
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    }
    missing = [
        name
        for name, parameter in named.items()
        if name not in config and parameter.default is inspect.Parameter.empty
    ]
    if missing:
        raise ConfigError(
            f"{cls.__name__}{inspect.signature(cls)} needs {', '.join(missing)}, but config has "
            f"{sorted(map(str, config))}: add the keys to config, or let the class take the whole of it, as "
            f"`config`"
        )
    return cls(**{name: config[name] for name in named if name in config})


_OURS = {
    "accelerator": "use_gpu= of TorchTrainer says where it runs",
    "callbacks": "give callbacks= of from_ptl",
    "devices": "num_workers= and gpus_per_worker= of TorchTrainer say how many",
    "fast_dev_run": "call train(num_steps=1) and validate(num_steps=1)",
    "max_steps": "call train(num_steps=...) as often as you need",
    "min_steps": "call train(num_steps=...) as often as you need",
    "num_nodes": "num_workers= of TorchTrainer says how many",
    "use_distributed_sampler": "add_dist_sampler= of TorchTrainer says whether samples are dealt out",
}
"""Arguments of Lightning's trainer that are not Lightning's to know here, and what to do instead."""

_PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


@dataclass(frozen=True, kw_only=True)
class LightningPlan:
    """What `from_ptl` was given; see there."""

    module_cls: type[Any]
    package: str
    train_dataloader: Any = None
    val_dataloader: Any = None
    datamodule: Any = None
    callbacks: Sequence[Any] = ()
    trainer_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaders = self.train_dataloader is not None or self.val_dataloader is not None
        if loaders and self.datamodule is not None:
            raise ConfigError(
                "from_ptl(): give train_dataloader= and val_dataloader=, or datamodule=, not both"
            )
        kind = self.datamodule if isinstance(self.datamodule, type) else type(self.datamodule)
        if self.datamodule is not None and package_of(kind, "LightningDataModule") != self.package:
            raise ConfigError(
                f"from_ptl(datamodule={self.datamodule!r}): give a LightningDataModule of {self.package}, as "
                f"{self.module_cls.__name__} is a module of it, or its class"
            )
        wrong = [item for item in self.callbacks if package_of(type(item), "Callback") != self.package]
        if wrong:
            raise ConfigError(f"from_ptl(callbacks={wrong!r}): give callbacks of {self.package}")
        if ours := [f"{name}: {_OURS[name]}" for name in self.trainer_args if name in _OURS]:
            raise ConfigError("from_ptl(trainer_args=): leave out " + "; ".join(ours))


def arguments_of_step(step: StepSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the trainer was asked for in Lightning's words.

    Raises:
        ConfigError: `given` says it too.
    """
    asked: dict[str, Any] = {}
    if step.precision != "32":
        asked["precision"] = _PRECISIONS[step.precision]
    if step.grad_accumulation_steps > 1:
        asked["accumulate_grad_batches"] = step.grad_accumulation_steps
    if step.max_grad_norm is not None:
        asked["gradient_clip_val"] = step.max_grad_norm
    if both := sorted(set(asked) & set(given)):
        raise ConfigError(
            f"from_ptl(trainer_args=) has {', '.join(both)}, which TorchTrainer was asked for in its words "
            f"(precision, grad_accumulation_steps, max_grad_norm): say it once"
        )
    return asked
