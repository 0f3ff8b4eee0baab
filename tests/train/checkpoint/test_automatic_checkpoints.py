"""Checkpoints that a trainer writes by itself: at steps, after a time, at an epoch's end and at a signal."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from tests.train.checkpoint.held_operator import HeldOperator
from tests.train.operators import Digits
from tests.train.strategies.test_fsdp import Stack
from tests.train.workers.test_exact_place import Noted, OwnLoop, noted
from tests.train.workers.test_recovery import identical
from trainkit import tune
from trainkit.errors import CheckpointError, ConfigError, TrainingError
from trainkit.train import CheckpointConfig, TorchTrainer, TrainingOperator
from trainkit.train.checkpoint import files
from trainkit.train.distributed.tensors import whole

STEPS = 9
"""Steps of an epoch of `Noted`: 50 samples in batches of 6."""


def trainer(folder: Path, operator: type[TrainingOperator] = Noted, **options: Any) -> TorchTrainer:
    torch.manual_seed(3)
    config = {"*batch_size": 6, "folder": str(folder), **options.pop("config", {})}
    keep = options.pop("keep", {})
    arguments = {"num_workers": 2, "num_cpus_per_worker": 0.2, **options}
    if issubclass(operator, Noted):
        arguments.setdefault("scheduler_step_freq", "batch")
    return TorchTrainer(
        training_operator_cls=operator,
        config=config,
        use_gpu=False,
        checkpoint_dir=folder / "checkpoints",
        checkpoint_config=CheckpointConfig(**keep) if keep else None,
        **arguments,
    )


def saved(folder: Path) -> dict[str, tuple[int, int]]:
    """Return epoch and step of each checkpoint, by name."""
    found = {}
    for path in sorted((folder / "checkpoints").glob("checkpoint_*")):
        metadata = files.read(path)[1]
        found[path.name] = metadata.epoch, metadata.global_step
    return found


def weights(state: dict[str, Any]) -> dict[str, Any]:
    return {name: state[name] for name in ("models", "optimizers", "schedulers", "epoch", "global_step")}


@pytest.mark.usefixtures("runtime")
def test_without_settings_each_epoch_is_saved_and_continued(tmp_path: Path) -> None:
    with trainer(tmp_path) as first:
        assert (first.epoch, first.global_step) == (0, 0)
        first.train()
        assert (first.epoch, first.global_step) == (1, STEPS)
        first.train(max_retries=0)
        assert (first.epoch, first.global_step) == (2, 2 * STEPS)
        expected = first.state_dict()
    assert saved(tmp_path) == {"checkpoint_000000": (1, STEPS), "checkpoint_000001": (2, 2 * STEPS)}
    with trainer(tmp_path) as second:
        assert second.epoch == 2
        assert identical(second.state_dict(), expected)


@pytest.mark.parametrize("options", [{}, {"use_local": True, "num_workers": 1}, {"use_local": True}], ids=str)
@pytest.mark.usefixtures("runtime")
def test_every_steps_saves_after_these_steps_and_keeps_so_many(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with trainer(tmp_path, keep={"every_steps": 4, "num_to_keep": 2}, **options) as first:
        first.train()
        first.train(max_retries=0)
        expected = first.state_dict()
    assert saved(tmp_path) == {"checkpoint_000004": (1, 16), "checkpoint_000005": (2, 18)}
    for path in (tmp_path / "checkpoints").glob("checkpoint_000005/*"):
        path.unlink()
    (tmp_path / "checkpoints" / "checkpoint_000005").rmdir()
    with trainer(tmp_path, keep={"every_steps": 4}, **options) as second:
        assert (second.epoch, second.global_step) == (1, 16)
        assert second.train()["batch_count"] == STEPS
        assert identical(weights(second.state_dict()), weights(expected))


class Uneven(OwnLoop):
    """Its first worker has a batch more than the second worker, which ends the epoch."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        rows = torch.ones(2, 3).double(), torch.ones(2, 1).double()
        batches = [(torch.tensor([index]), *rows) for index in range(10 - self.world_rank)]
        self.register_data(train_loader=batches, sharded=True)


@pytest.mark.usefixtures("runtime")
def test_workers_with_unequal_batches_pause_together(tmp_path: Path) -> None:
    with trainer(tmp_path, Uneven, keep={"every_steps": 3}) as gang:
        assert gang.train()["batch_count"] == 9
        assert gang.train()["batch_count"] == 9
    assert [*saved(tmp_path).values()] == [(0, 3), (0, 6), (1, 9), (1, 12), (1, 15), (2, 18)]


