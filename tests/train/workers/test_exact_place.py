"""A training that is killed or ended in the middle of an epoch continues with the next batch, exactly."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.workers import elastic_worker_group

pytestmark = pytest.mark.usefixtures("runtime")

SAMPLES, BATCH_SIZE = 50, 6


class Numbered(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x = torch.randn(3, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
        return index, x, x.sum(0, keepdim=True) * 2 + 1


class Noted(TrainingOperator):
    """Notes the samples of each batch, and is killed once at a drawn step."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4, 1)).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        self.register(models=model, optimizers=optimizer, criterion=nn.MSELoss(), schedulers=scheduler)
        self.register_data(train_loader=DataLoader(Numbered(), config["*batch_size"], shuffle=True))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        index, x, y = batch
        folder = Path(self.config["folder"])
        step, killed = batch_info["global_step"], folder / "killed"
        if (self.world_rank, step) == self.config.get("kill") and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        metrics = super().train_batch((x, y), batch_info)
        with (folder / "samples").open("a") as file:
            file.write(f"{batch_info['epoch_idx']} {batch_info['batch_idx']} {index.tolist()}\n")
        return metrics


class OwnLoop(Noted):
    """Has a loop of its own."""

    def train_epoch(self, iterator: Any, info: Any, *_: Any, **more: Any) -> Any:
        self.model.train()
        for number, batch in enumerate(self.read(iterator), iterator.first):
            place = {"batch_idx": number, "global_step": self.global_step}
            iterator.add(self.train_batch(batch, {**info, **place}))
            self.scheduler.step()
            self.global_step += 1
        return {**iterator.result(), "finished": self.epoch}

    def read(self, iterator: Any) -> Any:
        return iterator


class ReadingAhead(OwnLoop):
    """Takes each batch before it trains with the previous batch."""

    def read(self, iterator: Any) -> Any:
        held = next(iterator)
        for following in iterator:
            yield held
            held = following
        yield held


class Augmenting(Noted):
    """Gives the default loop batches of its own, so its steps are not the steps of the iterator."""

    def train_epoch(self, iterator: Any, info: Any, *_: Any, **more: Any) -> Any:
        return super().train_epoch((batch for batch in iterator), info)


class Summing(OwnLoop):
    """Keeps the metrics in variables, which a new worker would not have."""

    def train_epoch(self, iterator: Any, info: Any, *_: Any, **more: Any) -> Any:
        self.model.train()
        total, count = 0.0, 0
        for number, batch in enumerate(iterator):
            place = {"batch_idx": number, "global_step": self.global_step}
            total += float(self.train_batch(batch, {**info, **place})["train_loss"])
            count += 1
            self.scheduler.step()
            self.global_step += 1
        return {"mean": total / count, "count": count}


def train(
    folder: Path, workers: int, operator: Any = Noted, **config: Any
) -> tuple[Any, list[Any], dict[Any, list[int]]]:
    """Train two epochs; return the weights, the results, and the samples of each global batch."""
    folder.mkdir()
    torch.manual_seed(3)
    options: dict[str, Any] = {"grad_accumulation_steps": config.pop("accumulate", 1)}
    config = {"*batch_size": BATCH_SIZE, "folder": str(folder), **config}
    with TorchTrainer(
        training_operator_cls=operator,
        config=config,
        num_workers=workers,
        num_cpus_per_worker=0.2,
        use_gpu=False,
        scheduler_step_freq="batch",
        **options,
    ) as trainer:
        results = [trainer.train() for _ in range(2)]
        return trainer.get_model().state_dict(), results, noted(folder)


def noted(folder: Path) -> dict[Any, list[int]]:
    """Return the sorted samples of each global batch; a batch that was trained again counts once."""
    found = defaultdict(list)
    for line in sorted({*(folder / "samples").read_text().splitlines()}):
        epoch, batch, samples = line.split(maxsplit=2)
        found[int(epoch), int(batch)] += [int(each) for each in samples.strip("[]").split(",")]
    return {place: sorted(samples) for place, samples in found.items()}


