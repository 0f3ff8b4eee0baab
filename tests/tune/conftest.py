"""Experiments in this process, without a word on the console."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit
from trainkit import tune
from trainkit.tune.results.result_grid import ResultGrid

PARAMETERS = inspect.signature(tune.Tuner.restore).parameters
"""What a restore is given beside settings of a TuneConfig."""


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


@pytest.fixture
def restore(tmp_path) -> Callable[..., ResultGrid]:
    """Goes on with an experiment of `fit` to its end; `run` and settings as there, for what is given anew.

    It is found by its name, its folder or its address.
    """

    def restore(trainable: Any, name: str | Path = "e", *, run=None, **settings):
        given = {key: settings.pop(key) for key in (*settings,) if key in PARAMETERS}
        if settings:
            given["tune_config"] = tune.TuneConfig(**settings)
        if run is not None:
            given["run_config"] = tune.RunConfig(**run)
        place = name if "://" in str(name) else tmp_path / name
        return tune.Tuner.restore(place, trainable, **given).fit()

    return restore
