"""Trainers without worker processes: the inline engine, and `use_local`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

import trainkit
from tests.conftest import session_fixture
from tests.train.operators import Digits, plain_losses
from trainkit.errors import ConfigError, MissingDependencyError
from trainkit.train import TorchTrainer
from trainkit.train.checkpoint import files

inline = session_fixture("function", autouse=False, engine="inline", num_cpus=4)


def test_one_worker_runs_in_this_process(inline: None) -> None:
    with TorchTrainer(training_operator_cls=Digits, config={"samples": 40}, use_gpu=False) as trainer:
        assert trainer.apply_all_workers(os.getpid) == [os.getpid()]
        assert trainer.train()["num_samples"] == 40


def test_several_workers_in_one_process_are_refused(inline: None) -> None:
    with pytest.raises(
        ConfigError, match="num_workers=2 is not supported by this engine: it runs all workers in one process"
    ):
        TorchTrainer(training_operator_cls=Digits, num_workers=2, use_gpu=False)


def test_a_save_waits_where_no_other_process_could_write(inline: None, tmp_path: Path) -> None:
    with TorchTrainer(training_operator_cls=Digits, config={"samples": 40}, use_gpu=False) as trainer:
        trainer.train()
        assert trainer.save(tmp_path / "c", wait=False) == tmp_path / "c"
        assert files.read(tmp_path / "c")[1].epoch == 1
        assert trainer.last_save is None


def test_a_local_worker_needs_no_runtime_and_goes_on_with_the_callers_generator() -> None:
    config = {"samples": 50, "batch_size": 16}
    expected = plain_losses(config, 7)
    state = torch.get_rng_state()
    with TorchTrainer(training_operator_cls=Digits, config=config, use_gpu=False, use_local=True) as trainer:
        assert not trainkit.is_initialized()
        trainer.train(num_steps=7)
        assert [loss for loss, _ in trainer.get_local_operator().steps] == expected  # type: ignore[attr-defined]
        assert trainer.get_model() is trainer.get_local_operator().model
        assert trainer.get_model(to_cpu=True) is not trainer.get_model()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_progress_bar_needs_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)  # What importing it finds where it is not installed.
    with pytest.raises(MissingDependencyError, match="pip install tqdm"):
        TorchTrainer(training_operator_cls=Digits, use_tqdm=True, use_local=True)
