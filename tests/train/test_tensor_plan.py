"""What is split by default: pairs of layers that compute the same in parts, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.train.transformers import Attention, Decoder, Gated
from trainkit.train.strategies.tensor_plan import computes_the_same, default_candidates


def split(model: nn.Module, ways: int = 2) -> list[str]:
    """Names of the layers that are split by default, those by rows in capitals."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    chosen = [
        candidate
        for candidate in default_candidates(model, ways)
        if computes_the_same(model, candidate, ways)
    ]
    assert torch.equal(torch.get_rng_state(), state), "a trial draws from the global generator"
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return [
        name.upper() if type(style).__name__ == "RowwiseParallel" else name
        for candidate in chosen
        for name, style in candidate.styles().items()
    ]


def test_a_stack_of_linear_layers_alternates() -> None:
    stack = nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 4), nn.Linear(4, 4), nn.ReLU()
    )
    assert split(stack) == ["0", "3"]
    stack.append(nn.Linear(4, 3))
    assert split(stack) == ["0", "3", "4", "6"]
    assert split(stack, ways=8) == ["0", "3"]
    assert split(stack, ways=3) == []


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
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_mixes_units_is_not_cut_apart(between: nn.Module) -> None:
    assert split(nn.Sequential(nn.Linear(6, 8), between, nn.Linear(8, 4))) == []


class Written(nn.Module):
    """Two layers, and a forward pass that is given."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.one, self.two, self.side = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 1)
        self.written = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.written(self, x)


@pytest.mark.parametrize(
    ("right", "forward"),
    [
        (True, lambda m, x: m.two(F.gelu(m.one(x)))),
        (True, lambda m, x: x + m.two(F.gelu(m.one(F.layer_norm(x, (6,)))))),
        (True, lambda m, x: m.side(m.two(m.one(x).tanh()))),
        (False, lambda m, x: m.two(F.softmax(m.one(x), -1))),
        (False, lambda m, x: m.two(m.one(x).flip(-1).cumsum(-1))),
        (False, lambda m, x: (m.two(hidden := m.one(x)), hidden)),
        (False, lambda m, x: m.two(m.one(x) / m.one(x).norm(dim=-1, keepdim=True))),
        (False, lambda m, x: m.two(m.one(x) * m.side(x))),  # its gradient would be a part only
        (False, lambda m, x: m.two(m.one(x) * x.mean(-1, keepdim=True))),
        (False, lambda m, x: m.two(m.two(m.one(x)) @ m.two.weight.T)),
        (False, lambda m, x: m.one(x)),
        (False, lambda m, x: m.two(m.one(x.view(3, -1, 6, 5)))),
    ],
)
def test_a_trial_shows_whether_units_are_on_their_own(right: bool, forward: Any) -> None:
    assert split(Written(forward)) == (["one", "TWO"] if right else [])


def test_attention_is_split_by_heads() -> None:
    attention = Attention(16, n_heads=4, n_kv_heads=2)
    assert split(attention) == ["q_proj", "k_proj", "v_proj", "O_PROJ"]
    (candidate,) = default_candidates(attention, 2)
    assert candidate.heads == {"n_heads": 2, "n_kv_heads": 1}
    assert attention.n_heads == 4
    assert split(attention, ways=4) == [], "two heads of keys are not for four"


def test_a_transformer_is_split_in_its_blocks() -> None:
    assert split(Gated(8, 12)) == ["gate_proj", "up_proj", "DOWN_PROJ"]
    names = split(Decoder())
    assert len(names) == 2 * 7
    assert "layers.1.attention.q_proj" in names
    assert not any(name.lower() in ("head", "embed") for name in names)


def test_torchs_own_layers_split_their_mlp() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert split(layer) == ["linear1", "LINEAR2"]
    assert split(nn.TransformerDecoderLayer(8, 2, 16)) == ["linear1", "LINEAR2"]


def test_shared_layers_stay_whole() -> None:
    layer = nn.Linear(8, 8)
    assert split(nn.Sequential(layer, nn.ReLU(), layer)) == []
    tied = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    assert split(tied) == []
