"""`trainkit tune`: sweep files over shell scripts and programs, run, killed and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import trainkit
from tests.conftest import eventually
from trainkit import tune
from trainkit.cli.main import main
from trainkit.errors import ConfigError
from trainkit.plugins.sweep.file import sweep_of

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
        assert eventually(lambda: tune.Tuner.can_restore(experiment) and any(r.metrics for r in grid(path)))
        children = psutil.Process(driver.pid).children(recursive=True)
        driver.send_signal(signal.SIGKILL)
    assert eventually(lambda: not any(child.is_running() for child in children))
    results = _finished(command, path, "sweep")
    assert [result.config for result in results] == undisturbed
    assert all(result.metrics["step"] == 3 for result in results)


def _finished(command: list[str], path: Path, name: str) -> tune.ResultGrid:
    subprocess.run(command, check=True, timeout=120)
    return grid(path, name)


@pytest.mark.parametrize(
    ("command", "shell"),
    [
        ("printf '%s|' {x} --x={x} {{x}}", False),
        ("exec printf '%s|' {x} --x={x} '{{x}}'", True),
        ("echo hi >&2;# don't\nexec printf '%s|' {x} --x={x} '{{x}}'", True),
        ("""exec printf '%s|' "{x}" '--x={x}' "{{x}}" # don't""", True),
        (
            """# "it's" (a
            echo "it's \\" (" >&2; (exec printf '%s|' "$(printf '%s' "{x}")" --x="{x}" {{x}})""",
            True,
        ),
    ],
)
@pytest.mark.parametrize(
    "value",
    [
        "a b",
        "$(exit 3)",
        "`exit 3`",
        "; exit 3",
        "it's",
        'say "hi"',
        "é漢",
        "",
        "{n}",
        "a\\b\nc",
        "#",
        1e-05,
        None,
    ],
)
def test_each_value_reaches_the_program_unchanged(
    tmp_path: Path, command: str, shell: bool, value: object
) -> None:
    content = {"command": command, "shell": shell, "parameters": {"x": [value]}}
    sweep = sweep_of(content | {"metric": {"name": "loss"}, "num_samples": 1}, tmp_path / "sweep.yaml")
    words = sweep.program.command({"x": value}, {})
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    text = "null" if value is None else str(value)
    assert done.stdout == f"{text}|--x={text}|{{x}}|"


def test_all_parameters_within_quotes_are_one_word(tmp_path: Path) -> None:
    content = {"command": """bash -c "exec printf '%s|' ${args}" """, "shell": True}
    content |= {"parameters": {"x": 1, "y": [1]}, "metric": {"name": "loss"}, "num_samples": 1}
    sweep = sweep_of(content, tmp_path / "sweep.yaml")
    words = sweep.program.command({"x": "it's $(exit 3)", "y": 2}, {})
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "--x=it's $(exit 3)|--y=2|"


def test_a_command_in_which_a_value_cannot_be_quoted_is_refused(tmp_path: Path) -> None:
    content = {"command": "cat <<END\n{x}\nEND", "shell": True, "parameters": {"x": [1]}}
    sweep = sweep_of(content | {"metric": {"name": "loss"}, "num_samples": 1}, tmp_path / "sweep.yaml")
    assert sweep.program.command({"x": 0.5}, {})[-1] == "cat <<END\n0.5\nEND"
    with pytest.raises(ConfigError, match="can't be quoted beside <<"):
        sweep.program.command({"x": "$(exit 3)"}, {})


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
        ("output", """print("acc=1"); print("done: val/loss=0.5 acc=0.25.", end="")"""),
        ("{pattern: 'is (?P<val_loss>.+) acc (?P<acc>.+)'}", """print("loss is 0.5 acc 0.25")"""),
        ("{file: m.json}", """json.dump({"val/loss": 0.5, "acc": 0.25}, open(folder + "/m.json", "w"))"""),
        (
            "{file: m.jsonl}",
            """open(folder + "/m.jsonl", "w").write('{"acc": 1}\\n{"val/loss": 0.5, "acc": 0.25}')""",
        ),
        (
            "{tensorboard: tb}",  # as TensorFlow 2 writes it
            "import struct; from tensorboardX import FileWriter; import tensorboardX.proto.summary_pb2 as s;"
            "from tensorboardX.proto.tensor_pb2 import TensorProto as T; w = FileWriter(folder + '/tb');"
            "t = lambda x: T(dtype=1, tensor_content=struct.pack('<f', x));"
            "f = lambda tag, x: s.Summary.Value(tag=tag, tensor=t(x));"
            "w.add_summary(s.Summary(value=[f('acc', 0.25), f('val/loss', 0.5)]), 1); w.close()",
        ),
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


