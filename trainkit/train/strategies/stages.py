"""One stage of a pipeline: the part of a model that one worker holds, and what goes in and out of it.

The user's module stays as it is in structure and names; what other stages hold is on the "meta" device, where
it takes no memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.train.strategies.cutting import Cut

NOT_ALONE = (
    "with strategy=Pipeline() a worker holds one stage of the model, and can't compute its output or its "
    "gradients alone: in train_batch call self.forward_backward(features, target) in place of the model, the "
    "loss and self.backward(loss), then self.optimizer_step(); in validate_batch call "
    "self.forward(features, target)"
)


class StageModel(nn.Module):
    """A placed model: its `stage` is here, the rest is on other workers.

    Args:
        whole: the user's module; it is changed so that it holds the stage alone.
        cut: how it is cut.
        index: of the stage.
        device: where the stage goes.
    """

    def __init__(self, whole: nn.Module, cut: Cut, index: int, device: torch.device) -> None:
        super().__init__()
        blocks = [block.module for block in cut.stages[index]]
        self.stage = _Chain(blocks, packed=cut.packed, first=index == 0)
        _replace(whole, _emptied([block.module for stage in cut.stages for block in stage], keep=self.stage))
        _replace(whole, _moved(self.stage, device))
        # In a tuple: as a child, its parameters would be this module's.
        self._whole = (whole,)

    @property
    def whole(self) -> nn.Module:
        """The user's module, other stages' parameters and buffers on the "meta" device."""
        return self._whole[0]

    def train(self, mode: bool = True) -> StageModel:
        self.whole.train(mode)
        return super().train(mode)

    def forward(self, *features: Any) -> NoReturn:
        raise ConfigError(NOT_ALONE)


class _Chain(nn.Module):
    """Blocks, each called with what the one before returned."""

    def __init__(self, blocks: Sequence[nn.Module], *, packed: bool, first: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self._packed = packed
        self._first = first

    def forward(self, value: Any) -> Any:
        """What comes out when `value` goes in; several features of a model are a tuple."""
        for number, block in enumerate(self.blocks):
            apart = not self._packed or (self._first and number == 0)
            value = block(*value) if apart and isinstance(value, tuple) else block(value)
        return value


def _emptied(blocks: Sequence[nn.Module], *, keep: nn.Module) -> dict[int, torch.Tensor]:
    """What takes the place of what belongs to `blocks` but not to `keep`, by identity."""
    held = {id(tensor) for tensor in (*keep.parameters(), *keep.buffers())}
    empty: dict[int, torch.Tensor] = {}
    for block in blocks:
        for tensor in (*block.parameters(), *block.buffers()):
            if id(tensor) not in held and id(tensor) not in empty:
                meta = torch.empty_like(tensor, device="meta")
                is_parameter = isinstance(tensor, nn.Parameter)
                empty[id(tensor)] = nn.Parameter(meta, tensor.requires_grad) if is_parameter else meta
    return empty


def _moved(stage: nn.Module, device: torch.device) -> dict[int, torch.Tensor]:
    """Move `stage`; returns the tensors that are other objects now, by identity of what they were."""
    before = [*stage.parameters(), *stage.buffers()]
    stage.to(device)
    after = [*stage.parameters(), *stage.buffers()]
    return {id(old): new for old, new in zip(before, after, strict=True) if new is not old}


def _replace(whole: nn.Module, replaced: Mapping[int, torch.Tensor]) -> None:
    """Let `whole` hold other tensors; those that it holds itself may be a stage's as well (tracing.py)."""
    for module in whole.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if id(tensor) in replaced:
                    tensors[name] = replaced[id(tensor)]  # type: ignore[assignment]
