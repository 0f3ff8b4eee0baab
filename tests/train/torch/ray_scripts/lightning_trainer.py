"""Train by Lightning's Trainer on several workers, in the form of Ray Train's guide for PyTorch Lightning."""

import os

import lightning.pytorch as pl
import ray
import ray.train.lightning
import torch
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, batch_idx):
        right = (self.layers(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("accuracy", right, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class FailsOnce(pl.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2 and trainer.global_rank == 1 and not ray.train.get_checkpoint():
            raise RuntimeError("the third epoch is cursed")


def train_func(config):
    pl.seed_everything(0)
    features = torch.randn(96, 8)
    data = TensorDataset(features, (features.sum(dim=1) > 0).long())
    trainer = pl.Trainer(
        max_epochs=4,
        accelerator="cpu",
        devices="auto",
        strategy=ray.train.lightning.RayDDPStrategy(),
        plugins=[ray.train.lightning.RayLightningEnvironment()],
        callbacks=[ray.train.lightning.RayTrainReportCallback(), FailsOnce()],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer = ray.train.lightning.prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    path = None
    if checkpoint:
        path = os.path.join(checkpoint.path, ray.train.lightning.RayTrainReportCallback.CHECKPOINT_NAME)
    trainer.fit(
        Classifier(config["lr"]),
        DataLoader(data, batch_size=8, shuffle=True),
        DataLoader(data, batch_size=32),
        ckpt_path=path,
    )


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    result = TorchTrainer(
        train_func,
        train_loop_config={"lr": 1e-2},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=os.path.abspath("results"),
            name="lightning",
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            ),
        ),
    ).fit()
    for _, metrics in result.best_checkpoints:
        print("LINE", metrics["epoch"], metrics["step"], metrics["loss"].hex(), metrics["accuracy"].hex())
    checkpoint = result.get_best_checkpoint("loss", "min")
    model = Classifier.load_from_checkpoint(os.path.join(checkpoint.path, "checkpoint.ckpt"))
    print("LINE", [value.double().sum().item().hex() for value in model.state_dict().values()])