@pytest.mark.usefixtures("runtime")
def test_an_own_loop_is_not_saved_after_its_last_batch_of_another_size(tmp_path: Path) -> None:
    local: dict[str, Any] = {"use_local": True, "num_workers": 1}
    with trainer(tmp_path, OwnLoop, config={"*batch_size": 12}, keep={"every_steps": 2}, **local) as first:
        first.train()
    assert [*saved(tmp_path).values()] == [(0, 2), (0, 4), (1, 5)]
    for name in ("checkpoint_000001", "checkpoint_000002"):
        shutil.rmtree(tmp_path / "checkpoints" / name)
    with trainer(tmp_path, OwnLoop, keep={"every_steps": 7}, **local) as second:
        assert second.train()["num_samples"] == 50
    # The rest of the pass has 26 samples in five batches, so step 7 is the last of the epoch.
    assert saved(tmp_path) == {"checkpoint_000000": (0, 2), "checkpoint_000001": (1, 7)}


class ForgetfulLoop(Digits):
    """Loop that forgets what `config["forgets"]` names: to count its steps, or to add their metrics."""

    def train_epoch(self, iterator: Any, info: dict[str, Any]) -> Any:
        for index, batch in enumerate(iterator):
            metrics = self.train_batch(batch, {})
            self.global_step += self.config["forgets"] != "step"
            first = self.world_rank == self.config.get("rank", 0)
            adds = {"add": False, "rank": first, "later": index < 2 or first}
            if adds.get(self.config["forgets"], True):
                iterator.add(metrics)
        return {"train_loss": 0.0}


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("forgets", ["step", "add"])
def test_an_own_loop_without_positions_is_warned_about_at_its_second_batch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, forgets: str
) -> None:
    local: dict[str, Any] = {"use_local": True, "num_workers": 1, "config": {"forgets": forgets}}
    with trainer(tmp_path, ForgetfulLoop, keep={"every_steps": 100}, **local) as gang:
        gang.train()
        gang.train()
    assert caplog.text.count("train_epoch: no checkpoint is written within the epoch") == 1


@pytest.mark.usefixtures("runtime")
def test_one_worker_whose_own_loop_skips_a_batch_trains_to_the_end(tmp_path: Path) -> None:
    config = {"samples": 48, "batch_size": 4, "forgets": "later", "rank": 1}
    local: dict[str, Any] = {"use_local": True, "num_workers": 1, "config": config}
    with trainer(tmp_path, ForgetfulLoop, keep={"every_steps": 2}, **local) as gang:
        gang.train()
    assert [*saved(tmp_path).values()] == [(0, 2), (1, 8)]


@pytest.mark.usefixtures("runtime")
def test_an_own_loop_that_counts_on_some_workers_only_does_not_hang(tmp_path: Path) -> None:
    config = {"samples": 48, "batch_size": 4, "forgets": "rank"}
    with trainer(tmp_path, ForgetfulLoop, keep={"every_steps": 2}, config=config, timeout_s=20) as gang:
        gang.train()
    assert [*saved(tmp_path).values()] == [(1, 8)]
    config["forgets"] = "later"
    with (
        pytest.raises(TrainingError, match="train_epoch missed a batch"),
        trainer(
            tmp_path / "later", ForgetfulLoop, keep={"every_steps": 9}, config=config, timeout_s=20
        ) as gang,
    ):
        gang.train()


@pytest.mark.usefixtures("runtime")
def test_steps_count_batches_though_gradients_are_accumulated(tmp_path: Path) -> None:
    with trainer(tmp_path, keep={"every_steps": 3}, grad_accumulation_steps=2) as gang:
        gang.train()
    # The optimizer steps after batches 2, 4, 6, 8 and 9: the first of them at or after 3, 6 and 9.
    assert [*saved(tmp_path).values()] == [(0, 4), (0, 6), (1, STEPS)]


