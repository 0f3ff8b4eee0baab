"""How a training step is taken, whatever the strategy: precision, accumulation, clipping, compilation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

Precision = Literal["32", "bf16", "fp16"]

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Arguments of `TorchTrainer`; see there for the meaning of each."""

    precision: Precision = "32"
    grad_accumulation_steps: int = 1
    max_grad_norm: float | None = None
    compile: bool = False
    channels_last: bool = False
    detect_nan: bool = False

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        """A block in which operations on `device` run in the asked precision where torch finds it safe."""
        dtype = _AUTOCAST.get(self.precision)
        return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)

    @property
    def needs_backward(self) -> bool:
        """Whether a step of the user's own must call `backward(loss)`, not `loss.backward()`."""
        return self.precision == "fp16" or self.grad_accumulation_steps > 1 or self.detect_nan

    @property
    def needs_optimizer_step(self) -> bool:
        """Whether a step of the user's own must end with `optimizer_step()`, not `optimizer.step()`."""
        return self.precision == "fp16" or self.grad_accumulation_steps > 1 or self.max_grad_norm is not None

    @property
    def asked_for(self) -> str:
        """What needs `optimizer_step()`, as the user wrote it."""
        given = [
            ("precision", self.precision, self.precision == "fp16"),
            ("grad_accumulation_steps", self.grad_accumulation_steps, self.grad_accumulation_steps > 1),
            ("max_grad_norm", self.max_grad_norm, self.max_grad_norm is not None),
        ]
        return " with ".join(f"{name}={value!r}" for name, value, asked in given if asked)
