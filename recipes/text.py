"""Text to learn from: a file, or what every Python brings along, the source code of its standard library."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import Dataset

CHARACTERS = 128
"""ASCII; anything else is left out."""


class Windows(Dataset):
    """Pieces of a text, each with the same piece one character later as its target.

    Args:
        text: codes of shape (characters,).
        context: length of a piece.
    """

    def __init__(self, text: torch.Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int):
        piece = self.text[index * self.context : (index + 1) * self.context + 1]
        return piece[:-1], piece[1:]


def standard_library(limit: int) -> str:
    """The first `limit` characters of the standard library's modules, in the order of their names."""
    text = ""
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text) >= limit:
            break
    return text[:limit]


def load(path: Path | None, limit: int, context: int) -> tuple[Windows, Windows]:
    """The first nine tenths of a text, to train on, and the rest, to validate on.

    Args:
        path: of the text; None is Python's standard library.
        limit: characters of it to take.
        context: length of a piece.
    """
    content = standard_library(limit) if path is None else path.read_text(encoding="utf-8")[:limit]
    codes = torch.tensor(list(content.encode("ascii", errors="ignore")))
    cut = int(0.9 * len(codes))
    return Windows(codes[:cut], context), Windows(codes[cut:], context)
