"""Strategies by name: ours, and those that other packages add."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packages import install_from_page
from tests.train.operators import Digits, cpu_trainer
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer
from trainkit.train.strategies.base import STRATEGIES, named_strategy

PAGE = "docs/extending/add-a-strategy.md"


@pytest.fixture
def half_ddp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_from_page(PAGE, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("half_ddp", "runtime")
def test_the_strategy_of_the_page_is_given_by_its_name_and_trains() -> None:
    losses = {}
    for strategy in ("ddp", "half_ddp"):
        options = {"num_cpus_per_worker": 0.5, "strategy": strategy}
        with cpu_trainer(Digits, 2, {"samples": 256}, **options) as trainer:
            losses[strategy] = [trainer.train()["train_loss"] for _ in range(2)]
            kinds = trainer.apply_all_operators(lambda operator: type(operator._strategy).__name__)
    assert kinds == ["HalfDDPStrategy"] * 2
    # Two bytes for each gradient: close, and not equal.
    assert losses["half_ddp"] != losses["ddp"]
    assert losses["half_ddp"] == pytest.approx(losses["ddp"], rel=1e-2)


@pytest.mark.usefixtures("half_ddp")
def test_mistakes_of_an_added_strategy_are_told_before_a_worker_starts() -> None:
    with pytest.raises(ConfigError, match=r"HalfDDP\(\): one worker has nobody to exchange gradients with"):
        TorchTrainer(training_operator_cls=Digits, strategy="half_ddp")


@pytest.mark.usefixtures("half_ddp")
def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"strategy='half' is unknown: pass one of .*'ddp'.*'half_ddp'"):
        named_strategy("half", num_workers=2)


def test_every_row_is_made_without_arguments() -> None:
    for name in STRATEGIES.own_names():
        assert type(named_strategy(name, num_workers=2)) is STRATEGIES.get(name)
