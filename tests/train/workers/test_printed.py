"""Output and errors of a trainer's workers: in the trial's folder, with the trial's name, and once."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trainkit
from tests.conftest import eventually
from tests.train.operators import Digits
from trainkit import tune
from trainkit.cli.main import main
from trainkit.train import TorchTrainer

PACKAGE = f"{Path(trainkit.__file__).parent}/"
"""Beginning of the path of each of the package's files."""

pytestmark = pytest.mark.usefixtures("runtime")


class Chatty(Digits):
    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        print("set up in rank", self.world_rank)
        os.write(2, f"written by rank {self.world_rank}\n".encode())

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if self.config.get("bad"):
            return torch.ones(2, 3) @ torch.ones(4, 2)
        return super().train_batch(batch, batch_info)


BAD_LINE = Chatty.train_batch.__code__.co_firstlineno + 2


def trainable(workers: int = 2) -> Any:
    return TorchTrainer.as_trainable(
        training_operator_cls=Chatty, num_workers=workers, config={"samples": 40}, use_gpu=False
    )


def fit(tmp_path: Path, space: dict[str, Any], **run: Any) -> Any:
    settings = {"name": "e", "storage_path": str(tmp_path), "stop": {"training_iteration": 1}, **run}
    return tune.Tuner(trainable(), param_space=space, run_config=tune.RunConfig(**settings)).fit()


@pytest.mark.slow
def test_log_to_file_keeps_what_workers_print_in_the_folder_of_their_trial(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    grid = fit(tmp_path, {"seed": tune.grid_search([1, 2])}, log_to_file=True, verbose=0)
    for result in grid:
        out, err = (Path(result.path, name).read_text().splitlines() for name in ("stdout", "stderr"))
        assert sorted(line for line in out if "set up" in line) == ["set up in rank 0", "set up in rank 1"]
        assert sorted(line for line in err if "written" in line) == ["written by rank 0", "written by rank 1"]
        assert main(["tail", str(tmp_path / "e"), result.trial_id, "--printed"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("set up in rank 0") == 2, "by the command, and not by the trials"


def test_the_prefix_of_what_workers_print_names_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not pytest's capture: what another thread writes while that is read may be lost.
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    (result,) = fit(tmp_path, {}, verbose=0)

    def is_shown(rank: int) -> bool:
        start, end = f"({result.trial_id} train-worker-{rank} pid=", f") set up in rank {rank}"
        return any(line.startswith(start) and line.endswith(end) for line in out.getvalue().splitlines())

    for rank in (0, 1):  # what workers print comes later than what they return
        assert eventually(lambda rank=rank: is_shown(rank)), out.getvalue()


def test_a_failing_trainers_traceback_is_the_users_frames_and_stands_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = fit(tmp_path, {"bad": True}, verbose=1)
    shown = capsys.readouterr().out
    assert f"(test_printed.py:{BAD_LINE} in train_batch)" in shown
    assert main(["why", str(tmp_path / "e"), result.trial_id]) == 0
    for text in (shown, capsys.readouterr().out):
        assert text.count("Traceback (most recent call last)") == 1
        assert text.count("in train_batch\n") == 1
        assert PACKAGE not in text
        assert "\n  raised by worker " in text


@pytest.mark.parametrize("full", [False, True])
def test_a_trainers_error_shows_internals_only_where_they_are_asked_for(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if full:
        monkeypatch.setenv("TRAINKIT_FULL_TRACEBACK", "1")
    config = {"samples": 40, "bad": True}
    with (
        TorchTrainer(training_operator_cls=Chatty, config=config, use_gpu=False) as trainer,
        pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised,
    ):
        trainer.train()
    frames = [entry.path for entry in raised.traceback]
    assert (len(frames) > 4) == full, frames
    assert str(frames[0]) == __file__


def test_a_hop_through_the_users_code_is_told_too() -> None:
    import trainkit

    @trainkit.remote
    def inner() -> None:
        raise KeyError("lr")

    @trainkit.remote
    def outer() -> None:
        trainkit.get(inner.remote())

    with pytest.raises(KeyError) as raised:
        trainkit.get(outer.remote())
    text = raised.value.remote_traceback  # type: ignore[attr-defined]
    assert text.count("Traceback (most recent call last)") == 2
    assert text.index("in inner") < text.index("\n\nreached ") < text.index("in outer")
    assert "/trainkit/runtime/" not in text and sys.prefix not in text
