"""What only a machine with GPUs can show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.train.operators import Digits, gang_losses, plain_losses
from tests.train.strategies.test_layers import ByHand
from trainkit import train
from trainkit.train import BATCH_SIZE, RunConfig, ScalingConfig, TorchTrainer
from trainkit.train.strategies.layers import Layers
from trainkit.train.torch import TorchTrainer as FunctionTrainer
from trainkit.train.torch import get_device

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("runtime")]

CONFIG: dict[str, Any] = {BATCH_SIZE: 48, "samples": 500}


def needs(gpus: int) -> pytest.MarkDecorator:
    """Skip where there are fewer GPUs."""
    found = torch.cuda.device_count()
    return pytest.mark.skipif(found < gpus, reason=f"needs {gpus} CUDA devices; this machine has {found}")


@pytest.mark.parametrize("workers", [pytest.param(1, marks=needs(1)), pytest.param(2, marks=needs(2))])
def test_gpu_workers_follow_the_plain_loop(workers: int) -> None:
    with TorchTrainer(training_operator_cls=Digits, config=CONFIG, num_workers=workers) as gang:
        assert (
            gang.apply_all_operators(lambda op: (op.use_gpu, str(op.device))) == [(True, "cuda:0")] * workers
        )
        gang.train(num_steps=50)
        assert gang_losses(gang) == pytest.approx(plain_losses(CONFIG, 50), abs=1e-9)


def on_own_gpu() -> None:
    torch.cuda.set_device(train.get_context().get_local_rank())
    total = torch.ones((), device=get_device()) * (dist.get_rank() + 1)
    dist.all_reduce(total)
    train.report({"total": total.item(), "device": str(get_device()), "seen": torch.cuda.device_count()})


@needs(2)
def test_workers_of_a_function_see_the_gpus_of_all(tmp_path: Path) -> None:
    result = FunctionTrainer(
        on_own_gpu,
        scaling_config=ScalingConfig(num_workers=2, use_gpu=True),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert (result.metrics["total"], result.metrics["device"], result.metrics["seen"]) == (3.0, "cuda:0", 2)


@needs(1)
def test_models_and_states_come_back_on_the_cpu() -> None:
    with TorchTrainer(training_operator_cls=Digits, config=CONFIG) as gang:
        gang.train(num_steps=2)
        model = gang.get_model()
        assert isinstance(model, torch.nn.Module)
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
        assert gang.state_dict()["models"][0]["0.weight"].device.type == "cpu"
        assert gang.apply_all_operators(lambda op: next(op.model.parameters()).device.type) == ["cuda"]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=needs(2)), pytest.param(2, marks=needs(4))])
@pytest.mark.parametrize(
    ("operator", "strategy"),
    [(Digits, "layers"), (Digits, Layers(["2"])), (ByHand, "layers"), (ByHand, "auto")],
    ids=["balanced", "cut", "by-hand", "by-hand-auto"],
)
def test_layers_over_two_gpus_follow_the_plain_loop(operator: Any, strategy: Any, workers: int) -> None:
    with TorchTrainer(
        training_operator_cls=operator,
        config=CONFIG,
        num_workers=workers,
        strategy=strategy,
        gpus_per_worker=2,
    ) as gang:
        where = gang.apply_all_operators(
            lambda op: sorted({str(parameter.device) for parameter in op.model.parameters()})
        )
        assert where == [["cuda:0", "cuda:1"]] * workers
        gang.train(num_steps=50)
        assert gang_losses(gang) == pytest.approx(plain_losses(CONFIG, 50), abs=1e-9)
        assert gang.validate()["num_samples"] == 500
        model = gang.get_model()
        assert isinstance(model, torch.nn.Module)
        assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
