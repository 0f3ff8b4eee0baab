"""Where models are cut into stages, and which can't be."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from trainkit.errors import ConfigError
from trainkit.plugins.pipeline.stages import cut


def linears(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(widths)))


class Staged(nn.Module):
    """Says itself what it calls one after the other."""

    def __init__(self, *, shared: bool = False, loose: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 8)
        if shared:
            self.head.weight = self.embed.weight
        if loose:
            self.scale = nn.Parameter(torch.ones(()))

    def stages(self) -> list[Any]:
        return [self.embed, [*self.body], self.head]


class Skips(nn.Module):
    """A forward of its own, with what is no module's: a skip over the cut, a parameter, a buffer."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.shift = nn.Parameter(torch.ones(6))
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.register_buffer("factor", torch.full((1,), 2.0))
        self.last = nn.Linear(6, 6 if tied else 3)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        skipped = value = self.first(value) + self.shift[: value.size(1)]
        for block in self.blocks:
            value = torch.tanh(block(value))
        return self.last((value + skipped) * self.factor)


class Drops(Skips):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.last(nn.functional.dropout(self.first(value), training=self.training))


class Decides(Skips):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(value) if value.sum() > 0 else value)


def names(model: nn.Module, split: Any, degree: int) -> list[str]:
    return [" ".join(block.name for block in stage) for stage in cut(model, split, degree).stages]


def test_stages_are_of_about_equal_size_or_begin_where_they_are_said_to() -> None:
    model = linears(8, 8, 8, 8, 32, 8)
    assert names(model, None, 2) == ["0 1 2 3", "4"]  # 192 + 256 and 256 numbers.
    assert names(model, None, 3) == ["0 1 2", "3", "4"]
    assert names(model, ["1", "4"], 3) == ["0", "1 2 3", "4"]

    nested = nn.Sequential(linears(8, 8, 8), nn.Sequential(nn.Tanh(), linears(8, 4)))
    assert names(nested, ["1"], 2) == ["0.0 0.1", "1.0 1.1.0"]
    assert names(nested, ["1.1"], 2) == ["0.0 0.1 1.0", "1.1.0"]

    assert names(Staged(), None, 2) == ["embed body.0", "body.1 head"]
    assert names(Staged(), ["body.0", "head"], 3) == ["embed", "body.0 body.1", "head"]
    assert names(Staged(), lambda model: [model.embed, *model.body, model.head], 4)[3] == "head"


@pytest.mark.parametrize(
    ("model", "split", "degree", "message"),
    [
        (nn.Linear(2, 2), None, 2, r"Linear can't be cut, .* split=function"),
        (linears(2, 2, 2), None, 3, "has 2 blocks in a row, too few for 3 stages"),
        (linears(2, 2, 2), ["7"], 2, "no block is called '7'; the blocks are 0, 1"),
        (linears(2, 2, 2), ["0"], 2, "without the first block"),
        (linears(2, 2, 2, 2), ["2", "1"], 3, "in their order"),
        (linears(2, 2, 2), lambda model: 3, 2, "the split function gave a int"),
        (linears(2, 2, 2), lambda model: ["0", "1"], 2, "gave a str, not a module"),
        (Staged(shared=True), None, 2, r"embed.weight of stage 0 is also used as weight by stage 1"),
        (Skips(tied=True), ["last"], 2, r"first.weight of stage 0 is also used as last.weight by stage 1"),
        (Skips(), ["middle"], 2, "calls no module 'middle'; it calls first, blocks.0, blocks.1, last"),
        (Skips(), ["last", "first"], 3, "in the order in which forward calls them"),
        (Drops(), ["last"], 2, "differs between training and evaluation"),
        (Decides(), ["last"], 2, r"can't be split at \['last'\] .* control flow.*split=function"),
        (Staged(loose=True), None, 2, "scale of Staged belong to no stage"),
    ],
)
def test_what_cannot_be_cut_is_refused(model: nn.Module, split: Any, degree: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cut(model, split, degree)
