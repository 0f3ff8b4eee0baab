"""Text to learn from: a file, or the source code of Python's standard library."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.utils.data import Dataset

CHARACTERS = 128
"""Number of ASCII characters; all other characters are left out."""


class Windows(Dataset):
    """Windows of a text. The target of a window is the window that begins one character later.

    Args:
        text: character codes of shape (characters,).
        context: number of characters in a window.
    """

    def __init__(self, text: torch.Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int):
        piece = self.text[index * self.context : (index + 1) * self.context + 1]
        return piece[:-1], piece[1:]


def standard_library(limit: int) -> str:
    """Return the first `limit` characters of the standard library's modules, in the order of their names."""
    text = ""
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="ignore")
        if len(text) >= limit:
            break
    return text[:limit]


def load(path: Path | None, limit: int, context: int) -> tuple[Windows, Windows]:
    """Return the first nine tenths of a text for training, and the rest for validation.

    Args:
        path: path of the text; None: the source code of Python's standard library.
        limit: largest number of characters to read.
        context: number of characters in a window.
    """
    content = standard_library(limit) if path is None else path.read_text(encoding="utf-8")[:limit]
    codes = torch.tensor(list(content.encode("ascii", errors="ignore")))
    cut = int(0.9 * len(codes))
    return Windows(codes[:cut], context), Windows(codes[cut:], context)
