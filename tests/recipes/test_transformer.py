"""The transformer, short, spread in every way: one loss curve."""

from __future__ import annotations

import re

import pytest

from recipes import text
from tests.recipes.programs import run_here, run_recipe

SHORT = "--width 64 --layers 2 --context 32 --batch-size 8 --limit 12000 --steps 12 --every 3".split()


def losses(printed: str) -> list[float]:
    """Four of training, one of validation."""
    assert "\ndef " in printed
    return [float(found) for found in re.findall(r"loss:? +([\d.]+)", printed)]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    return losses(run_recipe("transformer", *SHORT))


def test_it_learns(alone: list[float]):
    assert len(alone) == 5
    assert alone[0] > alone[3] + 0.5


@pytest.mark.parametrize("strategy", ["fsdp", "pipeline"])
def test_every_strategy_follows_the_same_losses(
    alone: list[float],
    strategy: str,
    runtime: None,
    capsys: pytest.CaptureFixture[str],
):
    """In this process, whose session all of them share."""
    spread = ("--workers", "2", "--strategy", strategy)
    printed = run_here("transformer", *SHORT, *spread, capsys=capsys)
    assert losses(printed) == pytest.approx(alone, abs=1e-3)


def test_pieces_cover_the_text_once():
    training, validation = text.load(None, limit=1001, context=10)
    assert len(training) == 89
    assert len(validation) == 10
    codes, target = training[3]
    assert codes[1:].tolist() == target[:-1].tolist()
    assert bytes(codes.tolist()).decode() == text.standard_library(1001)[30:40]
