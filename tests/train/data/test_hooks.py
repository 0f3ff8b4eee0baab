"""Hooks of torch's loaders, samplers and data sets, in operators and in functions."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from tests.train.data.hooked import DEALT, WHOLE, plain, taken, tell
from tests.train.torch.launched import trainer as function_trainer
from trainkit import train
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.torch import prepare_data_loader

SIZE = 4


class Kept(TrainingOperator):
    """Operator that keeps the samples of each step."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps: list[list[int]] = []
        self.register_data(train_loader=DEALT[config["kind"]](SIZE))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> dict[str, Any]:
        self.steps.append(batch.tolist())
        return {}


def made(workers: int, kind: str = "sampler", **more: Any) -> TorchTrainer:
    return TorchTrainer(
        training_operator_cls=Kept, num_workers=workers, config={"kind": kind}, use_gpu=False, **more
    )


def trained(trainer: TorchTrainer, **more: Any) -> list[list[list[int]]]:
    """The steps of an epoch, by worker."""
    before = len(trainer.apply_all_operators(lambda operator: operator.steps)[0])
    trainer.train(max_retries=0, **more)
    return [each[before:] for each in trainer.apply_all_operators(lambda operator: operator.steps)]


def together(found: list[list[list[int]]]) -> list[list[int]]:
    return [sorted(chain(*parts)) for parts in zip(*found, strict=True)]


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(("workers", "deals"), [(2, True), (2, False)])
def test_an_operators_loader_has_all_hooks(workers: int, deals: bool) -> None:
    """Each epoch is on another loader, and has the samples that a plain loop takes of it."""
    kinds = DEALT if deals else {**DEALT, **WHOLE}
    with made(workers, use_local=workers == 1, add_dist_sampler=deals) as trainer:
        for epoch, (kind, make) in enumerate(kinds.items()):
            found = trained(trainer, dataset=lambda config, make=make: make(SIZE))
            if deals:
                (expected,) = plain(make, SIZE * workers, epoch)
                assert together(found) == [sorted(step) for step in expected], kind
            else:
                assert found == plain(make, SIZE, epoch) * workers, kind


class Lightning(pl.LightningModule):
    """Module whose loader is another after every two epochs; it keeps the samples of each step."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.kinds, self.steps = kinds, []
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def train_dataloader(self) -> Any:
        return {**DEALT, **WHOLE}[self.kinds[self.current_epoch // 2]](SIZE)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps.append(batch.tolist())
        return self.weight.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(("workers", "deals"), [(1, True), (2, False)])
def test_lightnings_loaders_have_all_hooks(workers: int, deals: bool) -> None:
    # Lightning begins a loader that it has made again twice, which draws from the loader's generator.
    kinds = [kind for kind in (DEALT if deals else {**DEALT, **WHOLE}) if kind != "generator"]
    operator = TrainingOperator.from_ptl(Lightning, trainer_args={"reload_dataloaders_every_n_epochs": 2})
    options = {"use_local": workers == 1, "add_dist_sampler": deals, "config": {"kinds": kinds}}
    with TorchTrainer(
        training_operator_cls=operator, num_workers=workers, use_gpu=False, **options
    ) as trainer:
        for index, kind in enumerate(kinds):
            make = {**DEALT, **WHOLE}[kind]
            for _ in range(2):
                trainer.train(max_retries=0)
            both = range(2 * index, 2 * index + 2)
            found = trainer.apply_all_operators(lambda operator: operator.model.steps)
            expected = list(chain(*plain(make, SIZE * (workers if deals else 1), *both)))
            found = [steps[-len(expected) :] for steps in found]
            if deals:
                assert together(found) == [sorted(step) for step in expected], kind
            else:
                assert found == [expected] * workers, kind


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("kind", ["sampler's state", "generator"])
def test_a_checkpoint_has_what_an_order_depends_on(kind: str, tmp_path: Path) -> None:
    with made(2, kind) as trainer:
        found = [together(trained(trainer)) for _ in range(2)]
        trainer.save(tmp_path / "c")
    with made(2, kind) as trainer:
        trainer.load(tmp_path / "c")
        found.append(together(trained(trainer)))
    expected = plain(DEALT[kind], 2 * SIZE, *range(3))
    assert found == [[sorted(step) for step in epoch] for epoch in expected]


def loop(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    found: dict[str, Any] = {}
    for kind, make in {**DEALT, **WHOLE}.items():
        own = make(SIZE)
        loader: Any = prepare_data_loader(own, add_dist_sampler=False)
        found[kind] = []
        for epoch in range(3):
            tell(loader, epoch)
            found[kind].append(taken(loader))
    # Those that can be dealt out, which torch's DistributedSampler does.
    for kind, name in (("data set", "shares"), ("worker_init_fn", "marked shares")):
        loader = prepare_data_loader(DEALT[kind](SIZE))
        tell(loader, 3)
        found[name] = taken(loader)
    own = DEALT["a loader's own batch sampler"](SIZE)
    with pytest.raises(ConfigError, match="would replace your own Order"):
        prepare_data_loader(own)
    object.__setattr__(own, "sampler", torch.utils.data.SequentialSampler(own.dataset))
    shared: Any = prepare_data_loader(own)
    found["class"] = [type(shared._loader).__name__, type(shared.batch_sampler).__name__, *taken(shared)]
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(found))


def of_ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.usefixtures("runtime")
def test_a_functions_loaders_have_all_hooks(tmp_path: Path) -> None:
    function_trainer(loop, tmp_path, {"folder": str(tmp_path)}).fit()
    for rank, found in enumerate(of_ranks(tmp_path)):
        for kind, make in {**DEALT, **WHOLE}.items():
            assert found[kind] == plain(make, SIZE, *range(3)), kind
        own = [[rank + 2 * (4 * step + each) for each in range(4)] for step in range(2)]
        assert found["shares"] == [[3000 + index for index in step] for step in own]
        assert found["marked shares"] == [[503_000 + index for index in step] for step in own]
        assert found["class"] == ["OwnLoader", "OwnBatchSampler", *own]
