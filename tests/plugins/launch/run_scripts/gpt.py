"""Train a small GPT on characters and let it write, in the form of the tutorial that trains minGPT by DDP."""

import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

TEXT = " ".join(f"{number} and {number + 1} make {2 * number + 1}." for number in range(60))


@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int = 32
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 32


class CharDataset(Dataset):
    def __init__(self, text, block_size):
        characters = sorted(set(text))
        self.known = {character: number for number, character in enumerate(characters)}
        self.characters, self.block_size = characters, block_size
        self.numbers = torch.tensor([self.known[character] for character in text])

    def __len__(self):
        return (len(self.numbers) - 1) // self.block_size

    def __getitem__(self, index):
        start = index * self.block_size
        piece = self.numbers[start : start + self.block_size + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(config.n_embd, 4 * config.n_embd),
            nn.GELU(),
            nn.Linear(4 * config.n_embd, config.n_embd),
        )

    def forward(self, x):
        many, length, width = x.shape
        parts = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (part.view(many, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).reshape(many, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.block_size = config.block_size
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.Sequential(*(Block(config) for _ in range(config.n_layer)))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, tokens, targets=None):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits = self.lm_head(self.ln_f(self.h(self.wte(tokens) + self.wpe(places))))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def generate(self, tokens, count):
        for _ in range(count):
            logits, _ = self(tokens[:, -self.block_size :])
            tokens = torch.cat([tokens, logits[:, -1:].argmax(dim=-1)], dim=1)
        return tokens


def create_optimizer(model):
    """Return AdamW that lets the matrices of the linear layers alone decay."""
    decay = [parameter for name, parameter in model.named_parameters() if parameter.dim() > 1]
    others = [parameter for name, parameter in model.named_parameters() if parameter.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95))


def main():
    init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(3)
    data = CharDataset(TEXT, GPTConfig.block_size)
    model = GPT(GPTConfig(vocab_size=len(data.characters)))
    optimizer = create_optimizer(model)
    model = DistributedDataParallel(model)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=False, num_workers=0)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for source, targets in loader:
            _, loss = model(source, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            print("epoch", epoch, total.item().hex(), norm.item().hex(), flush=True)
    if rank == 0:
        model.eval()
        start = torch.tensor([[data.known[character] for character in "1 and"]])
        written = model.module.generate(start, 40)[0]
        print(repr("".join(data.characters[number] for number in written)), flush=True)
    destroy_process_group()
    sys.stdout.flush()
    # Here, with the model alive: DDP would free the group with the interpreter locked, and may wait for ever
    # for a thread of the group that wants the interpreter; other threads of it may abort an end in order.
    os._exit(0)


if __name__ == "__main__":
    main()
