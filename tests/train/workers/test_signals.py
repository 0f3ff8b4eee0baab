"""SIGTERM and Ctrl-C, to the program alone and to every process of its job, whatever dies at the same moment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.local.programs import Programs

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


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    several = Programs(tmp_path)
    yield several
    several.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_heeded_though_the_node_dies_meanwhile(
    programs: Programs, number: signal.Signals
) -> None:
    program = programs.begin(DIES_MEANWHILE, str(int(number)))
    out, err = program.communicate(timeout=120)
    assert program.returncode == (143 if number == signal.SIGTERM else -signal.SIGINT), err
    assert out == "finally\n"
    assert programs.nothing_is_left()
