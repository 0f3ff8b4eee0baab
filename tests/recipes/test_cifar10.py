"""CIFAR-10's own files, as torchvision reads them, and the recipe in short form."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import torch
from torchvision.datasets import CIFAR10

from recipes import cifar
from tests.recipes.programs import run_here, run_recipe


def md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()


def test_reads_the_files_of_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / CIFAR10.base_folder
    cifar.write(folder, training=50, validation=20)
    for part in ("train_list", "test_list"):
        files = [[name, md5(folder / name)] for name, _ in getattr(CIFAR10, part)]
        monkeypatch.setattr(CIFAR10, part, files)
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(folder / "batches.meta")})

    cifar.prepare(tmp_path, "cifar10")
    training, validation = cifar.load(tmp_path, "cifar10")
    assert (len(training), len(validation)) == (50, 20)
    image, label = validation[7]
    assert (image.shape, image.dtype, label) == ((3, 32, 32), torch.float32, 7)
    assert not torch.equal(training[3][0], training[3][0])  # shifted and mirrored at random
    assert torch.equal(validation[3][0], validation[3][0])


def test_damaged_files_are_refused(tmp_path: Path, no_network):
    cifar.write(tmp_path / CIFAR10.base_folder, training=50, validation=20)  # not those of the checksums
    with pytest.raises(OSError, match=r"CIFAR-10 is not in .*, and can't be fetched .* use --data synthetic"):
        cifar.prepare(tmp_path, "cifar10")


def test_two_workers_train_and_one_goes_on(tmp_path: Path, runtime: None, capsys: pytest.CaptureFixture[str]):
    options = ("--data", "synthetic", "--folder", str(tmp_path), "--output", str(tmp_path / "out"))
    short = ("--limit", "5", "--batch-size", "4", "--lr", "0.01", "--epochs")
    first = run_recipe("cifar10", *options, *short, "1", "--workers", "2", "--precision", "bf16")
    assert [int(epoch) for epoch in re.findall(r"epoch +(\d+)", first)] == [1]
    second = run_here("cifar10", *options, *short, "2", "--resume", capsys=capsys)
    assert [int(epoch) for epoch in re.findall(r"epoch +(\d+)", second)] == [2]
    assert (tmp_path / "out" / "checkpoint" / "checkpoint.json").exists()
