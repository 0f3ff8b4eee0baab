"""Signals that announce the end of a job, with loader processes."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.runtime.local.programs import Programs

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

SNAPSHOT = """
    import json, os, signal, sys, time, torch, trainkit
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader
    from trainkit.train import TorchTrainer, TrainingOperator

    class Line(TrainingOperator):
        def setup(self, config):
            model = nn.Linear(1, 1)
            self.register(
                models=model, optimizers=torch.optim.SGD(model.parameters(), lr=1e-9), criterion=nn.MSELoss()
            )
            data = [(torch.tensor([float(x)]), torch.tensor([0.0])) for x in range(800)]
            self.register_data(train_loader=DataLoader(data, 2))
            self.driver, self.dies = config["driver"], config["dies"]

        def train_batch(self, batch, info):
            time.sleep(0.02)
            return super().train_batch(batch, info)

        def state_dict(self):
            if self.world_rank == 0 and self.global_step and not Path("sent").exists():
                Path("sent").write_text(str(self.global_step))
                os.kill(self.driver, signal.SIGTERM)
                time.sleep(0.3)
                if self.dies:
                    os.kill(os.getpid(), signal.SIGKILL)
            return {}

    if __name__ == "__main__":
        config = {"driver": os.getpid(), "dies": sys.argv[1] == "dies"}
        trainer = TorchTrainer(training_operator_cls=Line, num_workers=2, use_gpu=False, config=config)
        try:
            trainer.train()
            print("trained", flush=True)
        finally:
            trainer.save("saved")
            print(json.loads(Path("saved/checkpoint.json").read_text())["global_step"], flush=True)
"""

MOMENTS = """
    import json, os, signal, sys, time, torch
    os.environ["TRAINKIT_STOP_GRACE_S"] = "300"
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader, Dataset
    from trainkit.train import TorchTrainer, TrainingOperator

    class Samples(Dataset):
        def __init__(self, operator):
            self.operator = operator

        def __len__(self):
            return 20

        def __getitem__(self, index):
            self.operator.interrupt("wait", self.operator.global_step == 5, 60)
            return torch.tensor([float(index)]), torch.tensor([0.0])

    class Line(TrainingOperator):
        def setup(self, config):
            self.moment, self.driver = config["moment"], config["driver"]
            model = nn.Linear(1, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, self.factor)
            self.register(
                models=model, optimizers=optimizer, schedulers=scheduler, criterion=nn.MSELoss()
            )
            self.register_data(train_loader=DataLoader(Samples(self), 2))

        def factor(self, epoch):
            self.interrupt("end", self.global_step)
            return 1.0

        def train_batch(self, batch, info):
            result = super().train_batch(batch, info)
            Path(f"made{self.world_rank}").write_text(str(self.global_step + 1))
            self.interrupt("first", self.global_step == 5)
            return result

        def state_dict(self):
            self.interrupt("snapshot", self.global_step)
            return {}

        def interrupt(self, moment, is_there, seconds=0.5):
            if moment == self.moment and is_there and self.world_rank == 0 and not Path("sent").exists():
                Path("sent").touch()
                os.kill(self.driver, signal.SIGTERM)
                time.sleep(seconds)
                Path("waited").touch()

    class OwnLoop(Line):
        def train_epoch(self, iterator, info):
            if info["epoch_idx"] == 0:
                return super().train_epoch(iterator, info)
            for batch in iterator:  # counts no batch, so that no pause is possible
                self.interrupt("loop", True, 60)
            return {}

    if __name__ == "__main__":
        config = {"driver": os.getpid(), "moment": sys.argv[1]}
        how = {"num_workers": 2, "use_gpu": False, "scheduler_step_freq": "epoch"}
        operator = OwnLoop if sys.argv[1] == "loop" else Line
        trainer = TorchTrainer(training_operator_cls=operator, config=config, **how)
        try:
            trainer.train()
            trainer.train()
            print("trained", flush=True)
        finally:
            trainer.save("saved")
            print(json.loads(Path("saved/checkpoint.json").read_text())["global_step"], flush=True)
"""

STEPS = """
    import os, sys, time, torch
    import torch.distributed as dist
    from pathlib import Path
    from torch.utils.data import DataLoader
    from trainkit import train

    def steps(rank):
        done = 0
        while True:
            for batch in DataLoader(range(40), num_workers=2):
                time.sleep(0.01 * rank)
                dist.all_reduce(torch.ones(1))
                done += 1
                Path(folder, f"seen{rank}").write_text("0 " * done)
                if train.preempted():
                    Path(folder, f"stopped{rank}").write_text(str(done))
                    return done

    folder = Path.cwd()
