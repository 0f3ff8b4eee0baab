"""SIGTERM and Ctrl-C, to the program alone or to its whole job, whatever dies at the same moment."""

from __future__ import annotations

import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.runtime.local.system import process

OPERATOR = """
    import os, signal, sys, threading, time, torch, trainkit
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from trainkit.runtime.session import engine
    from trainkit.train import TorchTrainer, TrainingOperator

    class Slow(TrainingOperator):
        def setup(self, config):
            model = nn.Linear(1, 1)
            self.register(
                models=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), criterion=nn.MSELoss()
            )
            data = TensorDataset(torch.zeros(80, 1), torch.zeros(80, 1))
            self.register_data(train_loader=DataLoader(data, 2))

        def train_batch(self, batch, info):
            Path("runs").touch()
            time.sleep(0.02)
            return super().train_batch(batch, info)

    def interrupt(number):
        while not Path("runs").exists():
            time.sleep(0.01)
        node = engine().state("nodes")[0]["pid"]
        os.kill(node, signal.SIGSTOP)  # it does not answer the order to end the workers
        main = threading.main_thread().ident
        os.kill(os.getpid(), number)
        while "kill" not in names(sys._current_frames()[main]):
            time.sleep(0.01)
        os.kill(node, signal.SIGKILL)

    def names(frame):
        found = set()
        while frame is not None:
            found.add(frame.f_code.co_name)
            frame = frame.f_back
        return found
"""

TRAINS = (
    OPERATOR
    + """
    trainer = TorchTrainer(training_operator_cls=Slow, num_workers=2, use_gpu=False)
    try:
        for _ in range(60):
            trainer.train()
        print("trained to the end", flush=True)
    finally:
        print("finally", flush=True)
"""
)

DIES_MEANWHILE = (
    OPERATOR
    + """
    trainkit.init(num_cpus=2)
    trainer = TorchTrainer(training_operator_cls=Slow, num_workers=2, use_gpu=False)
    threading.Thread(target=interrupt, args=(int(sys.argv[1]),)).start()
    try:
        for _ in range(20):
            trainer.train()
            print("trained", flush=True)
    finally:
        print("finally", flush=True)
"""
)


BETWEEN_WORKERS = (
    OPERATOR
    + """
    def stop(frame, event, arg):
        if event == "return" and frame.f_code.co_name == "remote":
            if frame.f_back.f_locals.get("method") == "go_on":  # worker 0 has received the call alone
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGTERM)

    trainer = TorchTrainer(training_operator_cls=Slow, num_workers=2, use_gpu=False, timeout_s=20)
    if Path("saved").exists():
        trainer.load("saved")
        print("resumed", trainer.train()["epoch"], flush=True)
        sys.exit()
    sys.setprofile(stop)
    try:
        trainer.train(num_steps=100_000)
        print("trained", flush=True)
    finally:
        trainer.save("saved")
"""
)

RANK = """
    import signal, sys, time
    import torch.distributed as dist
    from pathlib import Path
    dist.init_process_group("gloo")
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    Path(f"runs{dist.get_rank()}").touch()
    while not told:
        time.sleep(0.01)
    for _ in range(200):  # a second signal would come meanwhile
        time.sleep(0.01)
    print("saved by", dist.get_rank(), "told", len(told), flush=True)
"""

LOOP = """
    import os, time, torch
    from pathlib import Path
    from trainkit import train
    from trainkit.train import RunConfig, ScalingConfig
    from trainkit.train.torch import TorchTrainer
    os.environ["TRAINKIT_STOP_GRACE_S"] = "40"

    def body(config):
        rank = train.get_context().get_world_rank()
        try:
            while True:
                time.sleep(0.01)
                torch.distributed.all_reduce(torch.ones(1))
                (folder / f"runs{rank}").touch()
        except BaseException as error:
            (folder / "steps").touch()
            print("saw", type(error).__name__, flush=True)
            raise
        finally:
            time.sleep(0.5)
            (folder / f"cleaned{rank}").touch()

    folder = Path.cwd()
    try:
        run = RunConfig(name="run", storage_path=str(folder), verbose=0)
        TorchTrainer(body, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()
    finally:
        print("finally", flush=True)
"""

REPORTS = LOOP.replace(
    "torch.distributed.all_reduce(torch.ones(1))",
    '(folder / f"runs{rank}").touch(), rank or train.report({"x": 1})',
)
"""Rank 0 waits in `report` for rank 1."""

TRIALS = """
    import os, time, trainkit
    from pathlib import Path
    from trainkit import tune
    os.environ["TRAINKIT_STOP_GRACE_S"] = "40"

    class Steps(tune.Trainable):
        def setup(self, config):
            self.config = config

        def step(self):
            work(self.config["x"])

        def cleanup(self):
            (folder / f"cleaned{self.config['x']}").touch()

    def work(x):
        (folder / f"runs{x}").touch()
        trainkit.get(trainkit.put(1))
        while True:
            time.sleep(0.01)

    def function(config):
        try:
            work(config["x"])
        finally:
            (folder / f"cleaned{config['x']}").touch()

    folder = Path.cwd()
    tuner = tune.Tuner(
        {"function": function, "class": Steps}[WHAT],
        param_space={"x": tune.grid_search([0, 1])},
        run_config=tune.RunConfig(name="run", storage_path=str(folder), verbose=0),
    )
    try:
        trainkit.init(num_cpus=2)
        tuner.fit()
    finally:
        print("finally", flush=True)
"""


