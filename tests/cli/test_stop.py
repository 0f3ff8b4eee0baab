"""Ends that somebody else asks for: `trainkit stop` of sessions, SIGTERM; and trials of a killed program."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.cli.test_cli import begin, ended, finish
from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.runtime.local.system import process
from trainkit.tune.results.overview import Overview
from trainkit.tune.store.commands import asker

TUNES = """
    import sys, trainkit
    from pathlib import Path
    from trainkit import tune
    from trainkit.errors import NodeDiedError

    def objective(config):
        folder = Path(tune.get_context().get_trial_dir())
        try:
            (folder / "runs").touch()
            for step in range(1_000_000):
                tune.report({"loss": config["x"]})
        finally:
            (folder / "cleaned").touch()

    trainkit.init(num_cpus=2)
    tuner = tune.Tuner(
        objective,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=20, metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=str(Path.cwd()), name="e", verbose=0),
    )
    statuses = [str(result.status) for result in tuner.fit()]
    print(sorted(set(statuses)), flush=True)
    sys.stdin.readline()
    try:
        trainkit.get(trainkit.remote(lambda: 1).remote())
    except NodeDiedError as error:
        print(error)
"""

SEARCHES = """
    import time, trainkit
    import numpy as np
    from pathlib import Path
    from sklearn.base import BaseEstimator, ClassifierMixin
    from trainkit.sklearn import TuneGridSearchCV

    class Slow(ClassifierMixin, BaseEstimator):
        def __init__(self, a=1):
            self.a = a

        def fit(self, X, y):
            Path("runs").touch()
            time.sleep(0.05)
            self.classes_ = np.unique(y)
            return self

        def predict(self, X):
            return np.zeros(len(X))

    search = TuneGridSearchCV(Slow(), {"a": list(range(1000))}, cv=2, refit=False, verbose=0)
    try:
        search.fit(np.zeros((20, 2)), np.arange(20) % 2)
    except Exception as error:
        print(type(error).__name__, error)
    print("went on")
"""

TRAINS = """
    import torch
    from pathlib import Path
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    from trainkit.train import TorchTrainer, TrainingOperator

    class Endless(TrainingOperator):
        def setup(self, config):
            model = nn.Linear(1, 1)
            self.register(
                models=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), criterion=nn.MSELoss()
            )
            data = TensorDataset(torch.zeros(8, 1), torch.zeros(8, 1))
            self.register_data(train_loader=DataLoader(data, 2))

        def train_batch(self, batch, batch_info):
            Path("runs").touch()
            return super().train_batch(batch, batch_info)

    trainer = TorchTrainer(training_operator_cls=Endless, use_gpu=False)
    trainer.train(num_steps=100_000_000)
"""


ENDS = """
    import atexit, os, signal, sys, threading, time, trainkit
    from trainkit.runtime.session import engine

    def last(seconds):
        print("ending", flush=True)
        time.sleep(seconds)

    def last_thread():
        threading.main_thread().join()  # "ending" is true once Python waits for this thread
        last(600)

    trainkit.init(num_cpus=1)
    trainkit.get(trainkit.remote(os.getpid).remote())
    match sys.argv[1]:
        case "thread":
            threading.Thread(target=last_thread).start()
        case "session":
            os.kill(engine().state("nodes")[0]["pid"], signal.SIGSTOP)
            atexit.register(last, 0)
