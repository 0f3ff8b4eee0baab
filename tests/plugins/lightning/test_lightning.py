"""Lightning modules: what `from_ptl` trains is what Lightning by itself trains."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from tests.plugins.lightning.lightning_modules import Diary, Points, PointsData, TwoParts, plain, points
from tests.train.operators import Digits
from tests.train.workers.test_recovery import identical
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.fsdp import FSDP

PRELOAD = ("torch", "pytorch_lightning")  # It takes seconds to import, in each worker.

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    # Of Lightning's own, in the runs that it is compared with.
    pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*treespec, LeafSpec"),
]


def trainer(operator: type[TrainingOperator], **options: Any) -> TorchTrainer:
    return TorchTrainer(training_operator_cls=operator, use_gpu=False, **options)


def step_losses(gang: TorchTrainer) -> list[float]:
    """Loss of each step over all workers."""
    per_worker = gang.apply_all_operators(lambda operator: operator.model.steps)
    return [
        math.fsum(loss * count for loss, count in step) / sum(count for _, count in step)
        for step in zip(*per_worker, strict=True)
    ]


def test_checkpoints_of_lightnings_would_be_of_a_part_under_fsdp(tmp_path: Path) -> None:
    operator = TrainingOperator.from_ptl(Points, callbacks=[ModelCheckpoint(dirpath=tmp_path)])
    with pytest.raises(ConfigError, match=r"FSDP\(\) with Lightning's checkpoints, which hold only one"):
        trainer(operator, num_workers=2, num_cpus_per_worker=0.5, strategy="fsdp")


def test_a_range_test_leaves_no_checkpoints_of_its_weights(tmp_path: Path) -> None:
    keeps = ModelCheckpoint(dirpath=tmp_path / "kept", save_last=True)
    operator = TrainingOperator.from_ptl(Points, callbacks=[keeps])
    with trainer(operator, config={"samples": 40}) as gang:
        gang.lr_find(num_training=10)
        assert not list(tmp_path.rglob("*.ckpt"))
        gang.train()
        assert list(tmp_path.rglob("last.ckpt"))


@pytest.mark.parametrize(
    ("workers", "strategy"),
    [(2, "auto"), (1, "fsdp"), (4, FSDP(replicas=2))],
    ids=str,
)
def test_epochs_are_lightnings_own(workers: int, strategy: Any, tmp_path: Path) -> None:
    options = {"num_workers": workers, "num_cpus_per_worker": 0.5, "strategy": strategy}
    # 101 samples: the last batch is a single one, which one worker has and the other one stands in for.
    config = {BATCH_SIZE: 20, "samples": 101}
    expected = Points(config)
    metrics = plain(expected, 4).callback_metrics
    operator = TrainingOperator.from_ptl(Points)
    with trainer(operator, config=config, **options) as gang:
        assert gang.has_validation
        for _ in range(3):
            result = gang.train()
        assert result["epoch"] == 3
        assert (result["batch_count"], result["num_samples"]) == (6, 101)
        again = gang.validate()
        assert again["num_samples"] == 101
        for name in ("val_loss", "val_accuracy"):
            assert again[name] == pytest.approx(result[name], abs=1e-9)
        gang.save(tmp_path / "checkpoint")
        last = gang.train()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
        assert last["num_samples"] == 101
        for name in ("loss", "loss_epoch", "val_loss", "val_accuracy", "val_seen", "most", "counted"):
            # torchmetrics sums in 32 bits.
            most = 1e-5 if name == "val_seen" else 1e-9
            assert last[name] == pytest.approx(float(metrics[name]), abs=most), name
        assert last["train_loss"] == pytest.approx(last["loss"], abs=1e-9)
        model = gang.get_model()
    assert type(model) is Points
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], rtol=0, atol=1e-9)

    # Optimizer, schedulers, loops, generators: a new trainer goes on as if there had been no break.
    with trainer(operator, config={**config, "seed": 5}, **options) as gang:
        gang.load(tmp_path / "checkpoint")
        assert gang.train() == last
    if strategy != "auto":
        with trainer(operator, config={**config, "seed": 5}) as alone:
            alone.load(tmp_path / "checkpoint")
            assert alone.train()["loss_epoch"] == pytest.approx(last["loss_epoch"], abs=1e-9)
            saved = alone.state_dict()
        with trainer(operator, config={**config, "seed": 5}, **options) as gang:
            gang.load_state_dict(saved)
            held = gang.state_dict()["operator"]["lightning"]["optimizer_states"][0]["state"]
            for index, entry in saved["operator"]["lightning"]["optimizer_states"][0]["state"].items():
                assert torch.equal(held[index]["momentum_buffer"], entry["momentum_buffer"])


def test_manual_optimization_a_data_module_and_hyperparameters_by_name() -> None:
    config = {"lr": 0.05, "batch_size": 10, "samples": 55, "unused": object}
    expected = TwoParts(lr=0.05)
    plain(expected, 2, datamodule=PointsData(batch_size=10, samples=55))
    operator = TrainingOperator.from_ptl(TwoParts, datamodule=PointsData)
    with trainer(operator, config={**config, "batch_size": 5}, num_workers=2) as gang:
        assert not gang.has_validation
        with pytest.raises(ConfigError, match="no validation data"):
            gang.validate()
        gang.train()
        result = gang.train()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
        assert set(result) == {"epoch", "batch_count", "num_samples", "should_stop"}  # It logs nothing.
        saved = gang.state_dict()["operator"]["lightning"]
        assert len(saved["optimizer_states"]) == 2
        assert saved["global_step"] == 12


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_lightning_accumulates_clips_and_finds_unused_parameters(strategy: str) -> None:
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    expected = Points({BATCH_SIZE: 20, "samples": 101})
    plain(expected, 2, **options)
    own = {"strategy": "ddp_find_unused_parameters_true"} if strategy == "ddp" else {}
    operator = TrainingOperator.from_ptl(Points, trainer_args={"gradient_clip_val": 0.5, **own})
    config = {BATCH_SIZE: 20, "samples": 101}
    with trainer(
        operator, config=config, num_workers=2, grad_accumulation_steps=2, strategy=strategy
    ) as gang:
        gang.train()
        result = gang.train()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
    assert result["train_loss"] == pytest.approx(result["loss"], abs=1e-9)


def test_hooks_run_once_and_the_end_is_told(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    operator = TrainingOperator.from_ptl(Points, callbacks=[Diary(diary)])
    with trainer(operator, config={"samples": 40}) as gang:
        gang.train()
        gang.validate()
        gang.train(num_steps=1)
    assert diary.read_text().splitlines() == [
        "setup fit",
        "fit start",
        "train start",
        "validation in fit",
        "epoch 0 end",
        "validation in validate",
        "validation in fit",
        "epoch 1 end",
        "train end",
        "fit end",
        "teardown fit",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler_step_freq": "epoch", "compile": True}, "scheduler_step_freq: .*compile: "),
        ({"wrap_ddp": False, "num_workers": 2}, "wrap_ddp=False"),
    ],
    ids=str,
)
def test_what_lightning_does_itself_is_not_asked_of_the_trainer(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(TrainingOperator.from_ptl(Points), **options)


class Stacked(Points):
    """Has blocks to gather one by one, calls itself, and looks at a weight."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        blocks = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Sequential(*blocks), nn.Linear(8, 3)).double()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.net(features)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        loss = loss + 0.01 * self.net[2].weight.square().sum()
        self.steps.append((loss.item(), len(batch[1])))
        return loss


