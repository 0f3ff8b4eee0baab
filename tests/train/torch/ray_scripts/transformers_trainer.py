"""Train a tiny BERT by Transformers' Trainer on several workers, in the form of Ray Train's guide for it."""

import os

import numpy as np
import ray
import ray.train.huggingface.transformers
import torch
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Sentences(Dataset):
    """Random words, and whether the first of them is a small one."""

    def __init__(self, count, seed):
        self.words = torch.randint(50, (count, 8), generator=torch.Generator().manual_seed(seed))

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": (self.words[index, 0] < 25).long()}


class AllHaveSaved(TrainerCallback):
    """Wait until the first worker has written its files, which Ray's callback copies on each."""

    def on_save(self, args, state, control, **more):
        torch.distributed.barrier()


def compute_metrics(evaluated):
    logits, labels = evaluated
    return {"accuracy": float(np.mean(np.argmax(logits, axis=-1) == labels))}


def train_func(config):
    set_seed(0)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **size))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=config["folder"],
            learning_rate=config["lr"],
            num_train_epochs=3,
            per_device_train_batch_size=4,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Sentences(64, 1),
        eval_dataset=Sentences(16, 2),
        compute_metrics=compute_metrics,
    )
    trainer.add_callback(AllHaveSaved())
    trainer.add_callback(ray.train.huggingface.transformers.RayTrainReportCallback())
    trainer = ray.train.huggingface.transformers.prepare_trainer(trainer)
    trainer.train()


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False)
    result = TorchTrainer(
        train_func,
        train_loop_config={"lr": 5e-3, "folder": os.path.abspath("trained")},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=os.path.abspath("results"),
            name="transformers",
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="eval_loss", checkpoint_score_order="min"
            ),
        ),
    ).fit()
    for _, metrics in result.best_checkpoints:
        figures = (metrics[name].hex() for name in ("eval_loss", "loss", "grad_norm", "eval_accuracy"))
        print("LINE", metrics["epoch"], metrics["step"], *figures)
    with result.checkpoint.as_directory() as folder:
        path = os.path.join(folder, ray.train.huggingface.transformers.RayTrainReportCallback.CHECKPOINT_NAME)
        model = BertForSequenceClassification.from_pretrained(path)
    print("LINE", [value.double().sum().item().hex() for value in model.state_dict().values()][:8])
