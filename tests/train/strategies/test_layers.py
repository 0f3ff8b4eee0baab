"""Layer placement: which part goes where, what is handed over, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.operators import Digits, cpu_trainer, gang_losses, plain_losses
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE
from trainkit.train.strategies.base import Place
from trainkit.train.strategies.ddp import DDP
from trainkit.train.strategies.layers import Handover, Layers, Part, balanced, cut_at, named
from trainkit.train.strategies.modules import skeleton
from trainkit.train.strategies.single import Single

CPU = torch.device("cpu")
META = torch.device("meta")


class Net(nn.Module):
    """A stem, a chain of blocks, and a head; 8 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        self.act = nn.ReLU()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.blocks(self.stem(x) * self.scale)))


def places(parts: list[Part]) -> dict[str, int]:
    return {part.name: part.device for part in parts if not part.own}


# -- the map -----------------------------------------------------------------------------------


def test_cuts_begin_the_next_device() -> None:
    assert places(cut_at(Net(), ["blocks"])) == {"stem": 0, "blocks": 1, "act": 1, "head": 1}
    assert places(cut_at(Net(), ["blocks.1", "head"])) == {
        "stem": 0,
        "blocks.0": 0,
        "blocks.1": 1,
        "blocks.2": 1,
        "blocks.3": 1,
        "act": 1,
        "head": 2,
    }


def test_names_may_be_given_their_devices() -> None:
    # What has no parameters and was not named is in no part: it runs where its input is.
    assert places(named(Net(), {"": 0, "blocks.2": 1, "blocks.3": 1})) == {
        "stem": 0,
        "blocks.0": 0,
        "blocks.1": 0,
        "blocks.2": 1,
        "blocks.3": 1,
        "head": 0,
    }
    assert places(named(Net(), {"": 1, "stem": 0, "act": 0})) == {"stem": 0, "blocks": 1, "act": 0, "head": 1}