class OnPlateau(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        model = nn.Linear(3, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss(), schedulers=plateau)
        self.register_data(train_loader=[(torch.ones(2, 3).double(), torch.ones(2, 1).double())])


@pytest.mark.usefixtures("runtime")
def test_updates_of_schedulers_after_a_checkpoint_are_repeated(tmp_path: Path) -> None:
    with trainer(tmp_path, OnPlateau, num_workers=1, scheduler_step_freq="manual") as first:
        first.train()
        for loss in (1, 2.0, torch.tensor(3.0)):
            first.update_scheduler(loss)
        expected = first.state_dict()
    for _ in range(2):  # reading them changes nothing
        with trainer(tmp_path, OnPlateau, num_workers=1, scheduler_step_freq="manual") as second:
            assert identical(second.state_dict(), expected)
            assert second.apply_all_operators(lambda operator: operator.scheduler.last_epoch) == [3]
    assert expected["optimizers"][0]["param_groups"][0]["lr"] == pytest.approx(0.05 / 4)


class OnList(OnPlateau):
    """Reads its rates from a list, and returns a list with each epoch's metrics."""

    def setup(self, config: dict[str, Any]) -> None:
        model = nn.Linear(3, 1).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        listed = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: [1.0, 0.5, 0.25, 0.125][epoch])
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss(), schedulers=listed)
        self.register_data(train_loader=[(torch.ones(2, 3).double(), torch.ones(2, 1).double())])
        self._epochs = ["a name that the user has chosen"]

    def train_epoch(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        return {**super().train_epoch(*arguments, **named), "per_class": [np.float32(0.1)]}


@pytest.mark.usefixtures("runtime")
@pytest.mark.filterwarnings("ignore:The epoch parameter", "ignore:Detected call of")
def test_updates_are_repeated_with_the_same_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"num_workers": 1, "use_local": True, "scheduler_step_freq": "manual"}
    with trainer(tmp_path, OnList, **options) as first:
        assert first.train()["per_class"] == [np.float32(0.1)]
        for epoch in (1, np.int64(2), None):
            first.update_scheduler(epoch)  # type: ignore[arg-type]
        expected = first.state_dict()
        assert first.apply_all_operators(lambda operator: vars(operator)["_epochs"][0][:6]) == ["a name"]
    assert expected["schedulers"][0]["last_epoch"] == 3
    with trainer(tmp_path, OnList, **options) as second:
        assert identical(second.state_dict(), expected)
    assert not [line for line in caplog.messages if "can't" in line]


