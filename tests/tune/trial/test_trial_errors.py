"""Why a trial failed is never lost; and one can look into it while it runs."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.tune import programs
from trainkit import tune
from trainkit.errors import ActorDiedError

pytestmark = pytest.mark.usefixtures("runtime")


class TwoArguments(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")
        self.second = second


def raises(config):
    raise TwoArguments("this", "that")


def crashes(config):
    print("about to crash", file=sys.stderr)
    ctypes.string_at(0)


def is_killed(config):
    print("about to be killed", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)


def exits(config):
    print("about to exit", file=sys.stderr)
    os._exit(3)


def test_an_exception_of_two_arguments_keeps_type_text_and_frames(fit):  # row 1.7
    (result,) = fit(raises)
    assert isinstance(result.error, TwoArguments)
    assert "this and that" in str(result.error)
    for text in (result.error.remote_traceback, Path(result.path, "error.txt").read_text()):
        assert "in raises" in text
        assert "TwoArguments: this and that" in text


@pytest.mark.parametrize(
    ("trainable", "code", "words"),
    [
        (crashes, -signal.SIGSEGV, ["SIGSEGV", "about to crash", "in crashes"]),
        (is_killed, -signal.SIGKILL, ["SIGKILL", "about to be killed"]),
        (exits, 3, ["3", "about to exit"]),
    ],
)
def test_a_process_that_died_says_how_and_its_last_lines(fit, trainable, code, words):  # row 1.7
    def reports_first(config):
        tune.report({"loss": 1.0})
        trainable(config)

    (result,) = fit(reports_first)
    assert isinstance(result.error, ActorDiedError)
    assert result.error.exit_code == code
    assert result.metrics["loss"] == 1.0
    kept = Path(result.path, "error.txt").read_text()
    for word in words:
        assert word in str(result.error) + result.error.stderr_tail
        assert word in kept


# --- debugging: row 1.39 --------------------------------------------------------------------------

DEBUGGED = """
import trainkit
from trainkit import tune

def trainable(config):
    secret = 6 * config["x"]
    breakpoint()
    return {"y": secret}

trainkit.init(engine="inline")
run = tune.RunConfig(verbose=1)
print("result:", tune.Tuner(trainable, param_space={"x": 7}, run_config=run).fit()[0].metrics["y"])
"""


@pytest.mark.external
def test_a_breakpoint_in_a_trial_takes_commands(tmp_path):  # row 1.39
    (tmp_path / "debugged.py").write_text(DEBUGGED)
    env = {"PYTHONBREAKPOINT": "", "TRAINKIT_RESULTS_DIR": str(tmp_path)}  # Ray sets the first
    typed = "p secret\nsecret = 43\ncontinue\n"
    done = programs.run("debugged.py", input=typed, cwd=tmp_path, env=env, check=False)
    assert "(Pdb) 42" in done.stdout, done.stdout + done.stderr
    assert "result: 43" in done.stdout
