"""Checkpoints: told apart, kept or dropped by policy, and gone on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tune.pausing import Counted
from trainkit import tune
from trainkit.errors import CheckpointError
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("inline")


def saving(config):
    scratch = Path(tune.get_context().get_trial_dir(), "scratch")
    for step, score in enumerate(config["scores"]):
        scratch.mkdir(exist_ok=True)
        (scratch / "state.json").write_text(json.dumps({"step": step}))
        tune.report(
            {"step": step, "score": score},
            checkpoint=tune.Checkpoint.from_directory(scratch),
        )
        for file in scratch.iterdir():  # the copy is complete by now
            file.unlink()


def state_of(checkpoint) -> int:
    return json.loads(Path(checkpoint.path, "state.json").read_text())["step"]


def test_a_misspelt_score_is_told_and_deletes_no_checkpoint(fit, caplog):
    policy = tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="scores")
    (result,) = fit(saving, {"scores": [0.9, 0.1, 0.8]}, run={"checkpoint_config": policy})
    assert [state_of(checkpoint) for checkpoint, _ in result.best_checkpoints] == [0, 1, 2]
    told = "has no number 'scores'"
    assert caplog.text.count(told) == 1
    assert caplog.text.count("Did you mean 'score'?") == 1
    caplog.clear()
    assert result.get_best_checkpoint("scor", "max") is None
    assert "no checkpoint with a finite 'scor', which was not reported" in caplog.text
    assert "Did you mean 'score'?" in caplog.text


def test_num_to_keep_keeps_the_best(fit):
    policy = tune.CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="score")
    (result,) = fit(saving, {"scores": [0.9, 0.1, 0.8, 0.2, 0.3]}, run={"checkpoint_config": policy})
    assert sorted(path.name for path in Path(result.path).glob("*checkpoint*")) == [
        "checkpoint_000000",
        "checkpoint_000002",
    ]
    assert [state_of(checkpoint) for checkpoint, _ in result.best_checkpoints] == [0, 2]


def test_a_restore_that_ranks_checkpoints_otherwise_ranks_those_of_before_too(fit, restore, tmp_path):
    mended = tmp_path / "mended"

    def trainable(config):
        start = tune.get_checkpoint().to_dict()["step"] if tune.get_checkpoint() else 0
        for step in range(start + 1, 5):
            if step == 3 and not mended.exists():
                raise ValueError("not mended")
            loss = {1: 4.0, 2: 3.0, 3: 1.0, 4: 2.0}[step]
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

    fit(trainable)
    mended.touch()
    best = tune.CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order="min"
    )
    (result,) = restore(trainable, run={"checkpoint_config": best}, resume_errored=True)
    assert result.checkpoint.to_dict() == {"step": 3}


class Counting(Counted):
    def reports(self, number):
        return {"count": number}


def test_a_class_is_checkpointed_every_so_often_and_at_its_end(fit):
    policy = tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True)
    (result,) = fit(Counting, run={"checkpoint_config": policy, "stop": {"count": 5}})
    counts = [Path(checkpoint.path, "number").read_text() for checkpoint, _ in result.best_checkpoints]
    assert counts == ["2", "4", "5"]


@pytest.mark.parametrize(
    ("policy", "ended_by"),
    [({}, "scheduler"), ({"num_to_keep": 1}, "done"), ({"checkpoint_frequency": 2}, "stop")],
)
def test_a_class_under_a_tuner_is_saved_at_its_end(fit, policy, ended_by):
    class Ending(Counting):
        def reports(self, number):
            return {"count": number, "done": ended_by == "done" and number == 3}

    scheduler = ASHAScheduler(max_t=3, grace_period=1) if ended_by == "scheduler" else None
    run = {
        "checkpoint_config": tune.CheckpointConfig(**policy),
        "stop": {"count": 3 if ended_by == "stop" else 9},
    }
    (result,) = fit(Ending, run=run, scheduler=scheduler, metric="count", mode="max")
    assert Path(result.checkpoint.path, "number").read_text() == "3"
    run["checkpoint_config"].checkpoint_at_end = False
    (result,) = fit(Ending, run=run, scheduler=scheduler, metric="count", mode="max")
    counts = [Path(checkpoint.path, "number").read_text() for checkpoint, _ in result.best_checkpoints]
    assert counts == (["2"] if "checkpoint_frequency" in policy else [])


def test_a_restored_class_is_saved_at_its_end(fit, restore):
    fit(Counting, run={"stop": {"count": 2}})
    run = {"stop": {"count": 4}, "checkpoint_config": tune.CheckpointConfig(num_to_keep=1)}
    (second,) = restore(Counting, resume_finished=True, run=run)
    assert Path(second.checkpoint.path, "number").read_text() == "4"
    assert len(second.best_checkpoints) == 1


def test_a_score_that_comes_late_ranks_from_then_on(fit):
    def late(config):
        for step in range(4):
            score = {"score": step} if step >= 2 else {}
            tune.report({"step": step, **score}, checkpoint=tune.Checkpoint.from_dict({"step": step}))

    policy = tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score")
    (result,) = fit(late, run={"checkpoint_config": policy})
    assert [report["step"] for _, report in result.best_checkpoints] == [3]


def test_checkpoint_metadata_and_copies(tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "weights").write_text("w")
    checkpoint = tune.Checkpoint.from_directory(tmp_path / "c")
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1})
    checkpoint.update_metadata({"b": 2})
    copy = tune.Checkpoint(checkpoint.to_directory(tmp_path / "copy"))
    assert copy.get_metadata() == {"a": 1, "b": 2}
    assert (tmp_path / "copy" / "weights").read_text() == "w"
    with copy.as_directory() as path:
        assert Path(path, "weights").read_text() == "w"
    with pytest.raises(CheckpointError, match="nowhere"):
        tune.Checkpoint(tmp_path / "nowhere")
