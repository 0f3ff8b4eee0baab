"""Training loops of libraries, which run alike in a function trainer and under torchrun.

    torchrun --nproc-per-node 2 -m tests.train.torch.library_loops FOLDER NAME...

writes the reports of each loop that is named to FOLDER/NAME.json. A loop takes its configuration; "lr" and
"fails_at", the epoch in which worker 1 raises unless it goes on from a checkpoint, are those of trials.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainkit import train, tune

EPOCHS = 3
LAUNCHED: list[dict[str, Any]] = []
"""Reports of the present loop under torchrun."""


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(32, 4, generator=generator)
    return TensorDataset(features, features.sum(dim=1, keepdim=True).tanh())


def report(metrics: dict[str, Any], folder: str | None = None) -> None:
    if tune.is_session_enabled():
        checkpoint = None if folder is None else train.Checkpoint.from_directory(folder)
        train.report(metrics, checkpoint=checkpoint)
    else:
        LAUNCHED.append(metrics)


def resumed_from() -> str | None:
    """Return the path of the checkpoint to go on from."""
    checkpoint = train.get_checkpoint() if tune.is_session_enabled() else None
    return None if checkpoint is None else checkpoint.path


def fail(config: dict[str, Any], epoch: int) -> None:
    if config.get("fails_at") == epoch and dist.get_rank() == 1 and resumed_from() is None:
        raise LookupError("the epoch is cursed")


def accelerate(config: dict[str, Any]) -> None:
    """Accumulate gradients in bf16, as in Accelerate's own example of checkpoints."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    accelerator = Accelerator(
        gradient_accumulation_steps=2,
        mixed_precision="bf16",
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    )
    set_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.get("lr", 0.05))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    loader = DataLoader(points(), batch_size=4, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    start = 0
    if path := resumed_from():
        accelerator.load_state(path)
        start = int(Path(path, "epoch").read_text())
    own = Path(
        tempfile.gettempdir() if not tune.is_session_enabled() else train.get_context().get_trial_dir()
    )
    try:
        for epoch in range(start, EPOCHS):
            fail(config, epoch)
            loader.set_epoch(epoch)
            total = torch.zeros(())
            for features, target in loader:
                with accelerator.accumulate(model):
                    with accelerator.autocast():
                        loss = nn.functional.mse_loss(model(features), target)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                total += loss.detach()
            metrics = {
                "loss": accelerator.reduce(total, "mean").item(),
                "batches": len(loader),
                "processes": accelerator.num_processes,
                "model": type(model).__name__,
                "device": str(accelerator.device),
            }
            with tempfile.TemporaryDirectory() as folder:
                accelerator.save_state(folder)
                if accelerator.is_main_process:
                    Path(folder, "epoch").write_text(str(epoch + 1))
                report(metrics, folder)
    finally:
        (own / f"ended{accelerator.process_index}").touch()


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random words, and whether the first of them is a small one."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._words = torch.randint(50, (count, 8), generator=generator)

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = self._words[index]
        return {"input_ids": words, "labels": (words[0] < 25).long()}


def tiny_bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification, set_seed

    set_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **size))


def transformers_trainer(config: dict[str, Any], model: Any, **more: Any) -> Any:
    """Return a Transformers trainer of this loop, which reports each epoch."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from trainkit.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer

    class OfThisLoop(TrainerCallback):  # type: ignore[misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            fail(config, int(state.epoch or 0))

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not tune.is_session_enabled():
                last: dict[str, Any] = {}
                for entry in state.log_history:
                    last |= entry
                report(last)

    launched = not tune.is_session_enabled()
    folder = config["folder"] if launched else train.get_context().get_trial_dir()
    arguments = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": 4,
        "learning_rate": config.get("lr", 0.01),
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
    }
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=os.path.join(folder, "transformers"),
            save_total_limit=1,
            report_to=[],
            disable_tqdm=True,
            seed=0,
            **arguments | more.pop("arguments", {}),
        ),
        **{"train_dataset": Sentences(32, 1), "eval_dataset": Sentences(8, 2)} | more,
        callbacks=[OfThisLoop()],
    )
    if launched:
        return trainer
    trainer.add_callback(RayTrainReportCallback())
    return prepare_trainer(trainer)


def transformers(config: dict[str, Any]) -> None:
    """Train a tiny BERT, from its checkpoint if there is one."""
    trainer = transformers_trainer(config, tiny_bert())
    path = resumed_from()
    trainer.train(resume_from_checkpoint=None if path is None else os.path.join(path, "checkpoint"))


def peft(config: dict[str, Any]) -> None:
    """Train low-rank updates of the tiny BERT."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.0)
    trainer = transformers_trainer(config, get_peft_model(tiny_bert(), lora))
    trainer.train()


def lightning_module(config: dict[str, Any]) -> Any:
    pl: Any = importlib.import_module(config.get("package", "lightning.pytorch"))

    class Line(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def on_train_epoch_start(self) -> None:
            fail(config, self.current_epoch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=config.get("lr", 0.05))

    return Line()


def lightning(config: dict[str, Any]) -> None:
    """Train with Lightning's Trainer: by Ray's classes in a function trainer, by "ddp" under torchrun."""
    pl: Any = importlib.import_module(config.get("package", "lightning.pytorch"))

    pl.seed_everything(0, verbose=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    more: dict[str, Any]
    if tune.is_session_enabled() and not config.get("plain"):
        from trainkit.train import lightning as ray_names

        more = {
            "strategy": getattr(ray_names, config.get("strategy", "RayDDPStrategy"))(),
            "plugins": [ray_names.RayLightningEnvironment()],
            "callbacks": [ray_names.RayTrainReportCallback()],
            "devices": "auto",
        }
    else:

        class Told(pl.Callback):  # type: ignore[misc]
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                loss = trainer.callback_metrics["loss"].item()
                report({"loss": loss, "epoch": trainer.current_epoch, "step": trainer.global_step})

        more = {"strategy": config.get("strategy", "ddp"), "devices": 2, "callbacks": [Told()]}
    trainer = pl.Trainer(max_epochs=EPOCHS, accelerator="cpu", enable_checkpointing=False, **quiet, **more)
    if tune.is_session_enabled() and not config.get("plain"):
        trainer = ray_names.prepare_trainer(trainer)
    path = resumed_from()
    trainer.fit(
        lightning_module(config),
        DataLoader(points(), batch_size=4, shuffle=True),
        ckpt_path=None if path is None else os.path.join(path, "checkpoint.ckpt"),
    )


def fabric(config: dict[str, Any]) -> None:
    """Train with Lightning Fabric, whose processes are there already."""
    from lightning.fabric import Fabric, seed_everything

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    seed_everything(0, verbose=False)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    loader = fabric.setup_dataloaders(DataLoader(points(), batch_size=4, shuffle=True))
    for epoch in range(EPOCHS):
        loader.sampler.set_epoch(epoch)
        total = torch.zeros(())
        for features, target in loader:
            loss = nn.functional.mse_loss(model(features), target)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        report({"loss": fabric.all_reduce(total).item(), "processes": fabric.world_size})


if __name__ == "__main__":
    for name in sys.argv[2:]:
        LAUNCHED.clear()
        globals()[name]({"folder": os.path.join(sys.argv[1], name)})
        if int(os.environ["RANK"]) == 0:
            Path(sys.argv[1], f"{name}.json").write_text(json.dumps(LAUNCHED))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    # At once: torch's threads of a group that is gone may abort a process that ends in order.
    sys.stdout.flush()
    os._exit(0)
