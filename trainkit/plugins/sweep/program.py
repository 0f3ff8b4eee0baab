"""Trainable that runs a command line and reports the metrics that the command writes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit import settings, tune
from trainkit.clock import SYSTEM
from trainkit.errors import TuneError
from trainkit.plugins.sweep.counted import CountedReports
from trainkit.plugins.sweep.sources import GrowingFile, JsonFile, OutputLines, Source, TensorBoardFiles
from trainkit.plugins.sweep.words import filled_words, shell_text

_POLL_S = 0.05
_LAST_LINES = 20


@dataclass(frozen=True)
class Program:
    """Command line with places for values, and the source of its metrics.

    Attributes:
        words: words of the command, with `{name}` where a value belongs.
        folder: working folder of the command.
        metric: name of the metric.
        shell: True: bash runs the command, so that `&&`, `|` and `$HOME` work.
        variables: environment variables to set.
        source: kind of source ("output", "pattern", "file", "tensorboard") and its argument. Paths are
            relative to the trial's folder.
        counter: name of the reported value that grows from report to report, if the program continues when
            its trial runs again; empty: the program starts from its beginning.
    """

    words: tuple[str, ...]
    folder: str
    metric: str
    shell: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    source: tuple[str, str] = ("output", "")
    counter: str = ""

    def command(self, config: Mapping[str, Any], own: Mapping[str, str]) -> list[str]:
        """Return the words of the command for a configuration.

        Args:
            config: values of the parameters.
            own: id and folder of the trial, by the names of `OF_THE_TRIAL`.
        """
        if self.shell:
            return ["bash", "-c", shell_text(" ".join(self.words), config, own)]
        return filled_words(self.words, config, own)


def run_program(config: dict[str, Any], program: Program) -> None:
    """Run the command for a configuration, and report each of its metrics until it ends.

    Raises:
        TuneError: the command can't be started, fails, or never writes the metric.
    """
    folder = Path(tune.get_trial_dir() or ".").absolute()
    output, errors = folder / "program_output.txt", folder / "program_errors.txt"
    source = _source(program, folder, output)
    command = program.command(config, {"trial_dir": str(folder), "trial_id": str(tune.get_trial_id())})
    counted = CountedReports(folder / "program_reports.jsonl", program.counter) if program.counter else None
    reported = False
    with _running(program, command, folder, output, errors) as process:
        while True:
            ended = process.poll() is not None  # before the last look, so that no metric is missed
            for report in source.new(ended=ended and process.returncode == 0):
                for each in counted.with_earlier(report) if counted else [report]:
                    tune.report(each)
                reported = True
            if ended:
                break
            time.sleep(_POLL_S)
    if process.returncode != 0:
        raise TuneError(_failure(command, process.returncode, errors, output))
    if not reported:
        raise TuneError(
            f"the command ended without writing the metric {program.metric!r}, which is read from "
            f"{_place(program, output)}: {shlex.join(command)}"
        )


@contextmanager
def _running(
    program: Program, command: list[str], folder: Path, output: Path, errors: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command; at the end of the block, end it and all processes of its group."""
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",  # Python's prints arrive at once, so that a trial can be stopped early
        settings.TRIAL_ID: str(tune.get_trial_id()),
        settings.TRIAL_DIR: str(folder),
        **program.variables,
    }
    with output.open("ab") as out, errors.open("ab") as err:
        try:
            process = subprocess.Popen(
                command, cwd=program.folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise TuneError(
                f"the command can't be started: {error.strerror}: {shlex.join(command)} (in {program.folder})"
            ) from None
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its group: by SIGTERM, and by SIGKILL after the time that a trial has to end."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        deadline = SYSTEM.monotonic() + settings.stop_grace_s() / 2  # the trial has the other half
        while process.poll() is None and SYSTEM.monotonic() < deadline:
            time.sleep(_POLL_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return  # all processes of the group have ended


def _source(program: Program, folder: Path, output: Path) -> Source:
    kind, argument = program.source
    if kind == "file":
        return JsonFile(folder / argument, program.metric)
    if kind == "tensorboard":
        return TensorBoardFiles(folder / argument, program.metric)
    pattern = re.compile(argument) if kind == "pattern" else None
    return OutputLines(GrowingFile(output, from_end=True), program.metric, pattern)


def _place(program: Program, output: Path) -> str:
    kind, argument = program.source
    if kind == "output":
        return f"lines of its output such as {program.metric}=0.1 (not of its errors)"
    return (
        f"{output.parent / argument}" if kind != "pattern" else f"lines of its output that match {argument}"
    )


def _failure(command: list[str], code: int, errors: Path, output: Path) -> str:
    how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    text = errors.read_text(errors="replace") or output.read_text(errors="replace")
    last = "\n".join(text.splitlines()[-_LAST_LINES:])
    return f"the command ended with {how}: {shlex.join(command)}\n{last}".rstrip()