GOES_ON = """
    import os, signal, trainkit
    from trainkit.runtime.session import engine

    @trainkit.remote
    class Actor:
        def pid(self):
            return os.getpid()

    trainkit.init(num_cpus=1)
    signal.signal(signal.SIGTERM, lambda *_: None)
    actor = Actor.remote()
    print(engine().state("nodes")[0]["pid"], trainkit.get(actor.pid.remote()), flush=True)
    input()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_heeded_though_the_node_dies_meanwhile(
    programs: Programs, number: signal.Signals
) -> None:
    program = programs.begin(DIES_MEANWHILE, str(int(number)))
    out, err = program.communicate(timeout=300)
    assert program.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT), err
    assert out == "finally\n"
    assert programs.nothing_is_left(120)


@pytest.mark.parametrize("flags", [(), ("--fresh",)])
def test_ranks_that_have_sigterm_with_all_processes_of_the_job_save(
    programs: Programs, flags: tuple[str, ...]
) -> None:
    run = (*("-m", "trainkit", "run", "--workers", "2"), *flags)
    program = programs.begin(RANK, flags=run)
    assert eventually(lambda: len([*programs.folder.glob("runs*")]) == 2, 300)
    programs.send_to_all(program, signal.SIGTERM, random.Random(1))
    out, err = program.communicate(timeout=300)
    assert program.returncode == 143, err
    assert sorted(out.splitlines()) == ["saved by 0 told 1", "saved by 1 told 1"], err
    assert programs.nothing_is_left(120)


def test_a_signal_while_workers_receive_their_call_saves_one_place_for_all_workers(
    programs: Programs,
) -> None:
    program = programs.begin(BETWEEN_WORKERS)
    out, err = program.communicate(timeout=300)
    assert (program.returncode, out) == (143, ""), err
    again = programs.begin(BETWEEN_WORKERS)
    out, err = again.communicate(timeout=300)
    assert (again.returncode, out) == (0, "resumed 1\n"), err
    assert programs.nothing_is_left(120)


def test_a_sigterm_to_all_that_the_program_survives_saves_no_worker_from_a_later_one(
    programs: Programs,
) -> None:
    program = programs.begin(GOES_ON)
    assert program.stdout is not None
    node, worker = map(int, program.stdout.readline().split())
    programs.send_to_all(program, signal.SIGTERM, random.Random(0))
    assert eventually(lambda: programs.is_pending(node, signal.SIGTERM), 60)
    assert eventually(lambda: not programs.is_pending(node, signal.SIGTERM), 300)
    assert process.exists(worker)
    process.kill(worker, signal.SIGTERM)
    assert eventually(lambda: not process.exists(worker), 300)
    program.communicate("\n", timeout=300)
    assert program.returncode == 0
    assert programs.nothing_is_left(120)


@pytest.mark.parametrize(
    ("script", "everyone"),
    [
        (LOOP, True),
        (REPORTS, False),
        (f"    WHAT = 'function'{TRIALS}", True),
        (f"    WHAT = 'class'{TRIALS}", False),
    ],
    ids=["loop", "reports", "function", "class"],
)
def test_what_does_not_come_to_a_report_cleans_up_before_it_is_killed(
    programs: Programs, script: str, everyone: bool
) -> None:
    program = programs.begin(script)
    folder = programs.folder
    assert eventually(lambda: len([*folder.glob("runs*")]) == 2, 300)
    if everyone:
        programs.send_to_all(program, signal.SIGTERM, random.Random(0))
    else:
        program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 143, err
    assert sorted(path.name for path in folder.glob("cleaned*")) == ["cleaned0", "cleaned1"], out + err
    assert "finally" in out
    assert programs.nothing_is_left(120)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_an_interrupt_at_a_drawn_moment_wins_over_what_is_killed_then(programs: Programs, seed: int) -> None:
    """A search: raise the number of seeds for a longer one."""
    drawn = random.Random(seed)
    script = drawn.choice([TRAINS, LOOP])
    number = signal.SIGTERM if script is LOOP else drawn.choice([signal.SIGINT, signal.SIGTERM])
    victim = drawn.choice(["trainkit-node", "trainkit-tmpl", "tk-train-worker-1", ""])
    program = programs.begin(script)
    assert eventually(lambda: any(programs.folder.glob("runs*")), 300)
    time.sleep(drawn.uniform(0, 1))
    to_all = number == signal.SIGTERM and drawn.random() < 0.5
    steps = [
        lambda: programs.send_to_all(program, number, drawn) if to_all else program.send_signal(number),
        lambda: kill_one(programs, victim),
        lambda: time.sleep(drawn.uniform(0, 0.1)),
    ]
    drawn.shuffle(steps)
    for step in steps:
        step()
    out, err = program.communicate(timeout=300)
    assert program.returncode == (143 if number == signal.SIGTERM else -number), (victim, to_all, out, err)
    assert "trained to the end" not in out
    assert "finally" in out
    assert programs.nothing_is_left(120)


def kill_one(programs: Programs, name: str) -> None:
    for pid in programs.processes():
        with suppress(FileNotFoundError):
            if name and Path(f"/proc/{pid}/comm").read_text().strip() in name:
                process.kill(pid)
                return
