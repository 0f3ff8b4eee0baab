"""A SIGKILL in validation, between `train` and `update_scheduler`: the schedule of rates stays the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from tests.train.checkpoint.test_automatic_checkpoints import OnPlateau, saved, trainer
from tests.train.workers.test_exact_place import Noted, Numbered
from tests.train.workers.test_recovery import identical

PROGRAM = """
    import json, sys, torch
    from pathlib import Path
    from tests.train.checkpoint.test_automatic_checkpoints import trainer
    from tests.train.checkpoint.test_kill_in_validation import Plateau

    options = {"num_workers": int(sys.argv[1]), "scheduler_step_freq": "manual"}
    with trainer(Path("."), Plateau, **options) as gang, open("results", "a") as results:
        while gang.epoch < 3:
            result = gang.train()
            loss = gang.validate()["val_loss"]
            gang.update_scheduler(loss)
            print(json.dumps([result, loss]), file=results, flush=True)
        torch.save(gang.state_dict(), "final")
"""


class Plateau(Noted):
    """Halves the rate after each update, and waits in each validation until a file allows it to continue."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.1), nn.Linear(4, 1)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=1)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss(), schedulers=plateau)
        loader = DataLoader(Numbered(), config["*batch_size"], shuffle=True)
        self.register_data(train_loader=loader, validation_loader=loader)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {**super().train_batch(batch, batch_info), "rate": self.optimizer.param_groups[0]["lr"]}

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        folder = Path(self.config["folder"])
        (folder / f"waits{self.epoch}.{self.world_rank}").touch()
        assert eventually((folder / f"on{self.epoch}").exists, 300)
        return super().validate_batch(batch[1:], batch_info)


def ended(programs: Programs) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Return the final state, the results of all epochs, and the batches of training."""
    folder = programs.folder
    results = [json.loads(line) for line in (folder / "results").read_text().splitlines()]
    return torch.load(folder / "final"), results, sorted((folder / "samples").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_program_killed_in_each_validation_has_the_same_rates(programs: Programs, workers: int) -> None:
    folder = programs.folder
    for epoch in (1, 2, 3):
        killed = programs.begin(PROGRAM, str(workers))
        waiting = [folder / f"waits{epoch}.{rank}" for rank in range(workers)]
        assert eventually(lambda waiting=waiting: all(each.exists() for each in waiting), 300)
        # The write of the epoch's checkpoint may still run, as it does not delay the validation.
        assert eventually(lambda epoch=epoch: (epoch, 9 * epoch) in saved(folder).values(), 300)
        killed.kill()
        killed.communicate()
        (folder / f"on{epoch}").touch()
    _, err = programs.begin(PROGRAM, str(workers)).communicate(timeout=300)
    assert "the first train() only returns the result of the last epoch" in err
    disturbed = ended(programs)
    for name in ("results", "samples", "final"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints")
    _, err = programs.begin(PROGRAM, str(workers)).communicate(timeout=300)
    undisturbed = ended(programs)
    assert [result["rate"] for result, _ in undisturbed[1]] == [0.05, 0.025, 0.0125]
    assert identical(disturbed[0], undisturbed[0])
    assert disturbed[1:] == undisturbed[1:]
    _, err = programs.begin(PROGRAM, str(workers)).communicate(timeout=300)
    assert "(finished epochs: 3, steps: 27)\n" in err  # the last update is noted: the program only ends again
    assert ended(programs)[1] == undisturbed[1]
    assert programs.nothing_is_left(120)


@pytest.mark.usefixtures("runtime")
def test_load_repeats_the_updates_that_followed_a_checkpoint(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_workers": 1, "scheduler_step_freq": "manual"}
    with trainer(tmp_path, OnPlateau, **options) as first:
        first.train()
        for loss in (1.0, 2.0):
            first.update_scheduler(loss)
        expected = first.state_dict()
        first.train()
    folder = tmp_path / "checkpoints"
    with trainer(tmp_path / "other", OnPlateau, **options) as second:
        second.load(folder / "checkpoint_000000")
        assert identical(second.state_dict(), expected)
        assert second.epoch == 1
    (folder / "metrics.json").write_text("[1]")  # the user's own file beside a copy of the checkpoint
    with trainer(tmp_path / "third", OnPlateau, **options) as third:
        third.load(folder / "checkpoint_000000")
        assert third.state_dict()["schedulers"][0]["last_epoch"] == 0


@pytest.mark.usefixtures("runtime")
def test_the_loop_comes_to_an_owed_update_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"num_workers": 1, "scheduler_step_freq": "manual"}
    with trainer(tmp_path, OnPlateau, **options) as first:
        result = first.train(reduce_results=False)
    for _ in range(2):  # the update is owed until the program calls it
        with trainer(tmp_path, OnPlateau, **options) as second:
            assert (second.epoch, second.global_step) == (0, 1)
            second.update_scheduler(9.0)  # belongs before the epoch
            assert second.train(reduce_results=False) == result
            assert (second.epoch, second.global_step) == (1, 1)
    assert caplog.text.count("update_scheduler() before train() has no effect") == 2
    with trainer(tmp_path, OnPlateau, **options) as third:
        assert third.train()["train_loss"] == result[0]["train_loss"]
        third.update_scheduler(9.0)
        third.train()
        third.update_scheduler(9.0)
    with trainer(tmp_path, OnPlateau, **options) as fourth:
        assert (fourth.epoch, fourth.global_step) == (2, 2)
        assert fourth.state_dict()["schedulers"][0]["last_epoch"] == 2
