"""A real Jupyter kernel runs cells as a user does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

jupyter_client = pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.slow

SOON_S = 120
Run = Callable[[str], list[dict[str, Any]]]

TRAINER = """
trainer = TorchTrainer(training_operator_cls=Line, num_workers=2, use_gpu=False)
trainer.train()["batch_count"]
"""
SETUP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import trainkit
from trainkit import tune
from trainkit.train import TorchTrainer, TrainingOperator

trainkit.init(num_cpus=2)

class Line(TrainingOperator):
    def setup(self, config):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.register(models=model, optimizers=optimizer, criterion=torch.nn.MSELoss())
        self.register_data(train_loader=DataLoader(TensorDataset(torch.ones(8, 1), torch.ones(8, 1)), 4))
"""


@contextmanager
def running_kernel(folder: Path) -> Iterator[Run]:
    """Start a kernel in a folder; it runs a cell and returns the messages that come of it."""
    manager, client = jupyter_client.manager.start_new_kernel(
        kernel_name="python3",
        cwd=str(folder),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"},
    )

    def run(code: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        client.execute_interactive(code, timeout=SOON_S, output_hook=messages.append)
        return messages

    try:
        yield run
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a cell and returns the contents of what it shows and raises."""
    with running_kernel(tmp_path_factory.mktemp("notebook")) as run:
        yield lambda code: [message["content"] for message in run(code)]


@pytest.fixture
def cell(kernel: Run) -> Iterator[Run]:
    """The module's kernel, in which no session runs yet."""
    yield kernel
    kernel("import trainkit; trainkit.shutdown()")


def error_in(shown: list[dict[str, Any]]) -> str:
    """The error of a cell, or ''."""
    return next((f"{content['ename']}: {content['evalue']}" for content in shown if "ename" in content), "")


def data_in(shown: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the cell's last line is shown as, by kind."""
    return next(
        (content["data"] for content in shown if "execution_count" in content and "data" in content), {}
    )


def number_of(shown: list[dict[str, Any]]) -> int:
    """Return the number that the notebook gives a cell."""
    return next(int(content["execution_count"]) for content in shown if "execution_count" in content)


def test_a_plot_as_a_cells_last_line_is_a_picture(cell: Run) -> None:
    pytest.importorskip("matplotlib")
    made = cell(
        "from trainkit import tune\n"
        "def f(config):\n"
        "    for step in range(3):\n"
        "        tune.report({'loss': config['x'] / (step + 1)})\n"
        "results = tune.Tuner(f, param_space={'x': tune.grid_search([1.0, 2.0])},\n"
        "    tune_config=tune.TuneConfig(metric='loss', mode='min'),\n"
        "    run_config=tune.RunConfig(storage_path='.', verbose=0)).fit()"
    )
    assert not error_in(made)
    for kind in ("curves", "parallel"):
        shown = data_in(cell(f"results.plot({kind!r})"))
        assert shown["image/png"].startswith("iVBOR"), "a PNG in base64"
    # With pyplot, which registers figures of its own, there is one picture still.
    cell("import matplotlib.pyplot as plt\nplt.figure();")
    shown = cell("results.plot('curves')")
    assert [list(content["data"]) for content in shown if "image/png" in content.get("data", {})] == [
        ["text/plain", "image/png"]
    ]


def test_the_cell_that_makes_a_trainer_can_be_run_again(cell: Run) -> None:
    assert not error_in(cell(SETUP))
    for code in (TRAINER, TRAINER, TRAINER.replace("num_workers=2", "num_workers=2, timeout_s=60")):
        shown = cell(code)
        assert not error_in(shown)
        assert data_in(shown)["text/plain"] == "1"
    made_at = f"made at cell {number_of(shown)}"
    # Held by another name too, it is the user's to shut down.
    cell("kept = trainer")
    error = error_in(cell(TRAINER))
    assert error.startswith("InfeasibleError: a new TorchTrainer asks for 2 CPU")
    assert f"TorchTrainer, {made_at}, line " in error and "shutdown()" in error
    assert data_in(cell("trainer.train()['batch_count']"))["text/plain"] == "1", "the earlier one goes on"
    tuned = error_in(cell("tune.Tuner(lambda config: {'loss': 1.0}).fit()"))
    assert tuned.startswith("InfeasibleError: a trial of ") and made_at in tuned
    cell("trainer.shutdown()")
    assert not error_in(cell(TRAINER))
    cell("del trainer, kept")
    assert not error_in(cell("len(tune.Tuner(lambda config: {'loss': 1.0}).fit())"))


def test_results_and_a_trainer_as_a_cells_last_line_are_tables(cell: Run) -> None:
    assert not error_in(cell(SETUP))
    cell("results = tune.Tuner(lambda config: {'loss': 1.0, 'note': '<b>'}).fit()")
    for code, words in (("results", "ResultGrid(1 trial"), ("results[0]", "note=&lt;b&gt;")):
        shown = data_in(cell(code))
        assert words in shown["text/html"] and "<table>" in shown["text/html"]
    cell(TRAINER)
    shown = data_in(cell("trainer"))
    assert shown["text/plain"].startswith(
        "TorchTrainer(\n  operator: Line\n  workers: 2, which reserve 2 CPU"
    )
    assert "<table>" in shown["text/html"] and "Line" in shown["text/html"]
    shown = data_in(cell("trainer.shutdown()\ntrainer"))
    assert "reserve" not in shown["text/plain"] and "ended: " in shown["text/plain"]


def test_an_error_names_the_cell(cell: Run) -> None:
    shown = cell("import trainkit\ntrainkit.get(trainkit.remote(lambda x: x / 0).remote(1))")
    told = error_in(shown)
    assert told.startswith("ZeroDivisionError") and "dynamic-code" not in told
    assert (
        data_in(cell("(lambda: 0).__code__.co_filename.rpartition('/')[0]"))["text/plain"].strip("'") in told
    )


def test_the_cell_of_a_trainer_that_can_never_fit_fails_alike_each_time_and_leaves_nothing(cell: Run) -> None:
    assert not error_in(cell(SETUP))
    too_large = TRAINER.replace("num_workers=2", "num_workers=50")
    errors = [error_in(cell(too_large)) for _ in range(3)]
    assert errors[0].startswith("InfeasibleError: ") and "50 CPU" in errors[0]
    assert errors == errors[:1] * 3
    left = "[group.state for group in trainkit.list_placement_groups() if group.state != 'REMOVED']"
    assert data_in(cell(f"trainkit.list_actors(), {left}"))["text/plain"] == "([], [])"
    assert data_in(cell(TRAINER))["text/plain"] == "1"
