"""Handwritten digits in one file, which every worker only maps into its memory.

The data set is the 70,000 images of MNIST if their files exist or can be fetched, else the 1,797 images that
come with scikit-learn. The file contains its name, images of shape (n, 1, height, width), uint8, and labels
of shape (n,).
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

NETWORK_TIMEOUT_S = 5.0


def prepare(path: Path, *, source: str = "auto", folder: Path = Path("data")) -> None:
    """Write the data set to `path`.

    Args:
        path: path of the file, for `load` and `describe`.
        source: "mnist", "digits" (scikit-learn's), or "auto": the first of the two that is available.
        folder: folder of MNIST's files, which are in `MNIST/raw` and are fetched if missing.
    """
    if source == "digits":
        content = digits()
    else:
        try:
            content = mnist(folder)
        except (OSError, RuntimeError) as error:  # no connection, or missing or damaged files
            if source == "mnist":
                raise
            print(f"MNIST can't be had here: {str(error).strip().splitlines()[-1]}")
            content = digits()
    aside = path.with_suffix(".tmp")
    torch.save(content, aside)
    os.replace(aside, path)


def describe(path: Path) -> tuple[str, int, int]:
    """Return the name of the data set in `path`, and its numbers of training and validation images."""
    content = torch.load(path, weights_only=True, mmap=True)
    return content["name"], len(content["train_labels"]), len(content["validation_labels"])


def load(path: str | Path, *, limit: int | None = None) -> tuple[TensorDataset, TensorDataset]:
    """Return the training and the validation set; images are float32 from 0 to 1.

    Args:
        path: file that `prepare` wrote.
        limit: largest number of training images; the validation set has at most a third as many.
    """
    content = torch.load(path, weights_only=True, mmap=True)  # mapped, so that only used parts are read

    def part(name: str, count: int | None) -> TensorDataset:
        images, labels = content[f"{name}_images"][:count], content[f"{name}_labels"][:count]
        return TensorDataset(images.float() / 255, labels.clone())

    return part("train", limit), part("validation", limit and limit // 3)


def mnist(folder: Path) -> dict[str, Any]:
    """Return MNIST from `folder`, fetched first if missing. Source: LeCun et al. 1998."""
    from torchvision.datasets import MNIST

    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT_S)  # torchvision's download has no timeout of its own
    try:
        train, validation = (MNIST(folder, train=which, download=True) for which in (True, False))
    finally:
        socket.setdefaulttimeout(before)
    return {
        "name": "MNIST",
        "train_images": train.data.unsqueeze(1),
        "train_labels": train.targets,
        "validation_images": validation.data.unsqueeze(1),
        "validation_labels": validation.targets,
    }


def digits() -> dict[str, Any]:
    """Return scikit-learn's digits, 8 by 8 pixels; a fifth of each class is for validation."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    images = torch.from_numpy(bunch.images * (255 / 16)).to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(bunch.target)
    train, validation = train_test_split(
        torch.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    return {
        "name": "scikit-learn's digits",
        "train_images": images[train],
        "train_labels": labels[train],
        "validation_images": images[validation],
        "validation_labels": labels[validation],
    }
