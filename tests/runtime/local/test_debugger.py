"""`breakpoint()` in a worker: it opens on the program's terminal, or says why not."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import run_python

ROOT = Path(__file__).parents[3]
TASKS = """
import trainkit
@trainkit.remote
def work(value):
    doubled = 2 * value
    breakpoint()
    return doubled
trainkit.init(num_cpus=2)
print("results", trainkit.get([work.remote(21), work.remote(42)]))
"""
TRIALS = """
import tempfile
from trainkit import tune
def train(config):
    doubled = 2 * config["x"]
    breakpoint()
    return {"doubled": doubled}
run_config = tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0)
grid = tune.Tuner(train, param_space={"x": tune.grid_search([21, 42])}, run_config=run_config).fit()
print("results", [result.metrics["doubled"] for result in grid])
"""
LINES = """
import trainkit
@trainkit.remote
def work(value):
    breakpoint()
    tripled = 3 * value
    more = tripled + 1
    return more
trainkit.init(num_cpus=2)
print("results", trainkit.get([work.remote(21), work.remote(42)]))
"""
STEPS = LINES.replace("    more =", "    breakpoint()\n    more =")
CONTINUE = ["continue", "continue"]
CONTINUES = ["p doubled + 1000", "continue"] * 2


def environment() -> dict[str, str]:
    """Return this process's variables, without the switch by which pytest-xdist turns breakpoints off."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}


def run_in_terminal(script: Path, program: str, commands: list[str]) -> str:
    """Return what is shown as a program takes all of the commands, one at each prompt."""
    script.write_text(program)
    mine, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, script],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=ROOT,
        env=environment(),
    ) as child:
        os.close(terminal)
        shown, answered = "", 0
        while True:
            try:
                shown += os.read(mine, 4096).decode()
            except OSError:  # the program has closed the terminal
                break
            while shown.count("(Pdb") > answered:
                os.write(mine, f"{commands[answered]}\n".encode())
                answered += 1
    os.close(mine)
    assert child.returncode == 0, shown
    assert answered == len(commands), shown
    return shown


@pytest.mark.parametrize("program", [TASKS, TRIALS], ids=["tasks", "trials"])
def test_each_worker_takes_its_commands_from_the_terminal_in_turn(program: str, tmp_path: Path) -> None:
    shown = run_in_terminal(tmp_path / "program.py", program, CONTINUES)
    assert "-> return" in shown, "the source is shown"
    assert "1042" in shown
    assert "1084" in shown
    assert "results [42, 84]" in shown


def test_a_second_stop_has_the_terminal_and_the_other_worker_its_turn(tmp_path: Path) -> None:
    """A `breakpoint()` that is reached step by step."""
    commands = ["next", "next", "p tripled", "continue"]
    shown = run_in_terminal(tmp_path / "program.py", STEPS, [*commands, *commands])
    assert "results [64, 127]" in shown


@pytest.mark.parametrize(
    "commands",
    [
        ["break 7", "continue", "p tripled", "continue"],
        ["break 7", "commands 1\np tripled\nend", *CONTINUE],
    ],
    ids=["breakpoints", "commands of a breakpoint"],
)
def test_a_breakpoint_of_the_debugger_has_the_terminal_again(commands: list[str], tmp_path: Path) -> None:
    """One worker alone: at `continue` it gives the terminal back, and another one would have its turn."""
    alone = LINES.replace("work.remote(21), work.remote(42)", "work.remote(21)")
    shown = run_in_terminal(tmp_path / "program.py", alone, commands)
    assert re.search(r"^63\b", shown, re.MULTILINE), shown
    assert "results [64]" in shown


def test_without_a_terminal_the_error_says_what_to_do() -> None:
    done = run_python("-c", TASKS, code=1, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment())
    assert "breakpoint() in a worker needs the program's terminal, which is missing" in done.stderr
    assert "trainkit.init(engine='inline')" in done.stderr