def test_blocks_are_gathered_and_the_whole_module_is_there_in_a_step() -> None:
    config = {BATCH_SIZE: 20, "samples": 100}
    expected = Stacked(config)
    plain(expected, 2)
    with trainer(TrainingOperator.from_ptl(Stacked), config=config, num_workers=2, strategy="fsdp") as gang:
        for _ in range(2):
            gang.train()
            gang.validate()
        assert step_losses(gang) == pytest.approx([loss for loss, _ in expected.steps], abs=1e-9)
        held = gang.apply_all_operators(lambda op: [len(p.to_local()) for p in op.model.parameters()])
    assert held == [[4, 4, 4, 4, 4, 4, 2, 2], [4, 4, 4, 4, 4, 4, 1, 1]]


class Predicting(Points):
    """Predicts classes, numbered by where each batch begins; notes the stages that it is set up for."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.stages: list[str] = []

    def setup(self, stage: Any) -> None:
        self.stages.append(stage.value)

    def teardown(self, stage: Any) -> None:
        self.stages.append(f"no {stage.value}")

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        assert not self.training
        torch.rand(3)
        return {"classes": self.net(batch[0]).argmax(1), "target": batch[1]}

    def predict_dataloader(self) -> Any:
        return DataLoader(self.data, batch_size=10)


def several(config: dict[str, Any]) -> Any:
    loader = DataLoader(points(7), batch_size=2)
    return [loader, loader] if config.get("twice") else loader


@pytest.mark.parametrize(("workers", "strategy"), [(3, "auto"), (2, "fsdp")], ids=str)
def test_predictions_are_those_of_one_worker(workers: int, strategy: str) -> None:
    config = {BATCH_SIZE: 30, "samples": 93, "twice": True}
    expected = Predicting(config)
    reference = plain(expected, 1)
    losses = [loss for loss, _ in expected.steps]
    options = {"num_workers": workers, "num_cpus_per_worker": 0.5, "strategy": strategy}
    with trainer(TrainingOperator.from_ptl(Predicting), config=config, **options) as gang:
        gang.train()
        assert identical(gang.predict(), reference.predict(expected))
        assert identical(gang.predict(num_steps=4), reference.predict(expected)[:4])
        assert identical(gang.predict(several), reference.predict(expected, several(config)))
        one = gang.predict(lambda config: several({}))
        assert [len(batch["target"]) for batch in one] == [2, 2, 2, 1]
        stages = gang.apply_all_operators(lambda operator: operator.model.stages)
        assert stages == [["fit", *["predict", "no predict"] * 4]] * workers
        gang.train()
        plain(again := Predicting(config), 2)
        assert step_losses(gang) == pytest.approx([loss for loss, _ in again.steps], abs=1e-9)
        assert losses == [loss for loss, _ in again.steps][: len(losses)]


def test_what_cannot_be_predicted() -> None:
    with trainer(TrainingOperator.from_ptl(Points), num_workers=2) as gang:
        with pytest.raises(ConfigError, match=r"predict\(\): num_steps must be 1 or more, .* not 0"):
            gang.predict(num_steps=0)
        with pytest.raises(ConfigError, match=r"needs Points\.predict_dataloader, or dataset="):
            gang.predict()
    with (
        trainer(TrainingOperator.from_ptl(Predicting), config={}, num_workers=2) as gang,
        pytest.raises(ConfigError, match="without a batch sampler can't be shared among 2 workers"),
    ):
        gang.predict([points(3).tensors])
    with trainer(Digits) as gang:
        with pytest.raises(ConfigError, match="needs an operator made by from_ptl"):
            gang.predict()
        assert gang.train(num_steps=1)["epoch"] == 1, "the mistake has cost no worker"
    with pytest.raises(ConfigError, match=r"or from_ptl\(LightningModule\)"):
        TorchTrainer(training_operator_cls=Points)


class Unscheduled(Points):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)


@pytest.mark.parametrize(
    ("workers", "strategy", "every"), [(1, "auto", 1), (2, "auto", 2), (2, "fsdp", 1)], ids=str
)
def test_a_range_test_sets_the_rates_of_lightnings_optimizers(
    workers: int, strategy: str, every: int
) -> None:
    config = {BATCH_SIZE: 20, "samples": 101}
    expected = Unscheduled(config)
    plain(expected, 2, accumulate_grad_batches=every)
    # Of a step, the mean over its samples.
    steps = [
        expected.steps[start : start + every] for epoch in (0, 6) for start in range(epoch, epoch + 6, every)
    ]
    average, smoothed = 0.0, []
    for number, step in enumerate(steps, start=1):
        loss = sum(loss * count for loss, count in step) / sum(count for _, count in step)
        average = 0.98 * average + 0.02 * loss
        smoothed.append(average / (1 - 0.98**number))
    options = {"num_workers": workers, "strategy": strategy, "grad_accumulation_steps": every}
    # Its own schedulers would lower the rate.
    with trainer(TrainingOperator.from_ptl(Points), config=config, **options) as gang:
        before = gang.state_dict()["models"]
        found = gang.lr_find(0.2, 0.2 * (1 + 1e-13), num_training=12 // every)
        assert found.results["loss"] == pytest.approx(smoothed, abs=1e-9)
        assert identical(gang.state_dict()["models"], before)
        gang.train()
        plain(again := Points(config), 1, accumulate_grad_batches=every)
        assert step_losses(gang) == pytest.approx([loss for loss, _ in again.steps], abs=1e-9)


def test_the_batch_size_of_a_lightning_module_is_found() -> None:
    with trainer(TrainingOperator.from_ptl(Points), config={BATCH_SIZE: 2, "samples": 40}) as gang:
        assert gang.scale_batch_size(init_val=16, batch_arg_name=BATCH_SIZE) == 64


class ConfiguresModel(Points):
    def configure_model(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("module", "trainer_args", "message"),
    [
        (TwoParts, {}, "uses manual optimization"),
        (ConfiguresModel, {}, "with configure_model: make the module's layers in __init__"),
        (Points, {"strategy": "ddp"}, "sharding strategy="),
    ],
    ids=["manual", "configure_model", "strategy"],
)
def test_what_cannot_be_sharded(module: Any, trainer_args: dict[str, Any], message: str) -> None:
    operator = TrainingOperator.from_ptl(module, trainer_args=trainer_args)
    with (
        pytest.raises(ConfigError, match=message),
        trainer(operator, config={"lr": 0.1}, num_workers=1, strategy="fsdp") as gang,
    ):
        gang.train()


# -- recovery -----------------------------------------------------------------------------------


class Fragile(Points):
    """Worker 1 is killed in the middle of an epoch, once, if there is a file of its life; it drops units."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.net.insert(1, torch.nn.Dropout(0.2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        life = Path(self.config["life"])
        if (self.global_rank, self.current_epoch, batch_idx) == (1, 1, 2) and life.exists():
            life.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(batch, batch_idx)


