"""The command on real scripts: no alarm on scripts that resume exactly, and words for planted faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from tests.pages import ROOT, program

SCRIPTS = Path(__file__).parent / "scripts"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node")

pytestmark = pytest.mark.timeout(600)


def check(
    folder: Path, *words: str, code: int, stdin: int | IO[bytes] = subprocess.DEVNULL
) -> dict[str, Any]:
    """Return the command's report on a script of `SCRIPTS`."""
    command = [str(SCRIPTS / word) if word.endswith(".py") else word for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "trainkit", "check-resume", "--json", *command],
        capture_output=True, text=True, cwd=folder, check=False, stdin=stdin,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize(
    ("words", "resumed_at"),
    [
        (("--kill-at", "9,16", "loop.py"), [8, 16]),
        (("--steps", "12", "--kill-at", "7", "closures.py", "{run}"), [7]),
        (("--steps", "14", "--kill-at", "9", "--signal", "TERM", "preempted.py"), [10]),
        (("--kill-at", "5", "operator_trainer.py"), [4]),
        (("--steps", "12", "--kill-at", "6", "function_trainer.py"), [4]),
        (("--steps", "10", "--kill-at", "6", "--workers", "2", *TORCHRUN, "{workers}", "ranks.py"), [6]),
        (("--steps", "10", "--kill-at", "6", "trainkit", "run", "--workers", "2", "ranks.py"), [6]),
        (("--steps", "12", "--kill-at", "6", "accelerated.py"), [4]),
        (("--steps", "12", "--kill-at", "6", "lightning_trainer.py"), [4]),
        (("--steps", "12", "--kill-at", "7", "transformers_trainer.py"), [6]),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)  # fmt: skip
@pytest.mark.slow
def test_a_script_that_resumes_exactly_raises_no_alarm(
    words: tuple[str, ...], resumed_at: list[int], tmp_path: Path
) -> None:
    report = check(tmp_path, *words, code=0)
    assert report["exact"] is True
    assert [kill["resumed_at"] for kill in report["kills"]] == resumed_at


@pytest.mark.slow
def test_a_kill_before_the_first_checkpoint_is_complete_raises_no_alarm(tmp_path: Path) -> None:
    report = check(tmp_path, "--steps", "12", "--kill-at", "4", "operator_trainer.py", "itself", code=0)
    assert report["exact"] is True
    *before, last = [kill["resumed_at"] for kill in report["kills"]]
    assert last in (3, 4)
    assert before in ([], [0])


@pytest.mark.slow
def test_a_short_script_that_reads_files_arguments_and_its_input(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("1 2\n3 4\n5 6\n")
    (tmp_path / "config.json").write_text('{"lr": 0.01}')
    (tmp_path / "scales").mkdir()
    (tmp_path / "scales" / "first").write_text("8")
    words = ("--link", "scales", "short.py", "--config=config.json", "--out", "{run}")
    with (tmp_path / "rows.txt").open("rb") as rows:
        report = check(tmp_path, *words, code=0, stdin=rows)
    assert report["steps"] == 6
    assert [kill["resumed_at"] for kill in report["kills"]] == [kill["step"] for kill in report["kills"]]
    assert {file.name for file in tmp_path.iterdir()} == {"rows.txt", "config.json", "scales"}


@pytest.mark.slow
def test_the_same_samples_on_another_number_of_ranks(tmp_path: Path) -> None:
    words = (
        "--steps",
        "10",
        "--kill-at",
        "6",
        "--workers",
        "2,3",
        "trainkit",
        "run",
        "--workers",
        "{workers}",
    )
    report = check(tmp_path, *words, "ranks.py", "other_workers", code=0)
    assert [kill["workers"] for kill in report["kills"]] == [2, 3]


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("repeated_batch", "batch repeated", "step 15 trains on the batch of step 13 again"),
        ("skipped_batch", "batch left out", "step 13 trains on the batch of step 15"),
        ("forgets_place", "epoch begun again", "step 13 trains on the first batch of an epoch (step 11's)"),
        ("order", "order of an epoch", "the order of epoch 3 is that of epoch 2, first at step 21"),
        ("order_at_once", "order of an epoch", "the order of epoch 2 is that of epoch 1, first at step 13"),
        ("accumulation", "accumulation", "step 13 accumulates is 1, but 2 in the undisturbed run"),
        ("scheduler", "settings", "the learning rate at step 15 is 0.00"),
        ("wrong_step", "settings", "the learning rate at step 13 is 0.01, but 0.00142857143"),
        ("optimizer", "optimizer", "optimizer 1 (Adam) begins without its state (step, exp_avg, exp_avg_sq)"),
        ("one_optimizer", "optimizer", "optimizer 2 (SGD) begins without its state (momentum_buffer)"),
        ("ema", "state", "AveragedModel.module.0.0.bias"),
        ("buffers", "state", "Sequential.0.1.num_batches_tracked and 2 more"),
        ("generator", "generator", "the generator's state (torch) differs"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_planted_fault_is_named(fault: str, kind: str, says: str, tmp_path: Path) -> None:
    # Step 13 is the second of an epoch, and step 15 the third.
    kill_at = "15" if fault == "repeated_batch" else "13"
    report = check(tmp_path, "--steps", "24", "--kill-at", kill_at, "loop.py", fault, code=1)
    first = report["findings"][0]
    assert first["kind"] == kind, report["findings"]
    assert says in first["what"]
    assert first["advice"]


@pytest.mark.slow
def test_the_generator_of_one_rank_is_named(tmp_path: Path) -> None:
    words = (
        "--steps",
        "10",
        "--kill-at",
        "6",
        "trainkit",
        "run",
        "--workers",
        "2",
        "ranks.py",
        "one_generator",
    )
    first = check(tmp_path, *words, code=1)["findings"][0]
    assert "step 7 on rank 1" in first["what"]
    assert "rank 1's generator (torch) differs" in first["what"]


@pytest.mark.slow
def test_the_script_of_the_page(tmp_path: Path) -> None:
    """The page shows this report, and what is said of the script without its scheduler."""
    script = program(ROOT / "docs" / "check-resume.md")
    (tmp_path / "train.py").write_text(script)
    report = check(tmp_path, str(tmp_path / "train.py"), code=0)
    assert [(kill["step"], kill["resumed_at"]) for kill in report["kills"]] == [(11, 11), (18, 18)]
    without = script.replace('    scheduler.load_state_dict(saved["scheduler"])\n', "")
    assert without != script
    (tmp_path / "train.py").write_text(without)
    first = check(tmp_path, str(tmp_path / "train.py"), code=1)["findings"][0]
    assert first["what"] == "the learning rate at step 13 is 0.0099, but 0.00886384872 in the undisturbed run"
