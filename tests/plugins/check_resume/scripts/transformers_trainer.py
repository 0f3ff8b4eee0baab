"""A script for Transformers' Trainer that saves every three steps, also within an epoch."""

import os

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

set_seed(0)
size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
model = BertForSequenceClassification(BertConfig(vocab_size=50, **size))
words = torch.randint(50, (32, 8))
data = [{"input_ids": each, "labels": (each[0] < 25).long()} for each in words]
arguments = TrainingArguments(
    output_dir="saved",
    use_cpu=True,
    learning_rate=0.01,
    num_train_epochs=4,
    per_device_train_batch_size=4,
    save_steps=3,
    save_total_limit=1,
    report_to=[],
    disable_tqdm=True,
)
Trainer(model=model, args=arguments, train_dataset=data).train(
    resume_from_checkpoint=get_last_checkpoint("saved") if os.path.isdir("saved") else None
)
