"""What is split without a plan: pairs of layers that compute the same in parts, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.tensor.parallel import RowwiseParallel

from tests.train.strategies.transformers import Decoder
from trainkit.train.strategies.tensor_plan import default_plan


def split(model: nn.Module, ways: int = 2) -> list[str]:
    """Names of the layers that are split by default, those by rows with a minus."""
    plan = default_plan(model, ways)
    return [f"-{name}" if isinstance(style, RowwiseParallel) else name for name, style in plan.items()]


def test_a_stack_of_linear_layers_alternates() -> None:
    stack = nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 4), nn.Linear(4, 4), nn.ReLU()
    )
    assert split(stack) == ["0", "-3"]
    stack.append(nn.Linear(4, 3))
    assert split(stack) == ["0", "-3", "4", "-6"]
    assert split(stack, ways=8) == ["0", "-3"]
    assert split(stack, ways=3) == []


def test_stacks_within_a_model_are_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 6))

    assert split(nn.ModuleList([Net(), Net()])) == ["0.mlp.1", "-0.mlp.3", "1.mlp.1", "-1.mlp.3"]


@pytest.mark.parametrize(
    "between",
    [
        nn.LayerNorm(8),
        nn.BatchNorm1d(8),
        nn.Softmax(-1),
        nn.PReLU(8),
        nn.PReLU(),  # its slope would learn from one worker's units only
        nn.GroupNorm(2, 8),
        nn.Sequential(nn.ReLU(), nn.LogSoftmax(-1)),
        type("Own", (nn.ReLU,), {})(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_may_mix_units_is_not_cut_apart(between: nn.Module) -> None:
    assert split(nn.Sequential(nn.Linear(6, 8), between, nn.Linear(8, 4))) == []
    # Also where it is called a second time.
    assert split(nn.Sequential(between, nn.Linear(6, 8), between, nn.Linear(8, 4))) == []


class Written(nn.Sequential):
    """A chain with a forward pass of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[1](self[0](x).softmax(-1))


def test_what_only_a_forward_pass_knows_is_left_to_a_plan() -> None:
    assert split(Written(nn.Linear(6, 8), nn.Linear(8, 4))) == []
    assert split(Decoder()) == []
    assert split(nn.TransformerEncoderLayer(8, 2, 16)) == []


def test_layers_that_are_not_as_torch_made_them_stay_whole() -> None:
    hooked = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    hooked[1].register_forward_hook(lambda module, args, output: output / output.norm())
    assert split(hooked) == []
    watched = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    watched[1].register_full_backward_hook(lambda module, inputs, outputs: None)
    assert split(watched) == []
    normed = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 4))
    assert split(normed) == []


def test_shared_layers_stay_whole() -> None:
    layer = nn.Linear(8, 8)
    assert split(nn.Sequential(layer, nn.ReLU(), layer)) == []
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    assert split(tied) == []
