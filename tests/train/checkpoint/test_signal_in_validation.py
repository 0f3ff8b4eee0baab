"""A signal in the middle of validation: no training step is lost, and none is repeated."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from tests.train.checkpoint.test_automatic_checkpoints import final, saved
from tests.train.workers.test_exact_place import Noted, Numbered
from trainkit import tune
from trainkit.train import TorchTrainer

PROGRAM = """
    import json, time, torch
    from pathlib import Path
    from tests.train.checkpoint.test_automatic_checkpoints import trainer
    from tests.train.checkpoint.test_signal_in_validation import Validated

    notes = Path("losses")
    losses = json.loads(notes.read_text()) if notes.exists() else []
    with trainer(Path("."), Validated, num_workers=2) as gang:
        while len(losses) < 3:
            if gang.epoch == len(losses):  # validation of the last epoch is complete
                gang.train()
            losses.append(gang.validate()["val_loss"])
            notes.write_text(json.dumps(losses))
        torch.save(gang.state_dict()["models"], "final")
"""


class Validated(Noted):
    """Waits at the second batch of the second validation, unless the file "on" exists."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.register_data(
            train_loader=DataLoader(Numbered(), config["*batch_size"], shuffle=True),
            validation_loader=DataLoader(Numbered(), config["*batch_size"]),
        )

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        folder = Path(self.config["folder"])
        if self.epoch == 2 and batch_info["batch_idx"] == 1 and not (folder / "on").exists():
            (folder / f"waits{self.world_rank}").touch()
            assert eventually((folder / "on").exists, 300)
        return super().validate_batch(batch[1:], batch_info)


def ended(programs: Programs) -> tuple[Any, list[float], list[str]]:
    """Return the final weights, the losses, and the batches of training, in order."""
    losses = json.loads((programs.folder / "losses").read_text())
    return final(programs), losses, sorted((programs.folder / "samples").read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_the_same_command_validates_again_and_repeats_no_step(
    programs: Programs, number: signal.Signals
) -> None:
    first = programs.begin(PROGRAM)
    waiting = [programs.folder / f"waits{rank}" for rank in (0, 1)]
    assert eventually(lambda: all(each.exists() for each in waiting), 300)
    first.send_signal(number)
    assert eventually(lambda: not programs.is_pending(first.pid, number), 60)
    (programs.folder / "on").touch()
    _, err = first.communicate(timeout=300)
    assert first.returncode == (143 if number == signal.SIGTERM else -number), err
    assert [*saved(programs.folder).values()][-1] == (2, 18)
    assert len(json.loads((programs.folder / "losses").read_text())) == 1
    _, err = programs.begin(PROGRAM).communicate(timeout=300)
    weights, losses, batches = ended(programs)
    assert len(batches) == len({*batches})  # no batch was trained again
    for name in ("losses", "samples", "final"):
        (programs.folder / name).unlink()
    for folder in (programs.folder / "checkpoints").iterdir():
        folder.rename(programs.folder / f"former_{folder.name}")
    _, err = programs.begin(PROGRAM).communicate(timeout=300)
    undisturbed = ended(programs)
    assert all(torch.equal(weights[name], value) for name, value in undisturbed[0].items())
    assert (losses, batches) == undisturbed[1:]
    assert programs.nothing_is_left(120)


TUNER = """
    import json, sys
    from pathlib import Path
    from tests.train.checkpoint.test_signal_in_validation import tuner

    found = tuner(sys.argv[1], sys.argv[2] == "again").fit()[0]
    losses = [[report[name] for name in ("epoch", "train_loss", "val_loss")] for report in found.history]
    Path("history").write_text(json.dumps(losses))
"""


def tuner(workers: str, again: bool) -> tune.Tuner:
    """Return a tuner of a single trial, or the restored tuner."""
    trainable = TorchTrainer.as_trainable(
        training_operator_cls=Validated,
        config={"*batch_size": 6, "folder": str(Path.cwd())},
        scheduler_step_freq="batch",
        num_workers=int(workers),
        num_cpus_per_worker=0.2,
        use_gpu=False,
    )
    if again:
        return tune.Tuner.restore("tuned", trainable)
    checkpoints = tune.CheckpointConfig(checkpoint_frequency=1)
    run = tune.RunConfig(
        name="tuned", storage_path=".", stop={"training_iteration": 3}, checkpoint_config=checkpoints
    )
    return tune.Tuner(trainable, tune_config=tune.TuneConfig(seed=5), run_config=run)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_trial_interrupted_in_validation_repeats_no_step(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    folder = programs.folder
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "30")  # the trial is interrupted after half of it
    first = programs.begin(TUNER, str(workers), "new")
    waiting = [folder / f"waits{rank}" for rank in range(workers)]
    assert eventually(lambda: all(each.exists() for each in waiting), 300)
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=300)
    assert first.returncode == 143, err
    (folder / "on").touch()
    _, err = programs.begin(TUNER, str(workers), "again").communicate(timeout=300)
    disturbed = (folder / "history").read_text(), sorted((folder / "samples").read_text().splitlines())
    assert len(disturbed[1]) == len({*disturbed[1]}) == 27 * workers
    for name in ("history", "samples"):
        (folder / name).unlink()
    (folder / "tuned").rename(folder / "former")
    _, err = programs.begin(TUNER, str(workers), "new").communicate(timeout=300)
    assert disturbed == (
        (folder / "history").read_text(),
        sorted((folder / "samples").read_text().splitlines()),
    ), err
    assert programs.nothing_is_left(120)