@pytest.mark.parametrize("name", ["m.json", "m.jsonl"])
def test_a_program_that_runs_again_may_write_the_same_file(write: Write, name: str) -> None:
    path = write(
        f"""
        command: |
          echo '{{"loss": 1}}' > {{trial_dir}}/{name}
          mkdir {{trial_dir}}/first && exit 1
          [ {{x}} = 1 ]
        shell: true
        parameters: {{x: [1, 1]}}
        metric: {{name: loss}}
        metrics_from: {{file: {name}}}
        num_samples: 1
        max_failures: 1
        """
    )
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    assert [result.metrics["loss"] for result in grid(path)] == [1]


CONTINUING = """
import os, pathlib, signal
done = pathlib.Path(os.environ["TRAINKIT_TRIAL_DIR"], "epoch")
first = int(done.read_text()) + 1 if done.exists() else 1
for epoch in range(first, 7):
    print(f"epoch={epoch} loss={1 / epoch}")
    if epoch == 4 and first == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    done.write_text(str(epoch))
"""


@pytest.mark.parametrize(("counter", "epochs"), [("counter: epoch", [1, 2, 3, 4, 5]), ("", [4, 5, 6])])
def test_a_program_that_continues_keeps_its_earlier_reports(
    write: Write, counter: str, epochs: list[int]
) -> None:
    path = write(
        f"command: {sys.executable} program.py {{x}}\n"
        "parameters: {x: [1]}\nmetric: {name: loss}\nnum_samples: 1\nmax_failures: 1\n"
        f"stop: {{training_iteration: 5}}\n{counter}\n"
    )
    (path.parent / "program.py").write_text(CONTINUING)
    assert main(["tune", str(path), "--verbose", "0"]) == 0
    (result,) = grid(path)
    assert [report["epoch"] for report in result.history] == epochs


def test_a_report_without_the_counter_fails(write: Write) -> None:
    path = write(SWEEP + "counter: epoch\n")
    assert main(["tune", str(path), "--verbose", "0"]) == 1
    assert "lacks the counter 'epoch'" in str(grid(path).errors[0])


def test_a_failed_trial_is_not_the_best(write: Write, capsys: Capture) -> None:
    path = write("command: sh fails.sh {x}\nparameters: {x: [1]}\nmetric: {name: loss}\nmethod: grid")
    (path.parent / "fails.sh").write_text("echo loss=$1; sleep 0.2; exit 3")
    assert main(["tune", str(path), "--verbose", "0"]) == 1
    output = capsys.readouterr().out
    assert "--rerun-failed runs the failed trials again" in output
    assert "best loss" not in output


@pytest.mark.parametrize("arguments", [["--name", "../other"], ["--name", "other", "--resume", "must"]])
def test_a_refused_name_leaves_no_folder(write: Write, arguments: list[str]) -> None:
    path = write()
    (path.parent / "results").mkdir()
    assert main(["tune", str(path), *arguments]) == 1
    assert {each.name for each in path.parent.iterdir()} == {"program.sh", "sweep.yaml", "results"}
    assert not list((path.parent / "results").iterdir())


def test_failed_trials_run_again_on_request(write: Write, capsys: Capture) -> None:
    path = write("command: sh missing.sh {x}\nparameters: {x: [1]}\nmetric: {name: loss}\nmethod: grid")
    assert main(["tune", str(path), "--verbose", "0"]) == 1
    (path.parent / "missing.sh").write_text("echo loss=$1")
    assert main(["tune", str(path), "--verbose", "0"]) == 1
    assert main(["tune", str(path), "--verbose", "0", "--rerun-failed"]) == 0
    assert "best loss: 1" in capsys.readouterr().out