class Waiting(Noted):
    """Waits in step 7 until a checkpoint is written."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        found = Path(self.config["folder"], "checkpoints")
        if batch_info["global_step"] == 7:
            assert eventually(lambda: bool([*found.glob("checkpoint_*")]), 60)
        return super().train_batch(batch, batch_info)


@pytest.mark.usefixtures("runtime")
def test_every_s_saves_within_the_epoch(tmp_path: Path) -> None:
    with trainer(tmp_path, Waiting, keep={"every_s": 0.001}) as gang:
        gang.train(max_retries=0)
    steps = [step for _, step in saved(tmp_path).values()]
    assert 0 < steps[0] < 8
    assert steps[-1] == STEPS


@pytest.mark.usefixtures("runtime")
def test_the_best_checkpoints_and_the_newest_are_kept(tmp_path: Path) -> None:
    keep = {
        "num_to_keep": 1,
        "every_steps": 2,
        "checkpoint_score_attribute": "score",
        "checkpoint_score_order": "max",
    }
    with trainer(tmp_path, Scored, keep=keep, config={"samples": 12, "batch_size": 4}) as gang:
        for _ in range(3):
            gang.train()
            gang.validate()
    kept = saved(tmp_path)
    assert [epoch for epoch, _ in kept.values()] == [1, 3]
    metrics = json.loads((tmp_path / "checkpoints" / "metrics.json").read_text())
    assert [metrics[name]["score"] for name in kept] == [5, 1]


class Scored(Digits):
    """Its score is best after the first epoch."""

    def validate(self, val_iterator: Any, info: dict[str, Any]) -> Any:
        scores = [5, 3, 1]
        return {**super().validate(val_iterator, info), "score": scores[info["epoch_idx"] - 1]}


@pytest.mark.usefixtures("runtime")
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"
    with trainer(tmp_path) as gang:
        gang.train()
        expected = gang.state_dict()
        gang.train()
    newest = folder / "checkpoint_000001" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    left = folder / ".checkpoint_000001.writing-999999999"
    left.mkdir()
    with trainer(tmp_path) as second:
        assert identical(second.state_dict(), expected)
        text = caplog.text
        second.train()
    assert f"{folder}/checkpoint_000001 is damaged: state.pt has a wrong size or checksum" in text
    assert f"{folder}/checkpoint_000000 is loaded instead" in text
    assert f"kept as {folder}/damaged_checkpoint_000001" in text
    assert not left.exists()
    assert saved(tmp_path) == {"checkpoint_000000": (1, STEPS), "checkpoint_000001": (2, 2 * STEPS)}
    for path in folder.glob("checkpoint_*/checkpoint.json"):
        path.write_text("{")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be loaded: .*Move this folder away"):
        trainer(tmp_path)
    assert {*saved_names(folder)} == {"checkpoint_000000", "checkpoint_000001"}


def saved_names(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("checkpoint_*")]


@pytest.mark.usefixtures("runtime")
def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with trainer(tmp_path) as gang:
        gang.train()
    with pytest.raises(CheckpointError, match="1 schedulers, but 0"):
        trainer(tmp_path, Digits, config={"samples": 12})
    single = folder / "checkpoint_000000"
    with pytest.raises(CheckpointError, match=r"is a single checkpoint: .*call load\(\)"):
        TorchTrainer(training_operator_cls=Digits, use_gpu=False, checkpoint_dir=single)
    with pytest.raises(CheckpointError, match="is a file: pass the path of a folder"):
        TorchTrainer(training_operator_cls=Digits, use_gpu=False, checkpoint_dir=single / "state.pt")
    metadata = single / "checkpoint.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "version": 99}))
    with pytest.raises(CheckpointError, match="format version 99"):
        trainer(tmp_path)
    assert single.exists()


@pytest.mark.usefixtures("runtime")
def test_training_continues_after_a_failed_write_and_the_next_call_raises_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "continue").touch()
    config = {"samples": 24, "batch_size": 4, "own": {1j: object}}
    with (
        pytest.raises(CheckpointError, match="which a checkpoint can't store"),
        trainer(tmp_path, HeldOperator, keep={"every_steps": 1}, config=config) as gang,
    ):
        assert gang.train()["epoch"] == 1
        gang.train()
    assert caplog.text.count("which a checkpoint can't store") > 1
    assert saved(tmp_path) == {}


@pytest.mark.usefixtures("runtime")
def test_workers_that_cannot_pause_are_saved_at_the_end_of_the_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"num_workers": 2, "wrap_ddp": False}
    config = {"samples": 24, "batch_size": 4}
    with trainer(tmp_path, Digits, keep={"every_steps": 1}, config=config, **options) as gang:
        gang.train()
        gang.train()
    assert [epoch for epoch, _ in saved(tmp_path).values()] == [1, 2]
    assert caplog.text.count("every_steps: no checkpoint was written within the epoch") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_config": CheckpointConfig()}, "checkpoint_config needs checkpoint_dir"),
        ({"checkpoint_dir": 3}, "checkpoint_dir must be a path or None, not 3"),
        ({"checkpoint_dir": "c", "checkpoint_config": {"every_steps": 2}}, "must be a CheckpointConfig"),
        (
            {"checkpoint_dir": "c", "checkpoint_config": CheckpointConfig(checkpoint_frequency=1)},
            "only for Trainable classes: pass every_steps",
        ),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchTrainer(training_operator_cls=Digits, use_gpu=False, **options)


def test_a_tuner_refuses_what_it_does_not_support() -> None:
    with pytest.raises(ConfigError, match="a Tuner does not support checkpoint_dir"):
        TorchTrainer.as_trainable(training_operator_cls=Digits, checkpoint_dir="c")
    with pytest.raises(ConfigError, match="RunConfig does not support CheckpointConfig"):
        tune.RunConfig(checkpoint_config=CheckpointConfig(every_steps=1))
    with pytest.raises(ConfigError, match="every_s=0: give seconds above 0"):
        CheckpointConfig(every_s=0)


PROGRAM = """
    import sys, time, torch
    from pathlib import Path
    from tests.train.checkpoint.test_automatic_checkpoints import trainer
    from tests.train.workers.test_exact_place import Noted

    class Slow(Noted):
        def train_batch(self, batch, batch_info):
            place = batch_info["epoch_idx"], batch_info["batch_idx"]
            if place == (1, 2):
                Path("runs").touch()
            while place == (1, 4) and not Path("signalled").exists():
                time.sleep(0.01)
            if place[0] == 1 and place > (1, 4) and not Path("again").exists():
                time.sleep(2)  # the rest of the epoch lasts longer than the program needs for the signal
            return super().train_batch(batch, batch_info)

    with trainer(
        Path("."), Slow, num_workers=int(sys.argv[1]), keep={"every_steps": 5, "num_to_keep": 2},
    ) as gang:
        while gang.epoch < 3:
            gang.train()
        torch.save(gang.state_dict()["models"], "final")
