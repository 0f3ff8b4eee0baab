"""CIFAR-10: 60,000 colour images of 32 by 32 pixels in ten classes, in its own files.

`synthetic` writes a small set in the same format, for machines without these files and without a network.
Anyone can tell its classes apart, so it shows that a program runs, not how well a network sees.

Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images".
"""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, Subset
from torchvision.datasets import CIFAR10
from torchvision.transforms import v2

NETWORK_TIMEOUT_S = 5.0
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of each channel of the training images, scaled to 0 to 1."""


class SyntheticCIFAR10(CIFAR10):
    """Files in the format of CIFAR-10, in a separate folder and without known checksums."""

    base_folder = "cifar-10-synthetic"
    train_list = [[name, None] for name, _ in CIFAR10.train_list]  # noqa: RUF012
    test_list = [[name, None] for name, _ in CIFAR10.test_list]  # noqa: RUF012
    meta = {**CIFAR10.meta, "md5": None}  # noqa: RUF012


def prepare(folder: Path, source: str) -> None:
    """Make sure that the files are in `folder`: fetch CIFAR-10, or write the synthetic set.

    Raises:
        OSError: CIFAR-10 is missing and can't be fetched.
    """
    if source == "synthetic":
        if not (folder / SyntheticCIFAR10.base_folder).exists():
            write(folder / SyntheticCIFAR10.base_folder, training=500, validation=100)
        return
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(NETWORK_TIMEOUT_S)  # torchvision's download has no timeout of its own
    try:
        CIFAR10(folder, download=True)
    except (OSError, RuntimeError) as error:
        raise OSError(
            f"CIFAR-10 is not in {folder}, and can't be fetched ({error}): put cifar-10-batches-py there, or "
            f"use --data synthetic"
        ) from error
    finally:
        socket.setdefaulttimeout(before)


def load(folder: Path, source: str, limit: int | None = None) -> tuple[Dataset, Dataset]:
    """Return the training set, randomly shifted and mirrored, and the validation set, as float32 tensors.

    Args:
        folder: folder that `prepare` filled.
        source: "cifar10" or "synthetic".
        limit: largest number of training images; the validation set has at most a fifth as many.
    """
    kind = SyntheticCIFAR10 if source == "synthetic" else CIFAR10
    to_tensor = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, DEVIATION),
    ]
    varied = v2.Compose([v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), *to_tensor])
    training = kind(folder, train=True, transform=varied)
    validation = kind(folder, train=False, transform=v2.Compose(to_tensor))
    if limit is None:
        return training, validation
    return Subset(training, range(limit)), Subset(validation, range(limit // 5))


def write(folder: Path, *, training: int, validation: int) -> None:
    """Write a data set in CIFAR-10's format: each class has a colour and a direction of stripes, with noise.

    Args:
        folder: folder for the files; it appears once all files are written.
        training: number of images in the five training files together, a multiple of 5.
        validation: number of images in the validation file.
    """
    rng = np.random.default_rng(0)
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True)
    for name, _ in (*CIFAR10.train_list, *CIFAR10.test_list):
        count = validation if name == CIFAR10.test_list[0][0] else training // len(CIFAR10.train_list)
        labels = np.arange(count) % 10
        batch = {"batch_label": name, "labels": labels.tolist(), "data": _images(labels, rng)}
        (aside / name).write_bytes(pickle.dumps(batch, protocol=2))
    (aside / CIFAR10.meta["filename"]).write_bytes(
        pickle.dumps({"label_names": [f"class {label}" for label in range(10)]}, protocol=2)
    )
    aside.rename(folder)


def _images(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images of shape (n, 3072), uint8: the red, green and blue planes, each row by row."""
    rows, columns = np.mgrid[0:32, 0:32]
    angles = labels[:, None, None] * np.pi / 10
    phase = (columns * np.cos(angles) + rows * np.sin(angles)) / 3 + rng.uniform(0, 6, (len(labels), 1, 1))
    colours = np.stack([np.cos(labels), np.cos(labels + 2), np.cos(labels + 4)], axis=1)[:, :, None, None]
    images = 128 + 60 * np.sin(phase)[:, None] + 40 * colours + rng.normal(0, 20, (len(labels), 3, 32, 32))
    return images.clip(0, 255).astype(np.uint8).reshape(len(labels), -1)
