"""Lightning's own Trainer, and Fabric, in a function trainer."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.conftest import run_python
from tests.train.torch import library_loops
from tests.train.torch.launched import column, trainer, under_torchrun
from trainkit import train
from trainkit.errors import ConfigError, WorkerGroupError
from trainkit.train import FailureConfig

PRELOAD = ("torch", "lightning.pytorch")
pytestmark = pytest.mark.usefixtures("runtime")

PROCESSES, OTHER = "start processes in each of the 2 workers", "pytorch_lightning"


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return under_torchrun(tmp_path_factory.mktemp("launched"), "lightning", "fabric")


def test_the_curve_is_that_of_torchrun_though_a_worker_fails(launched: Any, tmp_path: Path) -> None:
    again = {"failure_config": FailureConfig(max_failures=1)}
    result = trainer(library_loops.lightning, tmp_path, {"fails_at": 2}, run=again).fit()
    for name in ("loss", "epoch", "step"):
        assert list(result.metrics_dataframe[name]) == column(launched["lightning"], name)
    assert os.listdir(result.checkpoint.path) == ["checkpoint.ckpt"]


def test_a_trainer_of_the_other_package_takes_the_strategy(launched: Any, tmp_path: Path) -> None:
    """The workers' template has imported `lightning`; the script imports `pytorch_lightning`."""
    result = trainer(library_loops.lightning, tmp_path, {"package": "pytorch_lightning"}).fit()
    assert list(result.metrics_dataframe["loss"]) == column(launched["lightning"], "loss")


def fabric_forks(config: dict[str, Any]) -> None:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", strategy="ddp_fork", devices=2)
    fabric.launch(lambda fabric: None)


def test_a_script_for_torchrun_runs_as_it_is(launched: Any, tmp_path: Path) -> None:
    result = trainer(library_loops.lightning, tmp_path, {"plain": True}).fit()
    assert list(result.metrics_dataframe["loss"]) == column(launched["lightning"], "loss")


def test_fabric_finds_the_workers(launched: Any, tmp_path: Path) -> None:
    result = trainer(library_loops.fabric, tmp_path).fit()
    assert list(result.metrics_dataframe["loss"]) == column(launched["fabric"], "loss")
    assert result.metrics["processes"] == 2


def deepspeed(config: dict[str, Any]) -> None:
    from trainkit.train.lightning import RayDeepSpeedStrategy

    RayDeepSpeedStrategy()


def test_deepspeed_is_refused_where_it_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(WorkerGroupError, match="you must have DeepSpeed installed"):
        trainer(deepspeed, tmp_path, workers=1).fit()


def unprepared(config: dict[str, Any]) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import LightningEnvironment

    from trainkit.train.lightning import RayDDPStrategy, prepare_trainer

    if config["strategy"]:
        more = {"strategy": "ddp", "devices": 2}
    else:
        more = {"strategy": RayDDPStrategy(), "plugins": [LightningEnvironment()]}
    prepare_trainer(pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **more))


@pytest.mark.parametrize(
    ("function", "config", "message"),
    [
        (library_loops.lightning, {"plain": True, "strategy": "ddp_fork"}, PROCESSES),
        (library_loops.lightning, {"plain": True, "strategy": "ddp_spawn", "package": OTHER}, PROCESSES),
        (fabric_forks, {}, PROCESSES),
        (library_loops.lightning, {"strategy": "RayFSDPStrategy"}, "RayFSDPStrategy needs GPUs"),
        (
            unprepared,
            {"strategy": True},
            "DDPStrategy is not one of RayDDPStrategy, RayFSDPStrategy and RayDeepSpeedStrategy",
        ),
        (
            unprepared,
            {"strategy": False},
            r"LightningEnvironment identifies this process as worker \d of 1, but it is worker \d of 2",
        ),
    ],
)
def test_what_would_not_train_together_is_refused(
    function: Any, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkerGroupError, match=message) as caught:
        trainer(function, tmp_path, config).fit()
    assert [type(error) for error in caught.value.worker_failures.values()] == [ConfigError]