@pytest.mark.parametrize(
    ("workers", "accumulate", "operator"), [(1, 1, Noted), (2, 2, Noted), (2, 1, OwnLoop)]
)
def test_a_killed_worker_costs_no_sample_and_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, accumulate: int, operator: Any
) -> None:
    whole = train(tmp_path / "whole", workers, operator, accumulate=accumulate)
    # Snapshots are taken after every step, or every second step of several workers.
    monkeypatch.setattr(elastic_worker_group, "interval_s", lambda cost_s: 0.0)
    monkeypatch.setattr(elastic_worker_group, "LEAST_S", 0.0)
    for step in (5, 14):
        folder = tmp_path / str(step)
        weights, results, samples = train(
            folder, workers, operator, accumulate=accumulate, kill=(workers - 1, step)
        )
        assert (folder / "killed").exists()
        assert (results, samples) == whole[1:]
        assert all(torch.equal(weights[name], whole[0][name]) for name in weights)
        lines = (folder / "samples").read_text().splitlines()
        assert len(lines) - len({*lines}) <= 2 * accumulate * workers  # trained again: at most two steps


@pytest.mark.parametrize("operator", [ReadingAhead, Augmenting, Summing])
def test_a_loop_without_a_place_repeats_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: Any
) -> None:
    monkeypatch.setattr(elastic_worker_group, "interval_s", lambda cost_s: 0.0)
    monkeypatch.setattr(elastic_worker_group, "LEAST_S", 0.0)
    weights, results, _ = train(tmp_path / "whole", 1, operator)
    again = train(tmp_path / "killed", 1, operator, kill=(0, 14))
    assert again[1] == results
    assert all(torch.equal(weights[name], again[0][name]) for name in weights)
    lines = (tmp_path / "killed" / "samples").read_text().splitlines()
    assert len(lines) - len({*lines}) == 14 - 9  # all batches of the second epoch before the kill


PROGRAM = """
    import sys, time, torch
    from pathlib import Path
    from tests.train.workers.test_exact_place import Noted, OwnLoop, noted
    from trainkit.train import TorchTrainer

    class Slow(Noted if sys.argv[3] == "default" else OwnLoop):
        def train_batch(self, batch, batch_info):
            if batch_info["batch_idx"] == 2:
                Path("runs").touch()
            while batch_info["batch_idx"] == 4 and not Path("signalled").exists():
                time.sleep(0.01)
            return super().train_batch(batch, batch_info)

    workers, load = int(sys.argv[1]), sys.argv[2] == "load"
    torch.manual_seed(3)
    trainer = TorchTrainer(
        training_operator_cls=Slow, num_workers=workers, num_cpus_per_worker=0.2, use_gpu=False,
        scheduler_step_freq="batch",
        config={"*batch_size": 6, "folder": "."},
    )
    if load:
        trainer.load("saved")
    try:
        result = trainer.train()
        print(result["num_samples"], result["batch_count"], result["epoch"], flush=True)
    finally:
        trainer.save("saved")
        trainer.shutdown()
"""


@pytest.mark.parametrize("loop", ["default", "own"])
def test_sigterm_saves_the_step_and_any_number_of_workers_continues(
    programs: Programs, tmp_path: Path, loop: str
) -> None:
    expected = train(tmp_path / "whole", 1)[2]
    first = programs.begin(PROGRAM, "2", "new", loop)
    assert eventually((programs.folder / "runs").exists, 300)
    first.send_signal(signal.SIGTERM)
    assert eventually(lambda: not programs.is_pending(first.pid, signal.SIGTERM))
    time.sleep(1)  # the program asks the workers to stop after their step
    (programs.folder / "signalled").touch()
    _, err = first.communicate(timeout=300)
    assert first.returncode == 143, err
    begun = noted(programs.folder)
    assert 0 < len(begun) < 9
    second = programs.begin(PROGRAM, "3", "load", loop)
    out, err = second.communicate(timeout=300)
    assert out == f"{SAMPLES} 9 1\n", err
    samples = noted(programs.folder)
    assert samples == {place: each for place, each in expected.items() if place[0] == 0}
    assert programs.nothing_is_left(120)