def test_ctrl_c_says_how_to_resume_and_a_second_program_is_refused(write: Write, capsys: Capture) -> None:
    text = SWEEP.replace("sh program.sh {x}", "sh -c 'echo loss={x}; exec sleep 600'")
    path = write(text)
    command = [sys.executable, "-m", "trainkit", "tune", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as driver:
        experiment = path.parent / "results" / "sweep"
        assert eventually(lambda: tune.Tuner.can_restore(experiment) and any(r.metrics for r in grid(path)))
        children = psutil.Process(driver.pid).children(recursive=True)
        # A program reports before it becomes `sleep 600`.
        assert eventually(lambda: any("600" in each.cmdline() for each in children if each.is_running()))
        programs = [each for each in children if each.is_running() and "600" in each.cmdline()]
        assert main(["tune", str(path)]) == 1
        assert f"in use by the process with pid {driver.pid}" in capsys.readouterr().err
        write(text.replace("max: 10.0", "max: 20.0"))
        assert main(["tune", str(path)]) == 1
        assert "give another --name, and a `storage`" in capsys.readouterr().err
        driver.send_signal(signal.SIGINT)
        output = driver.communicate()[0]
    assert driver.returncode == 130
    assert "give the same command again to resume" in output
    assert " unfinished: " in output
    assert not any(each.is_running() for each in programs)


def test_two_programs_share_a_study(write: Write) -> None:
    search = "search_alg: {name: optuna, study_name: joint, storage: study.log}\nmax_concurrent_trials: 1"
    path = write(SWEEP.replace("search_alg: random", search))
    command = [sys.executable, "-m", "trainkit", "tune", str(path), "--verbose", "0"]
    programs = [subprocess.Popen([*command, "--name", name]) for name in ("first", "second")]
    assert [program.wait(120) for program in programs] == [0, 0]
    # A resumed experiment uses the study again.
    path.write_text(path.read_text().replace("num_samples: 4", "num_samples: 5"))
    subprocess.run([*command, "--name", "first"], check=True, timeout=120)
    storage = JournalStorage(JournalFileBackend(str(path.parent / "study.log")))
    (study,) = storage.get_all_studies()
    values = [trial.value for trial in storage.get_all_trials(study._study_id)]
    results = [*grid(path, "first"), *grid(path, "second")]
    assert len(results) == 9
    assert sorted(values) == sorted(result.metrics["loss"] for result in results)


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
    assert "no trial has reported a finite number as loss" in capsys.readouterr().out


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


def test_a_shell_command_leaves_out_parameters_without_a_value(write: Write, capsys: Capture) -> None:
    path = write(
        """
        command: (echo --a {a} {b}; echo --b={b} --b "{b}";echo "a --b {b}") --b {b}|cat --c {c} && ${args}
        shell: true
        parameters:
          a: {value: x}
          b: {value: y, when: {a: z}}
          c: {value: 1}
        metric: {name: loss}
        num_samples: 1
        """
    )
    assert main(["tune", str(path), "--dry-run"]) == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line == """bash -c '(echo --a x ; echo  ;echo "a ") |cat --c 1 && --a=x --c=1'"""


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
        (SWEEP + "scheduler: hyperband", "because it pauses trials"),
        (SWEEP.replace("goal:", "gaol:"), "metric: the key 'gaol' is unknown. Did you mean 'goal'?"),
        (SWEEP + "early_terminate: {type: hyperband, min_itr: 3}", "early_terminate: the key 'min_itr'"),
        (SWEEP + "shell: 'no'", "shell: 'no' is not supported"),
        (SWEEP + "memory: 4GB", "memory: '4GB' is not a number"),
        (SWEEP.replace("sh program.sh {x}", "sh -c 'program ${args}'"), "${args} is not a word of its own"),
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