def step_by_step(config: dict[str, Any]) -> None:
    """Report each step; worker 1 is killed in the middle of the second epoch, once."""
    import lightning.pytorch as pl

    from trainkit.train import lightning as ray_names

    start = library_loops.resumed_from()
    workers = train.get_context().get_world_size()

    class Line(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1, dtype=torch.float64)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = (each.double() for each in batch)
            self.log("samples", x.sum(), on_step=True, on_epoch=False, sync_dist=True, reduce_fx="sum")
            loss = nn.functional.mse_loss(self.layer(x), y)
            self.log("loss", loss, on_step=True, on_epoch=False, sync_dist=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            dies = config.get("dies_after") == self.trainer.global_step and start is None
            if dies and self.global_rank == workers - 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=0.05)

    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        strategy=ray_names.RayDDPStrategy(),
        plugins=[ray_names.RayLightningEnvironment()],
        callbacks=[ray_names.RayTrainReportCallback(every_n_train_steps=1)],
    )
    points, loaders = library_loops.points(), config.get("loaders", 0)
    loader = DataLoader(points, 8 // workers, shuffle=True, num_workers=loaders)
    ray_names.prepare_trainer(trainer).fit(
        Line(), loader, ckpt_path=None if start is None else os.path.join(start, "checkpoint.ckpt")
    )


REPORTED = ("step", "epoch", "samples", "loss")


@pytest.mark.slow
@pytest.mark.parametrize("loaders", [0, 1], ids=["alone", "with loader processes"])
@pytest.mark.parametrize("step", [6, 8], ids=["within an epoch", "after the last batch"])
def test_a_fit_continues_with_the_next_batch(step: int, loaders: int, tmp_path: Path) -> None:
    config = {"loaders": loaders}
    expected = trainer(step_by_step, tmp_path / "whole", config).fit().metrics_dataframe
    config["dies_after"] = step
    again = {"failure_config": FailureConfig(max_failures=1)}
    found = trainer(step_by_step, tmp_path / "killed", config, run=again).fit().metrics_dataframe
    for name in REPORTED:
        assert list(found[name]) == list(expected[name])


@pytest.mark.slow
def test_a_fit_continues_on_another_number_of_workers(tmp_path: Path) -> None:
    whole = trainer(step_by_step, tmp_path / "whole").fit()
    expected = whole.metrics_dataframe
    folder = sorted(Path(whole.path).glob("checkpoint_*"))[5]  # three steps, the epoch, and two steps
    rest = trainer(
        step_by_step, tmp_path / "rest", workers=1, resume_from_checkpoint=train.Checkpoint(str(folder))
    ).fit()
    for name in REPORTED:
        assert list(rest.metrics_dataframe[name]) == pytest.approx(list(expected[name])[6:], abs=1e-9)


def notes_handlers(config: dict[str, Any]) -> None:
    import lightning.pytorch as pl

    from trainkit.train.lightning import RayDDPStrategy, RayLightningEnvironment

    class Line(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            train.report({"kept": signal.getsignal(signal.SIGTERM) is before})
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    before = signal.getsignal(signal.SIGTERM)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    fit = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices="auto",
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        **quiet,
    )
    fit.fit(Line(), DataLoader(torch.ones(2, 1), 1))


def test_workers_keep_their_signal_handlers(tmp_path: Path) -> None:
    """At a signal to all processes, Lightning's handler would mix its collectives with those of the step."""
    assert trainer(notes_handlers, tmp_path).fit().metrics["kept"]


def test_a_subclass_of_a_strategy_extends_the_trainers_package() -> None:
    code = """if True:
        import lightning.pytorch
        from trainkit.train.lightning import RayDDPStrategy, RayDeepSpeedStrategy, RayFSDPStrategy
        import pytorch_lightning as pl
        class Mine(RayDDPStrategy):
            def __init__(self, more, **options):
                super().__init__(**options)
                self.more = more
        class Further(Mine):
            def setup_environment(self):
                super().setup_environment()
        for strategy in (RayDDPStrategy, RayFSDPStrategy, RayDeepSpeedStrategy):
            theirs = getattr(pl.strategies, strategy.__name__.removeprefix("Ray"))
            assert theirs in strategy.__new__(strategy).__class__.__mro__
        for package in (pl, lightning.pytorch):
            for kind in (Mine, Further):
                mine = kind(5, find_unused_parameters=True)
                trainer = package.Trainer(strategy=mine, accelerator="cpu", logger=False)
                bases = type(mine).__mro__
                first = next(base for base in bases if base.__module__.startswith(("lightning", "pytorch_l")))
                assert trainer.strategy is mine and isinstance(mine, kind) and mine.more == 5
                assert first is package.strategies.DDPStrategy, first
                assert mine._ddp_kwargs == {"find_unused_parameters": True}, mine._ddp_kwargs
        assert Mine.__bases__ == (RayDDPStrategy,) and Further.__bases__ == (Mine,)
    """
    run_python("-c", code)