"""


def runs(programs: Programs) -> bool:
    return bool([*programs.folder.glob("e/*/runs"), *programs.folder.glob("runs")])


def check_cleaned(programs: Programs) -> None:
    """The `finally` blocks of all trials that had begun have run."""
    cleaned, begun = (len(list(programs.folder.glob(f"e/*/{name}"))) for name in ("cleaned", "runs"))
    assert cleaned == begun > 0


def check_pending(programs: Programs) -> str:
    """Nobody has failed, and a restore goes on; return why the experiment ended."""
    overview = Overview.of(programs.folder / "e", 0.0)
    assert {(str(trial.status), trial.failures) for trial in overview.trials} == {("PENDING", 0)}
    return overview.ending


def answered(programs: Programs, answer: str, code: int) -> str:
    """Return the output of `trainkit stop` where this is typed at its terminal."""
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [sys.executable, "-m", "trainkit", "stop"],
        stdin=theirs,
        stdout=subprocess.PIPE,
        text=True,
        env=programs.environment(),
        cwd=programs.folder,
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    out, _ = command.communicate(timeout=120)
    os.close(ours)
    assert command.returncode == code, out
    return out


def test_without_a_name_it_asks_and_ends_nothing_unless_told(programs: Programs) -> None:
    program, pids = begin(programs)
    told = programs.command("stop", code=1)
    assert f"pid {program.pid}" in told
    for arguments in ([], ["--all"]):
        assert "Type `trainkit stop --all --yes`" in programs.command("stop", *arguments, code=1)
    assert "type `trainkit stop --all --yes`" in programs.command("stop", "--yes", code=1)
    assert "leave them out to stop" in programs.command("stop", "e", "--all", "--yes", code=1)
    assert "choose one of them" in programs.command("stop", "--session", "x", "--all", code=1)
    assert "nothing was ended" in answered(programs, "n\n", code=1)
    assert process.exists(pids[0])
    assert "End this session? [y/N]" in answered(programs, "y\n", code=0)
    assert ended(pids)
    finish(program)
    assert programs.nothing_is_left()


@pytest.mark.parametrize("how", [["--all", "--yes"], ["--all", "--yes", "--force"]])
def test_what_tunes_in_a_session_ends_with_who_did_it_on_record(programs: Programs, how: list[str]) -> None:
    program = programs.begin(TUNES)
    assert eventually(lambda: runs(programs))
    told = programs.command("stop", *how)
    words = "stopped by " + asker().rpartition(" (pid")[0]
    if "--force" not in how:
        assert f" ended: {words}" in told
        check_cleaned(programs)
    assert program.stdout is not None
    assert program.stdout.readline().strip() == "['PENDING']"
    out, err = program.communicate("\n", timeout=120)
    assert "the session was ended with `trainkit stop` by" in out, err
    assert check_pending(programs).startswith(words)
    assert programs.nothing_is_left()


def test_a_search_in_memory_ends_in_order_too(programs: Programs) -> None:
    program = programs.begin(SEARCHES)
    assert eventually(lambda: runs(programs))
    programs.command("stop", "--all", "--yes")
    out, err = program.communicate(timeout=120)
    assert "went on" in out, err
    assert "NodeDiedError" not in out
    assert programs.nothing_is_left()


@pytest.mark.parametrize("waits_for", ["thread", "session"])
def test_sigterm_ends_a_program_quietly_that_is_about_to_end(programs: Programs, waits_for: str) -> None:
    program = programs.begin(ENDS, waits_for)
    assert program.stdout is not None
    assert program.stdout.readline() == "ending\n"
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=120) == -signal.SIGTERM
    for pid in programs.processes():
        process.kill(pid, signal.SIGCONT)
    assert program.communicate(timeout=120) == ("", "")
    assert programs.nothing_is_left()


def test_trials_of_a_killed_program_are_listed_as_interrupted(programs: Programs) -> None:
    program = programs.begin(TUNES)
    assert eventually(lambda: "running" in programs.command("ls", str(programs.folder)))
    program.kill()
    program.communicate()
    listed, shown, told = (
        programs.command(*arguments)
        for arguments in (["ls", str(programs.folder)], ["show", "e"], ["why", "e", "0"])
    )
    assert "killed" in listed
    assert " interrupted" in listed
    assert "2 interrupted" in shown
    assert "interrupted: its program has ended" in told
    assert " running" not in listed + shown + told
    assert eventually(lambda: not programs.processes())


@pytest.mark.parametrize("what", [TUNES, SEARCHES, TRAINS], ids=["tuner", "search", "trainer"])
def test_sigterm_ends_a_program_in_order(programs: Programs, what: str) -> None:
    script = textwrap.indent(textwrap.dedent(what), "    ")
    program = programs.begin(f"try:\n{script}\nfinally:\n    print('finally', flush=True)\n")
    assert eventually(lambda: runs(programs))
    program.send_signal(signal.SIGTERM)
    out, err = program.communicate(timeout=120)
    assert program.returncode == 143, err
    assert "finally" in out
    if what is TUNES:
        assert check_pending(programs) == "interrupted by SIGTERM"
        check_cleaned(programs)
    assert programs.nothing_is_left()
