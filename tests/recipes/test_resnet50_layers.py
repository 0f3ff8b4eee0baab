"""ResNet-50 over two devices of a worker, both of them the CPU."""

from __future__ import annotations

import re

import pytest

from tests.recipes.programs import run_here

SHORT = "--cpu --images 4 --size 32 --classes 10 --batch-size 4 --epochs 1".split()


@pytest.mark.slow
def test_placed_and_by_hand_train_alike(runtime: None, capsys: pytest.CaptureFixture[str]):
    printed = [run_here("resnet50_layers", *SHORT, *how, capsys=capsys) for how in ((), ("--by-hand",))]
    placed, by_hand = (re.findall(r"loss ([\d.]+)", text) for text in printed)
    assert len(placed) == 1
    assert placed == by_hand
    assert "conv1: cpu, bn1: cpu, layer1: cpu" in printed[0]
