"""What newcomers get wrong is told at once, in the words of what they wrote."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.operators import Digits, alone
from trainkit.errors import CheckpointError, ConfigError, InfeasibleError
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.distributed.failure_cause import advice
from trainkit.train.lightning.operator import untaken
from trainkit.train.strategies.base import StepSettings
from trainkit.train.strategies.fsdp import FSDP


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_worker": 2}, r"no argument num_worker: Did you mean 'num_workers'\? The arguments are"),
        ({"precison": "bf16"}, r"Did you mean 'precision'\?"),
        ({"strategy": "fsdp2"}, "strategy='fsdp2' is unknown: pass one of .*'fsdp'.*FSDP.* from trainkit"),
        ({"strategy": FSDP}, r"strategy=FSDP is a class: pass an instance, FSDP\(\)"),
        (
            {"strategy": 7},
            "strategy=7 is unknown: pass .*Derive the class of your own strategy from StrategySpec",
        ),
        ({"compile": "max-autotune"}, "compile must be True or False, not 'max-autotune'"),
        ({"use_local": "yes"}, "use_local must be True or False, not 'yes'"),
    ],
    ids=str,
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchTrainer(training_operator_cls=Digits, **arguments)


@pytest.mark.usefixtures("runtime")
def test_a_missing_gpu_is_answered_with_use_gpu_false() -> None:
    for workers, words in ((1, "1 worker with 1 GPU"), (2, "2 workers, each with 1 GPU")):
        with pytest.raises(InfeasibleError, match="not enough GPU") as caught:
            TorchTrainer(training_operator_cls=Digits, num_workers=workers, use_gpu=True)
        (note,) = caught.value.__notes__
        assert note == f"TorchTrainer asked for {words}: pass use_gpu=False to train on the CPU"


class Stray(TrainingOperator):
    """Its optimizers hold the model's parameters, a copy's, or the criterion's, as `config` says."""

    def setup(self, config: dict[str, Any]) -> None:
        model, copy, learned = nn.Linear(2, 2), nn.Linear(2, 2), nn.PReLU()
        sources = {"model": model, "copy": copy, "criterion": learned}
        optimizers = [torch.optim.SGD(sources[name].parameters(), lr=0.1) for name in config["of"]]
        self.register(models=model, optimizers=optimizers, criterion=learned)


def test_an_optimizer_of_other_parameters() -> None:
    with pytest.raises(ConfigError, match="no optimizer has a parameter of the models"):
        alone(Stray, {"of": ["copy"]})
    for others in (["criterion"], ["model", "copy"]):
        alone(Stray, {"of": others})


def test_only_what_was_asked_for_is_named() -> None:
    assert StepSettings(precision="bf16", max_grad_norm=1.0).asked_for == "max_grad_norm=1.0"
    both = StepSettings(precision="fp16", grad_accumulation_steps=2)
    assert both.asked_for == "precision='fp16' with grad_accumulation_steps=2"


@pytest.mark.usefixtures("runtime")
def test_a_file_is_no_checkpoint(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "model.pt")
    with (
        TorchTrainer(training_operator_cls=Digits, use_gpu=False, use_local=True) as trainer,
        pytest.raises(CheckpointError, match="is a file, but a checkpoint of TorchTrainer is a folder"),
    ):
        trainer.load(tmp_path / "model.pt")


class UnusedLayer(Digits):
    def setup(self, config: dict[str, Any]) -> None:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.unused = nn.Linear(64, 10).double(), nn.Linear(2, 2)

            def forward(self, x: Any) -> Any:
                return self.used(x)

        super().setup(config)
        self._registered.models.clear()
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.register(models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss())


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
def test_unused_parameters_are_told_where_to_be_named() -> None:
    options: dict[str, Any] = {"num_workers": 2, "num_cpus_per_worker": 0.5, "use_gpu": False}
    with (
        TorchTrainer(training_operator_cls=UnusedLayer, **options) as trainer,
        pytest.raises(RuntimeError, match="find_unused_parameters") as caught,
    ):
        trainer.train(num_steps=3)
    assert any("register(..., ddp_args=" in note for note in caught.value.__notes__)
    assert advice(RuntimeError("something else")) is None


class AnyKeyword:
    def __init__(self, **hyperparameters: Any) -> None: ...


@pytest.mark.external
def test_keys_that_no_module_takes_are_told(caplog: pytest.LogCaptureFixture) -> None:
    from tests.train.lightning.lightning_modules import Points, WithRate  # what no worker here waits for

    operator = TrainingOperator.from_ptl(WithRate)
    config = {"lr": 0.1, "learning_rate": 0.2}
    with caplog.at_level(logging.WARNING):
        TorchTrainer(training_operator_cls=operator, config=config, use_gpu=False, use_local=True).shutdown()
    assert (
        "ignoring 'learning_rate' in config, because WithRate has no parameter with that name" in caplog.text
    )
    assert untaken(config, [Points]) == []  # it takes the whole of it, as `config`
    assert untaken(config, [WithRate, AnyKeyword]) == []


@pytest.mark.external
def test_a_module_in_place_of_its_class() -> None:
    from tests.train.lightning.lightning_modules import WithRate

    with pytest.raises(
        ConfigError, match=r"from_ptl\(\) needs a LightningModule class, not an object of WithRate"
    ):
        TrainingOperator.from_ptl(WithRate())
