"""Signals that announce the end of a job, with loader processes."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.runtime.local.system import process

OPERATOR = """
    import json, sys, time, torch, trainkit
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from trainkit.train import TorchTrainer, TrainingOperator

    class Line(TrainingOperator):
        def setup(self, config):
            torch.manual_seed(0)
            model = nn.Linear(1, 1)
            self.register(
                models=model, optimizers=torch.optim.SGD(model.parameters(), lr=1e-9), criterion=nn.MSELoss()
            )
            x = torch.arange(800.0).unsqueeze(1)
            loader = DataLoader(
                TensorDataset(x, x), 2, num_workers=2, multiprocessing_context=config["how"]
            )
            self.register_data(train_loader=loader)
            self.seen = Path(f"seen{self.world_rank}").open("a")

        def train_batch(self, batch, info):
            time.sleep(0.01)
            result = super().train_batch(batch, info)
            print(*map(int, batch[0].flatten()), file=self.seen, flush=True)
            return result

    if __name__ == "__main__":
        config = {"how": sys.argv[1]}
        trainer = TorchTrainer(training_operator_cls=Line, num_workers=2, use_gpu=False, config=config)
        if Path("saved").exists():
            trainer.load("saved")
        try:
            trainer.train()
            print("trained", flush=True)
        finally:
            trainer.save("saved")
"""


def send_to_all(programs: Programs, pid: int, number: int, seed: int = 0) -> None:
    """Send a signal to every process of the job, in a drawn order, as Slurm and systemd do."""
    pids = sorted({pid, *programs.processes()})
    random.Random(seed).shuffle(pids)
    for each in pids:
        process.kill(each, number)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "number"), [("fork", signal.SIGTERM), ("fork", signal.SIGUSR2), ("spawn", signal.SIGUSR1)]
)
def test_loader_processes_do_not_answer_a_signal_to_all(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, how: str, number: signal.Signals
) -> None:
    monkeypatch.setenv("TRAINKIT_PREEMPT_SIGNALS", "USR1,USR2")
    program = programs.begin(OPERATOR, how)
    assert eventually(lambda: min(len(seen(programs.folder, rank)) for rank in (0, 1)) > 4, 300)
    send_to_all(programs, program.pid, number)
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (128 + number, ""), err
    assert programs.nothing_is_left(120)
    before = seen(programs.folder, 0) + seen(programs.folder, 1)
    assert len(before) < 800
    out, err = programs.begin(OPERATOR, how).communicate(timeout=300)
    assert out == "trained\n", err
    assert sorted(seen(programs.folder, 0) + seen(programs.folder, 1)) == [*range(800)], (len(before), err)


def seen(folder: Path, rank: int) -> list[int]:
    """The samples of the steps that a worker has finished."""
    path = folder / f"seen{rank}"
    return [*map(int, path.read_text().split())] if path.exists() else []