"""


def final(programs: Programs) -> Any:
    return torch.load(programs.folder / "final")[0]


@pytest.mark.slow
@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_the_same_command_continues_after_a_signal(
    programs: Programs, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    with trainer(folder) as undisturbed:
        for _ in range(3):
            undisturbed.train()
        undisturbed_weights = undisturbed.state_dict()["models"][0]
    first = programs.begin(PROGRAM, "2")
    assert eventually((programs.folder / "runs").exists, 300)
    first.send_signal(number)
    assert eventually(lambda: not programs.is_pending(first.pid, number), 60)
    (programs.folder / "signalled").touch()
    _, err = first.communicate(timeout=300)
    assert first.returncode == (143 if number == signal.SIGTERM else -number), err
    assert " is saved as " in err
    (_, before), (epoch, last) = saved(programs.folder).values()
    assert epoch == 1
    assert before in (10, 15)
    assert 12 <= last < 18
    assert len({*saved(programs.folder)}) == 2
    (programs.folder / "again").touch()
    workers = "2" if number == signal.SIGTERM else "3"
    _, err = programs.begin(PROGRAM, workers).communicate(timeout=300)
    assert f"(finished epochs: 1, steps: {last})" in err
    found = final(programs)
    if workers == "2":
        assert all(torch.equal(found[name], value) for name, value in undisturbed_weights.items())
    samples, expected = noted(programs.folder), noted(folder)
    if workers == "3":  # dropout draws other numbers, and so does the order of the next epoch
        samples, expected = (
            {place: each[place] for place in each if place[0] < 2} for each in (samples, expected)
        )
    assert samples == expected
    lines = (programs.folder / "samples").read_text().splitlines()
    if workers == "2":  # with three workers, some repeat a sample of an epoch's small last batch
        assert len(lines) == len({*lines})  # no batch was trained again
    assert programs.nothing_is_left(120)


SAVES = """
    import os, signal, sys, time
    from pathlib import Path
    from tests.train.checkpoint.test_automatic_checkpoints import interrupted_trainer

    gang = interrupted_trainer(sys.argv[1])
    try:
        gang.train()
    finally:
        started = len(Path("set_up").read_text())
        gang.save("direct")
        assert len(Path("set_up").read_text()) == started, "new workers have started"
        gang.save("direct_too", wait=False)
        gang.apply_all_workers(os.getpid)  # starts new workers
        assert len(Path("set_up").read_text()) > started
        gang.save("by_workers")
        gang.shutdown()
"""


class Interrupted(Stack):
    """Sends SIGTERM to the program in a step."""

    def setup(self, config: dict[str, Any]) -> None:
        with Path(config["folder"], "set_up").open("a") as file:
            file.write(".")
        super().setup(config)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if batch_info["global_step"] == 1 and self.world_rank == 0:
            os.kill(self.config["pid"], signal.SIGTERM)
            time.sleep(0.5)
        return super().train_batch(batch, batch_info)


def interrupted_trainer(strategy: str) -> TorchTrainer:
    logging.basicConfig(level=logging.WARNING)
    return TorchTrainer(
        training_operator_cls=Interrupted,
        config={"folder": str(Path.cwd()), "pid": os.getpid()},
        num_workers=2,
        num_cpus_per_worker=0.2,
        use_gpu=False,
        strategy=strategy,
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_save_after_a_signal_needs_no_new_workers(programs: Programs, strategy: str) -> None:
    program = programs.begin(SAVES, strategy)
    _, err = program.communicate(timeout=300)
    assert program.returncode == 143, err
    states = [files.read(programs.folder / name) for name in ("direct", "direct_too", "by_workers")]
    for state, metadata in states:
        assert metadata == states[0][1]
        assert metadata.global_step >= 2
        assert identical(whole(state), whole(states[0][0]))
    assert programs.nothing_is_left(120)
