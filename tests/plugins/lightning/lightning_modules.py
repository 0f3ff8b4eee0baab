"""Lightning modules that the tests of `from_ptl` share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import SumMetric

from trainkit.train import BATCH_SIZE


def points(samples: int) -> TensorDataset:
    """Points of the plane in three classes."""
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
    return TensorDataset(features, (features.sum(dim=1) > 0).long() + (features[:, 0] > 0).long())


class Points(pl.LightningModule):
    """A small network; it keeps the loss and size of every training batch."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(config.get("seed", 0))
        self.config = config
        self.size = config.get(BATCH_SIZE, 20)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        self.seen = SumMetric().double()
        self.data = points(config.get("samples", 101))
        self.steps: list[tuple[float, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        features, target = batch
        loss = cross_entropy(self.net(features), target)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("most", features.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("counted", float(len(target)), on_step=False, on_epoch=True, reduce_fx="sum")
        self.steps.append((loss.item(), len(target)))
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        features, target = batch
        output = self.net(features)
        self.log("val_loss", cross_entropy(output, target), sync_dist=True)
        self.log("val_accuracy", (output.argmax(dim=1) == target).double().mean())
        self.seen(features.sum(dim=1))
        self.log("val_seen", self.seen, on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.config.get("lr", 0.2), momentum=0.9)
        schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9), "interval": "step"}
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1.0)
        return [optimizer], [schedule, {"scheduler": plateau, "monitor": "val_loss"}]

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, self.size, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self.data, self.size)


class WithRate(Points):
    """Takes one keyword, and not the whole configuration."""

    def __init__(self, lr: float = 0.1) -> None:
        super().__init__({"lr": lr})


class Diary(pl.Callback):
    """Writes down which hooks were called, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def note(self, name: str) -> None:
        with open(self.path, "a") as stream:
            stream.write(f"{name}\n")

    def setup(self, trainer: Any, pl_module: Any, stage: Any) -> None:
        self.note(f"setup {stage.value}")

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self.note("fit start")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.note("train start")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.note(f"epoch {trainer.current_epoch} end")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.note(f"validation in {trainer.state.fn.value}")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.note("train end")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.note("fit end")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.note(f"exception {type(exception).__name__}")

    def teardown(self, trainer: Any, pl_module: Any, stage: Any) -> None:
        self.note(f"teardown {stage.value}")


class TwoParts(pl.LightningModule):
    """Manual optimization with two optimizers; takes its hyperparameters by name."""

    def __init__(self, lr: float, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.save_hyperparameters()
        self.encoder, self.head = nn.Linear(2, width).double(), nn.Linear(width, 3).double()
        self.steps: list[tuple[float, int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        loss = cross_entropy(self.head(torch.tanh(self.encoder(batch[0]))), batch[1])
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        optimizers[batch_idx % 2].step()
        self.steps.append((loss.item(), len(batch[1])))

    def configure_optimizers(self) -> Any:
        lr = self.hparams["lr"]
        return [torch.optim.Adam(part.parameters(), lr=lr) for part in (self.encoder, self.head)]


class PointsData(pl.LightningDataModule):
    def __init__(self, batch_size: int = 10, samples: int = 50) -> None:
        super().__init__()
        self.batch_size, self.samples = batch_size, samples

    def setup(self, stage: str) -> None:
        self.data = points(self.samples)

    def train_dataloader(self) -> Any:
        return DataLoader(self.data, self.batch_size, shuffle=True)


def plain(module: pl.LightningModule, epochs: int, *, datamodule: Any = None, **options: Any) -> pl.Trainer:
    """Lightning by itself, in this process."""
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, datamodule=datamodule)
    return trainer
