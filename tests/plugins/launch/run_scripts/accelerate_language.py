"""Train a tiny BERT to tell paraphrases, in the form of Accelerate's nlp_example; the sentences are drawn."""

import argparse
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

PADDING = 0


def pairs(count, seed):
    """Return pairs of sentences of different lengths; every other one has the same words twice."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        length = int(torch.randint(3, 7, (1,), generator=generator))
        first = torch.randint(1, 40, (length,), generator=generator)
        second = first.flip(0) if number % 2 else torch.randint(1, 40, (length,), generator=generator)
        found.append({"words": torch.cat([first, second]), "label": number % 2})
    return found


def collate(examples):
    words = torch.nn.utils.rnn.pad_sequence([example["words"] for example in examples], True, PADDING)
    labels = torch.tensor([example["label"] for example in examples])
    return {"input_ids": words, "attention_mask": (words != PADDING).long(), "labels": labels}


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    set_seed(config["seed"])
    batch_size = config["batch_size"]
    train_dataloader = DataLoader(pairs(64, 1), shuffle=True, collate_fn=collate, batch_size=batch_size)
    eval_dataloader = DataLoader(pairs(22, 2), shuffle=False, collate_fn=collate, batch_size=batch_size)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertForSequenceClassification(BertConfig(vocab_size=40, max_position_embeddings=16, **size))
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=2,
        num_training_steps=len(train_dataloader) * config["num_epochs"],
    )
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        total = torch.zeros(())
        for batch in train_dataloader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            total += loss.detach()
        model.eval()
        right, seen = 0, 0
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions, references = accelerator.gather_for_metrics(
                (outputs.logits.argmax(dim=-1), batch["labels"])
            )
            right, seen = right + int((predictions == references).sum()), seen + len(references)
        total = accelerator.reduce(total).item()
        accelerator.print(f"epoch {epoch}: {total.hex()} {right}/{seen} on {accelerator.num_processes}")
    accelerator.end_training()
    sys.stdout.flush()
    # Here, with the model alive: DDP would free the group with the interpreter locked, and may wait for ever
    # for a thread of the group that wants the interpreter; other threads of it may abort an end in order.
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--mixed_precision", default=None, choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--cpu", action="store_true")
    training_function({"lr": 1e-2, "num_epochs": 3, "seed": 42, "batch_size": 4}, parser.parse_args())


if __name__ == "__main__":
    main()
