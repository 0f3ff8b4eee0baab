"""The recipe as a user runs it: from the command line, in short form, on both data sets, through a kill."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

import recipes.mnist
import trainkit
from recipes import data
from tests.conftest import is_running
from tests.recipes.idx import write_mnist
from tests.recipes.programs import run_here
from trainkit.tune import Result, ResultGrid

ROOT = Path(__file__).parents[2]
BEST = re.compile(
    r"best configuration: lr=(?P<lr>\S+), momentum=(?P<momentum>\S+), "
    r"batch_size=(?P<batch_size>\d+), width=(?P<width>\d+)"
)


def start(output: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "recipes.mnist", "--output", str(output), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
    )


def finish(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=400)
    assert process.returncode == 0, printed[-6000:]
    return printed


def trials(output: Path) -> list[Result]:
    """What the experiment holds, read without running anything."""
    (folder,) = output.glob("search-*")
    return list(ResultGrid.load(folder))


def reports(output: Path) -> list[tuple[str, int, float]]:
    """Every report as (trial, iteration, accuracy)."""
    return [
        (trial.trial_id, report["training_iteration"], report["val_accuracy"])
        for trial in trials(output)
        for report in trial.history
    ]


def wait_until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.1)


def lines(output: Path) -> int:
    """How many reports have been written for other tools to read, which is after they are in the store."""
    return sum(len(path.read_text().splitlines()) for path in output.glob("search-*/*/result.json"))


@pytest.mark.timeout(900)
def test_it_resumes_after_a_kill_and_leaves_what_it_prints(tmp_path: Path):
    options = ("--data", "digits", "--trials", "4", "--epochs", "3")
    process = start(tmp_path, *options)
    try:
        wait_until(lambda: lines(tmp_path) >= 3, timeout_s=300, what="three reports")
        family = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate(timeout=60)
    wait_until(lambda: not any(is_running(each.pid) for each in family), timeout_s=60, what="no process left")
    before = reports(tmp_path)
    printed = finish(start(tmp_path, *options, "--resume"))

    after = reports(tmp_path)
    assert len(before) >= 3
    assert set(before) <= set(after)
    assert len({(trial_id, iteration) for trial_id, iteration, _ in after}) == len(after)
    assert len(trials(tmp_path)) == 4

    found = BEST.search(printed)
    assert found is not None, printed
    best_of = {
        trial.trial_id: max(report["val_accuracy"] for report in trial.history) for trial in trials(tmp_path)
    }
    chosen = [
        trial.trial_id
        for trial in trials(tmp_path)
        if all(f"{trial.config[name]:.4g}" == text for name, text in found.groupdict().items())
    ]
    assert [best_of[trial_id] for trial_id in chosen] == [max(best_of.values())]

    promised = re.search(r"final validation accuracy: ([\d.]+)", printed)
    assert promised is not None, printed
    assert accuracy_by_the_printed_lines(printed, tmp_path) == pytest.approx(float(promised[1]), abs=1e-4)
    assert float(promised[1]) > 0.9

    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = int.from_bytes(picture[16:20]), int.from_bytes(picture[20:24])
    assert (width, height) == (1500, 630)


def accuracy_by_the_printed_lines(printed: str, output: Path) -> float:
    """Return the accuracy of the model that the printed lines of code load."""
    lines = [line.strip() for line in printed.splitlines() if line.startswith("    model")]
    scope = {"torch": torch, "recipes": recipes}
    exec("\n".join(lines), scope)
    model = scope["model"].eval()
    images, labels = data.load(output / "data.pt")[1].tensors
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def test_runs_on_the_files_of_mnist(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_mnist(tmp_path / "files", training=120, validation=40)
    options = ("--data", "mnist", "--data-folder", str(tmp_path / "files"), "--trials", "2", "--epochs", "1")
    try:
        printed = run_here("mnist", "--output", str(tmp_path), *options, capsys=capsys)
    finally:
        trainkit.shutdown()
    assert "data: MNIST, 120 images to train on and 40 to validate on" in printed
    assert len(trials(tmp_path)) == 2
