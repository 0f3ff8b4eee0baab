"""What newcomers get wrong is told at once, in the words of what they wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.operators import Digits, alone
from trainkit.errors import CheckpointError, ConfigError, InfeasibleError
from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.distributed.failure_cause import advice
from trainkit.train.strategies.base import StepSettings
from trainkit.train.strategies.context import ContextParallel
from trainkit.train.strategies.fsdp import FSDP
from trainkit.train.strategies.layers import Layers
from trainkit.train.strategies.tensor import TensorParallel

TWO = {"num_workers": 2}
FOUR = {"num_workers": 4}
CPUS = ["cpu", "cpu"]


@pytest.mark.parametrize("make", [TorchTrainer, TorchTrainer.as_trainable], ids=["trainer", "trainable"])
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
        ({"colour": "red"}, "no argument colour: no argument has a similar name. The arguments are "),
        ({"num_workers": 0}, "num_workers must be a positive integer, not 0"),
        (
            {**TWO, "config": {BATCH_SIZE: 1}},
            r"config\['\*batch_size'\]=1 must be at least 2, one sample for each of the 2 workers",
        ),
        ({"backend": "nccl"}, "backend='nccl' needs GPUs"),
        ({"backend": "nccl", "use_gpu": 0}, "backend='nccl' needs GPUs"),
        ({"timeout_s": 0}, "timeout_s must be a positive number of seconds, not 0"),
        # Names of RaySGD's first trainer.
        ({"num_replicas": 2}, "num_replicas: pass num_workers"),
        ({"batch_size": 2, "apex_args": {}}, "batch_size: set it in config.*; apex_args: Apex is not used"),
        ({"use_fp16": "apex"}, "use_fp16 must be True or False, not 'apex'; Apex is not used"),
        ({"use_fp16": True, "precision": "bf16"}, "use_fp16=True means precision='fp16', not 'bf16'"),
        # Strategies with too few or too many workers or devices.
        ({"strategy": "layers"}, "each worker has only one device: pass gpus_per_worker=2, or"),
        ({"strategy": Layers(devices=["cpu"])}, "devices must be a list of at least two"),
        ({"strategy": Layers(devices=["cpu", "tpu?"])}, r"devices: 'tpu\?' is not a device"),
        ({"strategy": Layers(["0"], devices=["cpu", *CPUS])}, "split must be a list of 2 names"),
        ({"strategy": Layers("0", devices=CPUS)}, "split must be a list of 1 names"),
        ({"strategy": Layers({"0": 2}, devices=CPUS)}, "the index of one of the 2 devices, 0 to 1"),
        (
            {"strategy": "layers", "gpus_per_worker": 2},
            "gpus_per_worker=2 needs GPUs: leave it or use_gpu=False out",
        ),
        ({"strategy": "tensor"}, "raise num_workers"),
        ({"strategy": TensorParallel(degree=1), **FOUR}, "needs at least 2 workers"),
        ({"strategy": TensorParallel(degree=3), **FOUR}, "a multiple of 3"),
        (
            {"strategy": TensorParallel(degree=2, data="shard"), **FOUR, "channels_last": True},
            "leave out channels_last",
        ),
        ({"strategy": "context"}, "needs at least 2 workers"),
        ({"strategy": ContextParallel(degree=3), **FOUR}, "a multiple of 3"),
        ({"strategy": Pipeline(degree=2), "num_workers": 3}, "num_workers must be a multiple of 2 .*, not 3"),
        ({"strategy": Pipeline(), **TWO, "use_gpu": True, "gpus_per_worker": 2}, "a stage uses one device"),
        (
            {"strategy": Pipeline(degree=2, tensor=TensorParallel(degree=2)), "num_workers": 6},
            "must be a multiple of 4 with",
        ),
        ({"strategy": Pipeline(degree=2, tensor=TensorParallel()), **TWO}, "needs at least 2 workers"),
        (
            {"strategy": Pipeline(degree=3, tensor=TensorParallel()), "num_workers": 8},
            "must be a multiple of 6 with",
        ),
        ({"strategy": FSDP(), **TWO, "channels_last": True}, "leave out channels_last"),
        ({"strategy": FSDP(), "gpus_per_worker": 2, "use_gpu": "auto"}, "FSDP uses one GPU per worker"),
        ({"strategy": FSDP(replicas=3), **TWO}, "2 workers can't hold 3 sharded copies"),
        ({"strategy": FSDP(replicas=2), **TWO}, "a multiple of 2, at least 4"),
        *(
            ({"strategy": FSDP(replicas=wrong), **TWO}, "replicas must be a positive integer, not ")  # type: ignore[arg-type]
            for wrong in (0, 1.5, True)
        ),
    ],
    ids=str,
)
def test_wrong_arguments(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**{"training_operator_cls": Digits, "use_gpu": False, **arguments})


@pytest.mark.parametrize(
    ("strategy", "arguments", "message"),
    [
        (TensorParallel, {"degree": 0}, "degree must be a positive integer, not 0"),
        (TensorParallel, {"degree": 1.0}, "degree must be a positive integer, not 1.0"),
        (TensorParallel, {"data": "copy"}, 'data must be "replicate" or "shard", not \'copy\''),
        (TensorParallel, {"plan": {"0": "columns"}}, "ColwiseParallel"),
        (ContextParallel, {"degree": 0}, "degree must be a positive integer, not 0"),
        (ContextParallel, {"seq_dim": -1}, "seq_dim must be a dimension >= 0, not -1"),
        (ContextParallel, {"buffers": {"positions": "0"}}, "{name: dimension}"),
        (Pipeline, {"degree": 0}, r"Pipeline\(degree=\) must be a positive integer or None, not 0"),
        (Pipeline, {"microbatches": 0}, r"\(microbatches=\) must be a positive integer or None, not 0"),
        (Pipeline, {"schedule": "zigzag"}, r"\(schedule=\) must be one of .*, not 'zigzag'"),
        (Pipeline, {"split": "block3"}, r"Pipeline\(split=\) must be a list of names .*, not 'block3'"),
        (Pipeline, {"split": ["3"], "degree": 3}, "which makes 2 stages"),
        (Pipeline, {"tensor": 2}, r"Pipeline\(tensor=\) must be TensorParallel.* not 2"),
        (
            Pipeline,
            {"tensor": TensorParallel(degree=2, data="shard")},
            'with data="replicate", or None',
        ),
        (Pipeline, {"tensor": TensorParallel()}, "needs a degree, its own or that of its tensor parallelism"),
    ],
)
def test_wrong_arguments_of_strategies(strategy: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        strategy(**arguments)


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
