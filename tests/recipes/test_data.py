"""The digits: MNIST's own file format, scikit-learn's copy, and which of the two is taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recipes import data
from tests.recipes.idx import write_mnist


def test_reads_the_files_of_mnist(tmp_path: Path):
    images, labels = write_mnist(tmp_path / "files", training=120, validation=60)
    data.prepare(tmp_path / "data.pt", source="auto", folder=tmp_path / "files")
    assert data.describe(tmp_path / "data.pt") == ("MNIST", 120, 60)

    training, validation = data.load(tmp_path / "data.pt")
    assert (len(training), len(validation)) == (120, 60)
    shown, label = validation[7]
    assert shown.shape == (1, 28, 28)
    np.testing.assert_array_equal((shown[0] * 255).round().numpy(), images[127])
    assert label == labels[127]


def test_a_limit_keeps_the_first_images(tmp_path: Path):
    write_mnist(tmp_path, training=120, validation=60)
    data.prepare(tmp_path / "data.pt", source="mnist", folder=tmp_path)
    training, validation = data.load(tmp_path / "data.pt", limit=90)
    assert (len(training), len(validation)) == (90, 30)


def test_digits_are_split_evenly(tmp_path: Path):
    data.prepare(tmp_path / "data.pt", source="digits")
    assert data.describe(tmp_path / "data.pt") == ("scikit-learn's digits", 1437, 360)
    training, validation = data.load(tmp_path / "data.pt")
    images, labels = validation.tensors
    assert images.shape == (360, 1, 8, 8)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.bincount().min() >= 34
    assert not any(torch.equal(image, other) for image in images[:20] for other in training.tensors[0])


def test_without_mnist_and_without_a_network_it_takes_the_digits_and_says_so(
    tmp_path: Path, no_network, capsys
):
    data.prepare(tmp_path / "data.pt", source="auto", folder=tmp_path / "files")
    assert data.describe(tmp_path / "data.pt")[0] == "scikit-learn's digits"
    assert "MNIST can't be had here" in capsys.readouterr().out


def test_mnist_asked_for_by_name_is_never_replaced(tmp_path: Path, no_network):
    with pytest.raises(RuntimeError, match="Error downloading"):
        data.prepare(tmp_path / "data.pt", source="mnist", folder=tmp_path / "files")
    assert not (tmp_path / "data.pt").exists()