def survive(life: Path) -> tuple[list[Any], dict[str, Any]]:
    torch.manual_seed(7)
    with TorchTrainer(
        training_operator_cls=TrainingOperator.from_ptl(Fragile),
        config={BATCH_SIZE: 20, "life": str(life)},
        num_workers=2,
        strategy="fsdp",
        use_gpu=False,
    ) as gang:
        numbers = [gang.train(), gang.validate(), gang.train(), gang.train()]
        return numbers, gang.get_model().state_dict()


def test_a_killed_worker_changes_no_number(tmp_path: Path) -> None:
    life = tmp_path / "life"
    numbers, weights = survive(life)
    life.touch()
    again, same = survive(life)
    assert not life.exists()
    assert again == numbers
    assert all(torch.equal(value, same[name]) for name, value in weights.items())


class Spoilt(Points):
    """Worker 1 finds a spoilt sample in its second batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if (self.global_rank, batch_idx) == (1, 1):
            raise ValueError("a spoilt sample")
        return super().training_step(batch, batch_idx)


def test_an_error_of_one_worker_is_raised_while_the_others_wait() -> None:
    operator = TrainingOperator.from_ptl(Spoilt)
    with (
        pytest.raises(ValueError, match="a spoilt sample"),
        trainer(operator, config={"samples": 60}, num_workers=2, timeout_s=20) as gang,
    ):
        gang.train()


# -- tuning ------------------------------------------------------------------------------------


def test_trials_end_in_order(tmp_path: Path) -> None:
    stopping = EarlyStopping("val_loss", patience=0, min_delta=100.0)
    operator = TrainingOperator.from_ptl(Points, callbacks=[stopping, Diary(tmp_path / "diary")])
    trainable = TorchTrainer.as_trainable(
        training_operator_cls=operator, num_workers=2, config={"samples": 60}, use_gpu=False
    )
    grid = tune.Tuner(
        trainable,
        param_space={"lr": tune.grid_search([0.1, 0.2])},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(name="points", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert grid.num_errors == 0
    assert [result.metrics["epoch"] for result in grid] == [2, 2]  # The second one is no better.
    written = (tmp_path / "diary").read_text().splitlines()
    assert written.count("fit end") == written.count("teardown fit") == 4  # Two workers each.
    assert written.count("validation in fit") == 8
