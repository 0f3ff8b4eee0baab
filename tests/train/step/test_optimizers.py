"""Optimizers whose parameters were replaced: where their state goes, and what is kept of their groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainkit.train.strategies import gradients
from trainkit.train.strategies.sharded import ParameterSlots


@pytest.mark.parametrize(
    ("choice", "counted_on"),
    [({}, "cpu"), ({"fused": True}, "meta"), ({"capturable": True}, "meta")],
    ids=str,
)
def test_state_is_loaded_to_where_the_optimizer_wants_it(choice: dict[str, Any], counted_on: str) -> None:
    """The "meta" device stands for a GPU: a fused step takes no count from the CPU."""
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    slots = ParameterSlots([model], [optimizer])
    placed = nn.Parameter(torch.empty(2, 2, device="meta"))
    slots.replace([optimizer], {(0, "weight"): placed})
    values = {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 2), "row": torch.ones(2)}
    groups = [{**optimizer.param_groups[0], "params": [0], **choice}]
    slots.load([optimizer], [{"state": {0: values}, "param_groups": groups}])
    held = {name: value.device.type for name, value in optimizer.state[placed].items()}
    assert held == {"step": counted_on, "exp_avg": "meta", "row": "meta"}


class Counting(torch.optim.Optimizer):
    """Keeps what it has learnt in its groups, as D-Adaptation and Prodigy do."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"steps": 0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] += 1


def test_what_an_optimizer_keeps_in_its_groups_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gradients,
        "_by_kind",
        lambda group: [{**group, "params": [parameter]} for parameter in group["params"]],
    )
    optimizer = Counting(nn.Linear(2, 2).parameters())
    (group,) = optimizer.param_groups
    gradients.step_by_kind(optimizer)
    for _ in range(3):
        optimizer.step()
    assert optimizer.param_groups[0] is group
    assert group["steps"] == 3
    assert len(group["params"]) == 2
