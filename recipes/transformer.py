"""Train a small character-level transformer; one flag selects how it is spread over the workers.

    python -m recipes.transformer                                       # one worker
    python -m recipes.transformer --workers 2 --strategy fsdp           # or ddp, tensor, pipeline
    python -m recipes.transformer --workers 2 --strategy tensor --precision bf16 --width 768 --layers 12

The text is the source code of Python's standard library, so nothing has to be fetched; `--text` selects
another file. The program prints the loss, and at the end text that the model writes after "def ". The first
two commands take some minutes on two cores. The last one trains 85 million parameters, and needs two GPUs.

The model is an `nn.Sequential` of embedding, blocks and head. It contains nothing about how it is spread: DDP
and FSDP use it unchanged, and the pipeline cuts the sequence into stages. For tensor parallelism, a plan
names the linear layers to split. With the same seed and batch size, all strategies have the same loss curve.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional
from torch.utils.data import DataLoader

from recipes import text
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator
from trainkit.train.strategies.tensor import TensorParallel


class Embedding(nn.Module):
    """Embedding of characters and their positions: (n, time) integers to (n, time, width)."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(text.CHARACTERS, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, codes):
        places = torch.arange(codes.shape[1], device=codes.device)
        return self.characters(codes) + self.positions(places)


class Block(nn.Module):
    """Causal self-attention, then a two-layer network, each added to its input of shape (n, time, width).

    Source: Vaswani et al. 2017, arXiv:1706.03762, with the norms first, as in GPT-2.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        def by_head(part):  # (n, heads, time, head_width), for the heads that this worker holds
            return part.unflatten(-1, (-1, self.head_width)).transpose(1, 2)

        normed = self.norm1(x)
        q, k, v = (by_head(project(normed)) for project in (self.q_proj, self.k_proj, self.v_proj))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(-2))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class Head(nn.Module):
    """Output layer: (n, time, width) to logits (n, characters, time), the order for `nn.CrossEntropyLoss`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, text.CHARACTERS)

    def forward(self, x):
        return self.out(self.norm(x)).transpose(1, 2).contiguous()


def network(width: int, layers: int, context: int) -> nn.Sequential:
    """Return embedding, blocks and head as one sequence; attention heads are 32 wide."""
    blocks = (Block(width, heads=width // 32) for _ in range(layers))
    return nn.Sequential(Embedding(width, context), *blocks, Head(width))


SPLIT = {
    **{f"*.{name}": ColwiseParallel() for name in ("q_proj", "k_proj", "v_proj", "fc1")},
    **{f"*.{name}": RowwiseParallel() for name in ("o_proj", "fc2")},
}
"""Plan of tensor parallelism: layers into heads and hidden units by columns, layers out of them by rows."""


class LanguageModel(TrainingOperator):
    """Next-character prediction, trained by trainkit's own steps."""

    def setup(self, config):
        torch.manual_seed(config["seed"])
        model = network(config["width"], config["layers"], config["context"])
        optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
        self.register(models=model, optimizers=optimizer, criterion=nn.CrossEntropyLoss())
        training, validation = text.load(config["text"], config["limit"], config["context"])
        self.register_data(
            train_loader=DataLoader(training, config[BATCH_SIZE], shuffle=True, drop_last=True),
            validation_loader=DataLoader(validation, config[BATCH_SIZE]),
        )


@torch.no_grad()
def write(model: nn.Module, start: str, length: int, context: int) -> str:
    """Return `start` and `length` more characters, each sampled from the model's prediction."""
    model.eval()
    codes = torch.tensor([list(start.encode("ascii"))])
    for _ in range(length):
        logits = model(codes[:, -context:])[0, :, -1]
        codes = torch.cat([codes, torch.multinomial(functional.softmax(logits, -1), 1)[None]], dim=1)
    return bytes(codes[0].tolist()).decode("ascii")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="auto", choices=["auto", "ddp", "fsdp", "tensor", "pipeline"])
    parser.add_argument("--workers", type=int, default=1, help="%(default)s")
    parser.add_argument("--precision", default="32", choices=["32", "bf16", "fp16"], help="%(default)s")
    parser.add_argument("--steps", type=int, default=1000, help="%(default)s")
    parser.add_argument("--every", type=int, default=100, help="steps between two reports (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=32, help="over all workers (%(default)s)")
    parser.add_argument("--width", type=int, default=128, help="a multiple of 32 (%(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="%(default)s")
    parser.add_argument("--context", type=int, default=128, help="characters seen at a time (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="%(default)s")
    parser.add_argument("--text", type=Path, help="a file; default: Python's standard library")
    parser.add_argument("--limit", type=int, default=2_000_000, help="characters of it (%(default)s)")
    args = parser.parse_args()

    names = ("width", "layers", "context", "lr", "text", "limit")
    config = {**{name: getattr(args, name) for name in names}, "seed": 0, BATCH_SIZE: args.batch_size}
    with TorchTrainer(
        training_operator_cls=LanguageModel,
        config=config,
        num_workers=args.workers,
        strategy=TensorParallel(plan=SPLIT) if args.strategy == "tensor" else args.strategy,
        precision=args.precision,
    ) as trainer:
        for done in range(0, args.steps, args.every):
            steps = min(args.every, args.steps - done)
            training = trainer.train(num_steps=steps)
            print(f"step {done + steps:5}  loss {training['train_loss']:.6f}")
        print(f"validation loss: {trainer.validate()['val_loss']:.6f}")
        model = trainer.get_model()
    torch.manual_seed(0)
    print(write(model, "def ", 200, args.context))


if __name__ == "__main__":
    main()
