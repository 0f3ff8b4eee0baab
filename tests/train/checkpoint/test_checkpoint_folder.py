"""The folder of automatic checkpoints: the newest checkpoint, the checkpoints that are kept, and the lock."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.local.programs import Programs
from tests.train.checkpoint.test_automatic_checkpoints import STEPS, Scored, saved, saved_names, trainer
from tests.train.operators import Digits
from trainkit.errors import CheckpointError
from trainkit.train import CheckpointConfig
from trainkit.train.checkpoint.files import aside_of
from trainkit.train.workers.automatic_checkpoints import AutomaticCheckpoints
from trainkit.train.workers.background_saves import BackgroundSaves

pytestmark = pytest.mark.usefixtures("runtime")

LOCAL: dict[str, Any] = {"use_local": True, "num_workers": 1}
SMALL: dict[str, Any] = {"config": {"samples": 24, "batch_size": 4}, **LOCAL}
"""An epoch of four steps in this process."""


def test_an_old_snapshot_is_not_written_as_a_later_checkpoint(tmp_path: Path) -> None:
    with trainer(tmp_path, keep={"every_steps": 4}, **LOCAL) as gang:
        gang.train()
        gang.lr_find(num_training=3)
        gang.train()
    assert [*saved(tmp_path).values()] == [(0, 4), (0, 8), (1, STEPS), (1, 12), (1, 16), (2, 2 * STEPS)]


@pytest.mark.parametrize("way", ["load", "load_state_dict"])
def test_training_again_from_an_earlier_state_keeps_the_checkpoints(tmp_path: Path, way: str) -> None:
    with trainer(tmp_path, Digits, **SMALL) as gang:
        start = gang.state_dict() if way == "load_state_dict" else gang.save(tmp_path / "start")
        gang.train()
        getattr(gang, way)(start)
        gang.train()
    assert [*saved(tmp_path).values()] == [(1, 4), (1, 4)]


class Unwritable(Digits):
    """Its state can't be written until step 3."""

    def state_dict(self) -> dict[str, Any]:
        return {"own": {1j: object} if Path(self.config["folder"], "unwritable").exists() else 1}

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if batch_info["global_step"] == 3:
            Path(self.config["folder"], "unwritable").unlink(missing_ok=True)
        return super().train_batch(batch, batch_info)


@pytest.mark.parametrize("options", [{}, LOCAL], ids=str)
def test_a_later_checkpoint_makes_up_for_a_failed_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    (tmp_path / "unwritable").touch()
    config = {"samples": 24, "batch_size": 4}
    with trainer(tmp_path, Unwritable, keep={"every_steps": 2}, config=config, **options) as gang:
        gang.train()
        gang.train()
    assert "which a checkpoint can't store" in caplog.text
    assert [*saved(tmp_path).values()][-1] == (2, 8)


def test_training_continues_if_metrics_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    aside = tmp_path / "checkpoints" / ".metrics.json.partial"
    with trainer(tmp_path, Digits, **SMALL) as gang:
        aside.mkdir()
        assert gang.train()["epoch"] == 1
        aside.rmdir()
        gang.train()
    assert "an automatic checkpoint could not be written: [Errno 21]" in caplog.text
    assert [*saved(tmp_path).values()] == [(1, 4), (2, 8)]


def test_damaged_metrics_are_renamed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "checkpoints"
    with trainer(tmp_path, Digits, **SMALL) as gang:
        gang.train()
    (folder / "metrics.json").write_text('{"checkpoint_000000": ')
    with trainer(tmp_path, Digits, **SMALL) as gang:
        gang.train()
    assert f"kept as {folder}/damaged_metrics.json: the scores of earlier checkpoints" in caplog.text
    assert (folder / "damaged_metrics.json").read_text() == '{"checkpoint_000000": '
    assert [*json.loads((folder / "metrics.json").read_text())] == ["checkpoint_000001"]


SCORED = {"checkpoint_score_attribute": "score", "checkpoint_score_order": "max", "num_to_keep": 1}


def test_metrics_of_a_checkpoint_that_was_never_written_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with trainer(tmp_path, Scored, keep=SCORED, **SMALL) as gang:
        gang.train()
        gang.validate()
    metrics = json.loads((folder / "metrics.json").read_text())
    # A writer of the next checkpoint was killed after the metrics had been noted.
    (folder / "metrics.json").write_text(json.dumps({**metrics, "checkpoint_000001": {"score": 99}}))
    with trainer(tmp_path, Scored, keep={**SCORED, "every_steps": 3}, **SMALL) as gang:
        gang.train()
    assert [epoch for epoch, _ in saved(tmp_path).values()] == [1, 2]


def test_without_any_score_the_newest_are_kept_and_a_warning_names_the_metric(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep = {**SCORED, "checkpoint_score_attribute": "skore", "num_to_keep": 2}
    with trainer(tmp_path, Scored, keep=keep, **SMALL) as gang:
        for _ in range(3):
            gang.train()
            gang.validate()
    assert [epoch for epoch, _ in saved(tmp_path).values()] == [2, 3]
    assert caplog.text.count("checkpoint_score_attribute='skore' is missing or nan") == 1


def test_a_second_trainer_of_the_folder_is_refused(tmp_path: Path) -> None:
    with (
        trainer(tmp_path, Digits, **SMALL) as first,
        pytest.raises(CheckpointError, match=r"is used by another trainer: call its shutdown\(\), or pass"),
    ):
        first.train()
        trainer(tmp_path, Digits, **SMALL)
    with trainer(tmp_path, Digits, **SMALL) as second:
        assert second.epoch == 1
    with pytest.raises(CheckpointError, match="schedulers, but"):
        trainer(tmp_path, **LOCAL)
    trainer(tmp_path, Digits, **SMALL).shutdown()


USER = """
    import time
    from pathlib import Path
    from tests.train.checkpoint.test_checkpoint_folder import SMALL
    from tests.train.checkpoint.test_automatic_checkpoints import trainer
    from tests.train.operators import Digits

    gang = trainer(Path("."), Digits, **SMALL)
    print("ready", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_trainer_of_another_program_is_refused_until_the_program_ends(programs: Programs) -> None:
    user = programs.begin(USER)
    assert user.stdout is not None
    assert user.stdout.readline() == "ready\n"
    with pytest.raises(CheckpointError, match="is used by another trainer"):
        trainer(programs.folder, Digits, **SMALL)
    user.send_signal(signal.SIGKILL)
    user.wait(60)
    trainer(programs.folder, Digits, **SMALL).shutdown()


def test_what_killed_writers_of_any_machine_left_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    left = aside_of(folder / "checkpoint_000003", 1, host=12)
    left.mkdir(parents=True)
    with trainer(tmp_path, Digits, **SMALL) as gang:
        assert not left.exists()
        other = aside_of(tmp_path / "own", 1, host=12)
        other.mkdir()
        gang.save(tmp_path / "own")
    assert other.exists()
    assert saved_names(folder) == []


def test_a_loaded_step_number_is_no_missed_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = AutomaticCheckpoints(
        tmp_path, CheckpointConfig(every_steps=100), BackgroundSaves(), updates=False
    )
    with caplog.at_level(logging.WARNING):
        rules.moved((7, 1000))
        rules.begin_epoch()
        rules.end_epoch(1009)
        assert not caplog.records
        rules.end_epoch(1102)
    assert "every_steps: no checkpoint was written within the epoch" in caplog.text
