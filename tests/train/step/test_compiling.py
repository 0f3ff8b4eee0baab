"""Modules compiled in place: everything is, whatever its class and hooks, and copies know nothing of it."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

from trainkit.train.strategies.modules import compile_in_place


class Residual(nn.Module):
    def __init__(self, width: int, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.wide = nn.Linear(4, width)
        self.narrow = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.narrow(torch.relu(self.wide(x))) * self.index
        return result


@pytest.fixture(autouse=True)
def captured(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Reads torch's own counts; compilation ends with the graph, so that no C++ compiler is needed."""
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters  # type: ignore[attr-defined, unused-ignore]
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    return lambda name: int(counters["stats"][name])


def sequence() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def test_torchs_own_classes_are_compiled_whole(captured: Callable[[str], int]) -> None:
    """`Module.compile()` passes over them without a word."""
    model = sequence()
    expected, names = model(torch.ones(2, 4)), list(model.state_dict())
    compile_in_place(model)
    torch.testing.assert_close(model(torch.ones(2, 4)), expected)
    assert captured("calls_captured") == 3
    assert captured("unique_graphs") == 1
    assert list(model.state_dict()) == names


def test_hooks_that_cannot_be_compiled_do_not_end_the_graph(captured: Callable[[str], int]) -> None:
    """As FSDP2's, by which it gathers parameters."""
    model, called = sequence(), []

    def hook(*_: Any) -> None:
        torch._dynamo.graph_break()
        called.append(True)

    model.register_forward_pre_hook(hook)
    compile_in_place(model)
    model.register_forward_hook(hook)
    model(torch.ones(2, 4))
    assert called == [True, True]
    assert captured("calls_captured") == 3
    assert captured("unique_graphs") == 1


def test_blocks_that_are_alike_share_a_graph(captured: Callable[[str], int]) -> None:
    blocks = [Residual(8) for _ in range(12)]
    compile_in_place(*blocks)
    nn.Sequential(*blocks)(torch.ones(2, 4, requires_grad=True))
    assert captured("unique_graphs") == 1


@pytest.mark.parametrize(
    "block", [lambda n: Residual(n + 3), lambda n: Residual(8, index=n)], ids=["sizes", "attributes"]
)
def test_more_kinds_of_blocks_than_torch_compiles_a_function_for(
    captured: Callable[[str], int], block: Callable[[int], nn.Module]
) -> None:
    blocks = [block(number) for number in range(12)]
    compile_in_place(*blocks)
    nn.Sequential(*blocks)(torch.ones(2, 4, requires_grad=True))
    assert captured("unique_graphs") == 12


def test_copies_and_pickles_are_plain(captured: Callable[[str], int]) -> None:
    model = sequence()
    compile_in_place(model)
    expected = model(torch.ones(2, 4))
    graphs = captured("unique_graphs")
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert "forward" not in vars(clone)
        torch.testing.assert_close(clone(torch.ones(2, 4)), expected)
    assert captured("unique_graphs") == graphs


def test_a_forward_of_the_instances_own_is_kept(captured: Callable[[str], int]) -> None:
    model = nn.Linear(4, 4)
    own = functools.partial(nn.Linear.forward, model)
    model.forward = own  # type: ignore[method-assign]
    compile_in_place(model)
    model(torch.ones(2, 4))
    assert model.forward is own
    assert captured("unique_graphs") == 1


def test_an_error_in_forward_leaves_the_module_as_it_is() -> None:
    model = sequence()
    compile_in_place(model)
    with pytest.raises((RuntimeError, torch._dynamo.exc.TorchRuntimeError)):
        model(torch.ones(2, 5))
    assert "forward" not in vars(model)
    assert model(torch.ones(2, 4)).shape == (2, 4)
