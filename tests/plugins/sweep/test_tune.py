"""`trainkit tune`: sweep files over shell scripts and programs, run, killed and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import trainkit
from tests.conftest import eventually
from trainkit import tune
from trainkit.cli.main import main

Capture = pytest.CaptureFixture[str]
Write = Callable[..., Path]

SCRIPT = """
#!/bin/sh
# A program that knows nothing of trainkit: its loss falls in each step.
x=$1
for step in 1 2 3; do
    sleep ${PAUSE:-0}
    echo "step: $step loss=$(awk "BEGIN {print ($x - 3) ^ 2 + 1 / $step}")"
done
"""

SWEEP = """
command: sh program.sh {x}
parameters:
  x: {min: 0.0, max: 10.0}
metric: {name: loss, goal: minimize}
search_alg: random
seed: 1
num_samples: 4
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Return a function that writes a sweep file beside the script, and returns its path."""
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "results"))
    (tmp_path / "program.sh").write_text(SCRIPT.lstrip())

    def write(text: str = SWEEP, name: str = "sweep.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    yield write
    trainkit.shutdown()


def grid(path: Path, name: str = "sweep") -> tune.ResultGrid:
    return tune.ResultGrid.from_path(path.parent / "results" / name)


def test_a_shell_script_is_tuned(write: Write, capsys: Capture) -> None:
    path = write()
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    results = grid(path)
    assert len(results) == 4
    for result in results:
        assert result.metrics["step"] == 3
        assert result.metrics["training_iteration"] == 3
        assert result.metrics["loss"] == pytest.approx((result.config["x"] - 3) ** 2 + 1 / 3, rel=1e-3)
    best = results.get_best_result()
    assert f"sh program.sh {best.config['x']!r}" in capsys.readouterr().out


def test_the_same_command_again_resumes_after_a_kill(write: Write) -> None:
    path = write(SWEEP.replace("num_samples: 4", "num_samples: 8\nenv: {PAUSE: 0.2}"))
    command = [sys.executable, "-m", "trainkit", "tune", str(path), "--verbose", "0"]
    undisturbed = [result.config for result in _finished([*command, "--name", "whole"], path, "whole")]
    with subprocess.Popen(command, start_new_session=True) as driver:
        experiment = path.parent / "results" / "sweep"
        eventually(lambda: tune.Tuner.can_restore(experiment) and any(r.metrics for r in grid(path)))
        children = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGKILL)
    eventually(lambda: not any(child.is_running() for child in children))
    results = _finished(command, path, "sweep")
    assert [result.config for result in results] == undisturbed
    assert all(result.metrics["step"] == 3 for result in results)


def _finished(command: list[str], path: Path, name: str) -> tune.ResultGrid:
    subprocess.run(command, check=True, timeout=120)
    return grid(path, name)


def test_a_scheduler_stops_a_program_and_its_children(write: Write) -> None:
    path = write(
        """
        command: |
          echo {x} > {trial_dir}/started
          for i in 1 2 3 4; do echo loss={x}; sleep 0.2; done
          sleep 60 &
          wait
        shell: true
        parameters: {x: {values: [1, 2], grid: true}}
        metric: {name: loss}
        num_samples: 1
        stop: {training_iteration: 3}
        """
    )
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    results = grid(path)
    assert [result.metrics["training_iteration"] for result in results] == [3, 3]
    assert all((Path(result.path) / "started").exists() for result in results)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("output", """print("noise"); print("epoch 1: val/loss: 0.5, acc=0.25"); print("lr=1e-3")"""),
        ("output", """print('{"val/loss": 0.5, "acc": 0.25}')"""),
        ("{pattern: 'is (?P<val_loss>.+) acc (?P<acc>.+)'}", """print("loss is 0.5 acc 0.25")"""),
        ("{file: m.json}", """json.dump({"val/loss": 0.5, "acc": 0.25}, open(folder + "/m.json", "w"))"""),
        ("{file: m.jsonl}", """open(folder + "/m.jsonl", "w").write('{"val/loss": 0.5, "acc": 0.25}\\n')"""),
        (
            "{tensorboard: tb}",
            "from tensorboardX import SummaryWriter; w = SummaryWriter(folder + '/tb');"
            "w.add_scalar('acc', 0.25, 1); w.add_scalar('val/loss', 0.5, 1); w.close()",
        ),
    ],
)  # fmt: skip
def test_each_source_of_metrics(write: Write, source: str, lines: str) -> None:
    metric = "val_loss" if "pattern" in source else "val/loss"
    path = write(
        f"""
        command: [{sys.executable}, program.py, "${{args}}"]
        parameters: {{x: [1, 2]}}
        metric: {{name: {metric}, goal: minimize}}
        metrics_from: {source}
        method: grid
        """
    )
    setup = (
        "import json, os, sys; folder = os.environ['TRAINKIT_TRIAL_DIR']; assert sys.argv[1][:4] == '--x='\n"
    )
    (path.parent / "program.py").write_text(setup + lines)
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    found = [(result.metrics[metric], result.metrics["acc"]) for result in grid(path)]
    assert found == [(0.5, 0.25)] * 2


def test_a_failure_shows_the_command_and_the_last_lines(write: Write, capsys: Capture) -> None:
    path = write(
        SWEEP.replace("sh program.sh {x}", "sh -c 'echo no such data >&2; exit {x}'").replace(
            "{min: 0.0, max: 10.0}", "3"
        )
    )
    assert main(["tune", str(path), "--verbose", "0"]) == 1
    error = str(grid(path).errors[0])
    assert "exit code 3" in error
    assert "no such data" in error
    assert "no trial has reported loss" in capsys.readouterr().out


def test_a_program_without_the_metric_fails(write: Write) -> None:
    path = write(SWEEP.replace("name: loss", "name: accuracy"))
    assert main(["tune", str(path), "--verbose", "0"]) == 1
    assert "without writing the metric 'accuracy'" in str(grid(path).errors[0])


def test_a_changed_file_is_refused_but_more_trials_are_allowed(write: Write, capsys: Capture) -> None:
    path = write()
    main(["tune", str(path), "--verbose", "0"])
    write(SWEEP.replace("max: 10.0", "max: 20.0"))
    assert main(["tune", str(path)]) == 1
    assert "was begun with parameters" in capsys.readouterr().err
    write(SWEEP.replace("num_samples: 4", "num_samples: 6"))
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    assert len(grid(path)) == 6
    assert main(["tune", str(path), "--resume", "never"]) == 1
    assert main(["tune", str(path), "--resume", "must", "--name", "other"]) == 1


def test_parameters_with_conditions_and_a_dry_run(write: Write, capsys: Capture) -> None:
    path = write(
        """
        command: python train.py --optimizer {optimizer} --momentum {momentum} --lr {lr}
        parameters:
          optimizer: [sgd, adam]
          momentum: {min: 0.5, max: 0.99, when: {optimizer: sgd}}
          lr: {min: 1e-5, max: 1e-1, scale: log}
        metric: {name: loss}
        num_samples: 2
        """
    )
    assert main(["tune", str(path), "--dry-run"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    for line in printed:
        assert ("--momentum" in line) == ("sgd" in line)
        assert 1e-5 <= float(line.split("--lr ")[1]) < 1e-1


def test_a_file_for_wandb(write: Write) -> None:
    path = write(
        f"""
        program: program.py
        command: ["${{env}}", {sys.executable}, "${{program}}", "${{args}}"]
        project: digits
        method: bayes
        metric: {{name: loss, goal: minimize}}
        run_cap: 3
        early_terminate: {{type: hyperband, min_iter: 1, max_iter: 4, eta: 2}}
        parameters:
          lr: {{distribution: log_uniform_values, min: 1e-4, max: 1.0}}
          layers: {{distribution: int_uniform, min: 1, max: 3}}
          epochs: {{value: 2}}
        """
    )
    (path.parent / "program.py").write_text(
        "import sys\ngiven = dict(word.lstrip('-').split('=') for word in sys.argv[1:])\n"
        "for epoch in range(int(given['epochs'])): print('loss:', float(given['lr']))\n"
    )
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    results = grid(path)
    assert len(results) == 3
    assert all(result.config["layers"] in (1, 2, 3) for result in results)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: [", "is not YAML"),
        ("- a", "contains no sections"),
        (SWEEP.replace("num_samples", "num_sample"), "Did you mean 'num_samples'?"),
        (SWEEP.replace("num_samples: 4", ""), "`num_samples` is missing"),
        (
            SWEEP.replace("max: 10.0", "maxi: 10.0"),
            "parameters.x: the key 'maxi' is unknown. Did you mean 'max'?",
        ),
        (SWEEP.replace("min: 0.0", "min: 11.0"), "parameters.x: "),
        (SWEEP.replace("{x}\n", "{y}\n", 1), "{y} is not a parameter"),
        (SWEEP.replace(" {x}\n", "\n", 1), "the parameter 'x' has no effect"),
        (SWEEP.replace("goal: minimize", "goal: least"), "the goal 'least'"),
        (SWEEP + "scheduler: {name: asha, max_time: 3}", "scheduler: "),
        (SWEEP + "metrics_from: {pattern: 'loss (.*)'}", "no named group"),
        (SWEEP.replace("search_alg: random", "search_alg: randm"), "randm"),
    ],
)
def test_a_wrong_file_names_the_key(write: Write, capsys: Capture, text: str, words: str) -> None:
    path = write(text)
    assert main(["tune", str(path)]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"trainkit: {path}")
    assert words in message
    assert not (path.parent / "results").exists()
