"""Experiments in this process, without a word on the console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit
from trainkit import tune
from trainkit.tune.results.result_grid import ResultGrid


@pytest.fixture(scope="module")
def inline() -> Iterator[None]:
    """The inline engine with two CPUs, for all tests of a module."""
    trainkit.init(engine="inline", num_cpus=2)
    yield
    trainkit.shutdown()


@pytest.fixture
def results(tmp_path, monkeypatch) -> Iterator[Path]:
    """The folder where experiments are written that are copied elsewhere; what is in memory goes."""
    from fsspec.implementations.memory import MemoryFileSystem

    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "here"))
    yield tmp_path / "here"
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def fit(tmp_path) -> Callable[..., ResultGrid]:
    """Runs a trainable; `run` goes into its RunConfig, other settings into its TuneConfig."""

    def fit(trainable: Any, param_space: Any = None, *, metric=None, mode="min", run=None, **settings):
        run = {"storage_path": tmp_path, "name": "e", "verbose": 0, **(run or {})}
        config = tune.TuneConfig(metric=metric, mode=mode if metric else None, **settings)
        return tune.Tuner(
            trainable, param_space=param_space, tune_config=config, run_config=tune.RunConfig(**run)
        ).fit()

    return fit