@pytest.mark.parametrize(
    ("sizes", "devices", "expected"),
    [
        ([1, 1, 1, 1], 2, [0, 0, 1, 1]),
        ([9, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([1, 1, 1, 9], 2, [0, 0, 0, 1]),
        ([9, 1, 5, 0], 3, [0, 1, 2, 2]),
        ([3, 0, 3, 0], 2, [0, 0, 1, 1]),
        ([2, 2, 5, 2, 2], 3, [0, 0, 1, 2, 2]),
    ],
    ids=str,
)
def test_the_fullest_device_holds_as_little_as_can_be(
    sizes: list[int], devices: int, expected: list[int]
) -> None:
    chain = nn.Sequential(*(nn.Linear(size, 1, bias=False) if size else nn.Identity() for size in sizes))
    assert list(places(balanced(chain, devices)).values()) == expected


def test_only_chains_are_cut() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    assert places(balanced(nn.Sequential(Residual(), Residual()), 2)) == {"0": 0, "1": 1}
    with pytest.raises(ConfigError, match=r"Sequential has only 1 .* 2 devices: name smaller parts"):
        balanced(nn.Sequential(Residual(), nn.ReLU()), 2)


def test_a_module_under_two_names_is_placed_once() -> None:
    net = Net()
    net.first = nn.Sequential(net.stem, net.blocks)
    assert places(cut_at(net, ["head"])) == {"stem": 0, "blocks": 0, "act": 0, "head": 1}


def test_shared_parameters_stay_together() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False))
    model[2].weight = model[0].weight  # type: ignore[assignment]
    assert places(cut_at(model, ["1"])) == {"0": 0, "1": 1, "2": 0}
    with pytest.raises(ConfigError, match="split puts 2 on device 1, but 2 shares a parameter with a module"):
        named(model, {"0": 0, "1": 1, "2": 1})


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (["blocks.9"], r"Net has no module \['blocks.9'\]; its first modules are stem, blocks, act, head"),
        (["head", "stem"], r"the names must follow the order of the model: \['stem', 'head'\]"),
        ({"stem": 0}, "split assigns no device to the model's own tensors, blocks, head: add them"),
        ({"": 0, "tail": 1}, r"Net has no module \['tail'\]"),
    ],
)
def test_names_that_are_none(split: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        named(Net(), split) if isinstance(split, dict) else cut_at(Net(), split)


# -- handing over ------------------------------------------------------------------------------


def build(spec: Layers) -> Any:
    return spec.build(Place(devices=(CPU,)))


def test_what_comes_from_another_device_is_moved() -> None:
    # "meta" stands for the second GPU: tensors on it have a place and a shape, but no numbers.
    (model,) = build(Layers(["blocks.2"], devices=["cpu", "meta"])).place([Net()], [], {})
    where = {
        name: parameter.device.type for name, parameter in model.named_parameters() if "bias" not in name
    }
    assert where == {
        "scale": "cpu",
        "stem.weight": "cpu",
        "blocks.0.weight": "cpu",
        "blocks.1.weight": "cpu",
        "blocks.2.weight": "meta",
        "blocks.3.weight": "meta",
        "head.weight": "meta",
    }
    assert model(torch.randn(2, 8)).device == META


def test_a_handover_moves_whatever_a_module_takes() -> None:
    hook = pickle.loads(pickle.dumps(Handover(META)))
    here, there = torch.ones(2), torch.ones(2, device=META)
    module = nn.Identity()
    assert hook(module, (there,), {}) is None
    args, kwargs = hook(module, (here,), {})
    assert (args[0].device, kwargs) == (META, {})
    args, kwargs = hook(module, ([here, 3], None), {"mask": {"a": here}})
    assert (args[0][0].device, args[0][1], args[1]) == (META, 3, None)
    assert kwargs["mask"]["a"].device == META


def test_parameters_stay_the_same_objects_and_copies_lose_the_hooks() -> None:
    net = Net()
    before = list(net.parameters())
    (model,) = build(Layers(devices=["cpu", "cpu"])).place([net], [], {})
    assert model is net
    assert all(mine is theirs for mine, theirs in zip(before, model.parameters(), strict=True))
    assert any(module._forward_pre_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in skeleton(model).modules())
    assert list(model.state_dict()) == list(Net().state_dict())


def test_a_model_that_was_placed_by_hand_stays() -> None:
    net = Net()
    net.head.to(META)
    (model,) = build(Layers(devices=["cpu", "cpu"])).place([net], [], {})
    assert model.head.weight.device == META
    assert not any(module._forward_pre_hooks for module in model.modules())


def on_two_devices(spec: Any) -> Any:
    return spec.build(Place(devices=(CPU, META), wrap=False))


@pytest.mark.parametrize("spec", [Single(), DDP()], ids=str)
def test_what_was_placed_by_hand_stays_with_any_strategy(spec: Any, caplog: pytest.LogCaptureFixture) -> None:
    halves, whole = Net(), Net().to(META)
    halves.head.to(META)
    placed = on_two_devices(spec).place([halves, whole], [], {})
    assert placed[0].head.weight.device == placed[1].stem.weight.device == META
    assert placed[0].stem.weight.device == CPU
    assert not caplog.messages
    on_two_devices(spec).place([Net()], [], {})
    assert "each worker has 2 devices, but all models are on cpu: pass strategy='layers'" in caplog.text


def test_target_and_loss_go_where_the_output_is() -> None:
    criterion = nn.CrossEntropyLoss(weight=torch.ones(3))
    model, features = nn.Linear(2, 3).to(META), [torch.ones(1, 2, device=META)]
    target = torch.zeros(1, dtype=torch.int64)
    output, loss = on_two_devices(Single()).forward(model, criterion, features, target)
    assert (output.device, loss.device, criterion.weight.device) == (META, META, META)


# -- training ----------------------------------------------------------------------------------

CONFIG: dict[str, Any] = {BATCH_SIZE: 16, "samples": 100}


class TwoHalves(nn.Module):
    """The classic: halves with `.to(...)` in the forward pass."""

    def __init__(self, whole: nn.Sequential, devices: list[torch.device]) -> None:
        super().__init__()
        self.first, self.second = whole[:1].to(devices[0]), whole[1:].to(devices[1])
        self.device = devices[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).to(self.device))


class ByHand(Digits):
    """The digits' model in two halves, on the devices that the operator knows."""

    def register(self, *, models: Any, optimizers: Any, **others: Any) -> Any:
        halves = TwoHalves(models, self.devices)
        # As made from the model's parameters, which moving leaves the same.
        return super().register(models=halves, optimizers=optimizers, **others)


@pytest.mark.usefixtures("runtime")
def test_a_model_placed_by_hand_follows_the_plain_loop() -> None:
    with cpu_trainer(ByHand, 2, CONFIG, strategy=Layers(devices=["cpu", "cpu"])) as gang:
        gang.train(num_steps=10)
        assert gang_losses(gang) == pytest.approx(plain_losses(CONFIG, 10), abs=1e-9)
        assert gang.apply_all_operators(lambda op: len(op.devices)) == [2] * 2
        assert type(gang.get_model()).__name__ == "TwoHalves"


# -- mistakes ----------------------------------------------------------------------------------


def test_a_device_of_another_worker_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cuda:1 is not a device of this worker. Its devices are cpu"):
        build(Layers(devices=["cpu", "cuda:1"]))