"""

FUNCTION = (
    STEPS
    + """
    from trainkit.train import RunConfig, ScalingConfig, TorchTrainer
    os.environ["TRAINKIT_STOP_GRACE_S"] = "60"

    def function(config):
        train.report({"steps": steps(train.get_context().get_world_rank())})
        Path(folder, "went on").touch()

    run = RunConfig(name="run", storage_path=str(folder), verbose=0)
    TorchTrainer(function, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()
"""
)

SCRIPT = (
    STEPS
    + """
    dist.init_process_group("gloo")
    steps(dist.get_rank())
    dist.destroy_process_group()
"""
)

ALONE = """
    from pathlib import Path
    import time
    from trainkit import train
    while not train.preempted():
        Path("seen0").write_text("0 " * 9)
        Path("seen1").write_text("0 " * 9)
        time.sleep(0.01)
    print("saves", flush=True)
"""


TUNER = """
    import time
    from pathlib import Path
    from trainkit import tune

    folder = Path.cwd()

    def function(config):
        held = tune.get_checkpoint()
        start = 0 if held is None else int(Path(held.path, "step").read_text()) + 1
        for step in range(start, 12):
            time.sleep(0.05)
            Path(folder, f"seen{config['trial']}").open("a").write(f"{step} ")
            with tune.checkpoint_dir(step) as place:
                Path(place, "step").write_text(str(step))
            tune.report(step=step)

    if tune.Tuner.can_restore(folder / "run"):
        tuner = tune.Tuner.restore(folder / "run", trainable=function)
    else:
        config = {"trial": tune.grid_search([*range(8)])}
        run = tune.RunConfig(name="run", storage_path=str(folder), verbose=0)
        tuner = tune.Tuner(function, param_space=config, run_config=run)
    results = tuner.fit()
    print(sorted(result.metrics["step"] for result in results), len(results.errors), flush=True)
"""


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
    programs.send_to_all(program, number, random.Random(0))
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (128 + number, ""), err
    assert programs.nothing_is_left(120)
    before = seen(programs.folder, 0) + seen(programs.folder, 1)
    assert len(before) < 800
    out, err = programs.begin(OPERATOR, how).communicate(timeout=300)
    assert out == "trained\n", err
    assert sorted(seen(programs.folder, 0) + seen(programs.folder, 1)) == [*range(800)], (len(before), err)


@pytest.mark.slow
@pytest.mark.parametrize("worker", ["lives", "dies"])
def test_a_signal_during_a_snapshot_is_heeded(programs: Programs, worker: str) -> None:
    program = programs.begin(SNAPSHOT, worker)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 128 + signal.SIGTERM, err
    saved = (programs.folder / "sent").read_text() if worker == "lives" else "0"
    assert out == f"{saved}\n", err
    assert programs.nothing_is_left(120)


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "least"), [("end", 5), ("snapshot", 5), ("first", 6)])
def test_a_signal_at_the_end_or_at_the_begin_of_an_epoch_loses_no_step(
    programs: Programs, moment: str, least: int
) -> None:
    program = programs.begin(MOMENTS, moment)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 128 + signal.SIGTERM, err
    made = [int((programs.folder / f"made{rank}").read_text()) for rank in (0, 1)]
    assert least <= made[0] == made[1] < 10
    assert out == f"{made[0]}\n", err
    assert programs.nothing_is_left(120)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["wait", "loop"])
def test_a_signal_waits_for_no_first_batch_and_for_no_loop_without_pauses(
    programs: Programs, moment: str
) -> None:
    program = programs.begin(MOMENTS, moment)
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (128 + signal.SIGTERM, "5\n"), err
    assert (programs.folder / "sent").exists() and not (programs.folder / "waited").exists()
    assert programs.nothing_is_left(120)


@pytest.mark.slow
@pytest.mark.parametrize("everyone", [True, False])
@pytest.mark.parametrize(
    ("script", "flags"),
    [(FUNCTION, ()), (SCRIPT, ("-m", "trainkit", "run", "--workers", "2"))],
    ids=["function", "script"],
)
def test_all_ranks_learn_of_a_signal_at_the_same_step(
    programs: Programs,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    flags: tuple[str, ...],
    everyone: bool,
) -> None:
    monkeypatch.setenv("TRAINKIT_PREEMPT_SIGNALS", "USR1")
    program = programs.begin(script, flags=flags)
    number = signal.SIGTERM if everyone else signal.SIGUSR1
    assert eventually(lambda: min(len(seen(programs.folder, rank)) for rank in (0, 1)) > 4, 300)
    if everyone:
        programs.send_to_all(program, number, random.Random(0))
    else:
        program.send_signal(number)
    _, err = program.communicate(timeout=300)
    assert program.returncode == 128 + number, err
    stopped = [(programs.folder / f"stopped{rank}").read_text() for rank in (0, 1)]
    assert stopped[0] == stopped[1], err
    assert not (programs.folder / "went on").exists()
    assert programs.nothing_is_left(120)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_eight_trials_keep_each_report_at_a_signal_to_all(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TRAINKIT_PREEMPT_SIGNALS", "USR2")
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "60")
    program = programs.begin(TUNER)
    assert eventually(lambda: len(seen(programs.folder, 0)) > 3, 300)
    programs.send_to_all(program, number, random.Random(0))
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (128 + number, ""), err
    assert programs.nothing_is_left(120)
    out, err = programs.begin(TUNER).communicate(timeout=300)
    assert out == f"{[11] * 8} 0\n", err
    assert [seen(programs.folder, trial) for trial in range(8)] == [[*range(12)]] * 8


def test_a_loop_of_the_program_itself_ends_as_it_likes(programs: Programs) -> None:
    program = programs.begin(ALONE)
    assert eventually(lambda: bool(seen(programs.folder, 0)), 300)
    program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (0, "saves\n"), err


def test_the_program_ends_before_the_end_of_its_job(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINKIT_STOP_BEFORE_S", "3595")
    program = programs.begin(
        """
        import os, time, trainkit
        os.environ["SLURM_JOB_END_TIME"] = str(time.time() + 3600)
        os.environ.pop("TRAINKIT_JOB_END_TIME", None)
        trainkit.init(num_cpus=1)
        try:
            time.sleep(300)
        finally:
            print("saves", flush=True)
        """
    )
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (143, "saves\n"), err
    assert programs.nothing_is_left(120)


def seen(folder: Path, rank: int) -> list[int]:
    """The samples of the steps that a worker has finished."""
    path = folder / f"seen{rank}"
    return [*map(int, path.read_text().split())] if path.exists() else []
