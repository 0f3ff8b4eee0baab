"""Batch script of a job: it checks the environment, runs the program, and requeues the job at its limit.

The lines that depend on the job come first. The file job.sh, which is the same for all jobs, follows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainkit.settings import PREEMPT_SIGNALS, STOP_GRACE_S

_FLAGS = {
    "partition": "partition",
    "account": "account",
    "nodes": "nodes",
    "gpus": "gpus-per-node",
    "cpus": "cpus-per-task",
    "mem": "mem",
    "time": "time",
    "array": "array",
}
"""Maps settings to options of `sbatch`."""

OWN_OPTIONS = {
    **{option: f"--{flag}" for flag, option in _FLAGS.items()},
    "signal": "--signal-before",
    "job-name": "--job-name",
    "chdir": "the working folder",
    "output": "`trainkit logs`",
    "open-mode": "`trainkit logs`",
    "requeue": "--max-requeues",
    "no-requeue": "--max-requeues 0",
}
"""Options of `sbatch` that `--option` can't set, with what to use instead."""

ATTEMPTS = "attempts.txt"
"""File in a job's folder: a line "start NODE UNIX_TIME" or "end CODE UNIX_TIME" for each attempt."""


@dataclass(frozen=True)
class Batch:
    """Job that a batch script describes.

    Attributes:
        name: name of the job.
        folder: folder of the job, for its output and records.
        working_folder: folder in which the program runs.
        command: words of the program.
        settings: settings of the cluster and the command line, by the names in `settings.KINDS`.
        paths: folders to import from, before all others.
    """

    name: str
    folder: Path
    working_folder: Path
    command: Sequence[str]
    settings: Mapping[str, object] = field(default_factory=dict)
    paths: Sequence[str] = ()

    def options(self) -> list[str]:
        """Return the options of `sbatch`."""
        output = "output-%a.txt" if self.settings.get("array") else "output.txt"
        options: dict[str, object] = {
            "job-name": self.name,
            "chdir": self.working_folder,
            "output": f"{self.folder}/".replace("%", "%%") + output,
            "open-mode": "append",
            "requeue": None,
            "ntasks-per-node": 1,
            "signal": f"B:USR1@{self.settings['signal_before']}",
        }
        return options_of(options, self.settings)

    def text(self) -> str:
        """Return the batch script."""
        settings, notice_s = self.settings, int(str(self.settings["signal_before"]))
        values = {
            "job_folder": shlex.quote(str(self.folder)),
            "python": shlex.quote(str(settings["python"])),
            "notice_s": notice_s,
            "max_requeues": settings["max_requeues"],
            "command": f"({shlex.join(self.command)})",
        }
        variables = {
            PREEMPT_SIGNALS: "USR1",
            STOP_GRACE_S: f"${{{STOP_GRACE_S}:-{notice_s // 2}}}",
            "PYTHONUNBUFFERED": "1",
        }
        if self.paths:
            variables["PYTHONPATH"] = f'{shlex.quote(":".join(self.paths))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
        lines = ["#!/bin/bash", *(f"#SBATCH {_option(each)}" for each in self.options())]
        lines.append(f"cd {shlex.quote(str(self.working_folder))} || exit 1")
        lines += preparation(settings)
        lines.append("export " + " ".join(f"{name}={value}" for name, value in variables.items()))
        lines += [f"{name}={value}" for name, value in values.items()]
        return "\n".join([*lines, "", Path(__file__).with_name("job.sh").read_text()])


def options_of(own: Mapping[str, object], settings: Mapping[str, object]) -> list[str]:
    """Return the options of `sbatch`: `own`, then the options that the settings ask for."""
    given = {flag: settings[name] for name, flag in _FLAGS.items() if settings.get(name) is not None}
    options = {**own, **given, **_table(settings.get("options"))}
    return [f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items()]


def preparation(settings: Mapping[str, object]) -> list[str]:
    """Return the lines of a batch script that load modules and run the lines `before` the program."""
    before, lines = [f"module load {shlex.quote(each)}" for each in _list(settings.get("modules"))], []
    for line in before + _list(settings.get("before")):
        failed = shlex.quote(f"trainkit: this line of the settings of the cluster failed: {line}")
        # A line of its own, since the line before may be the beginning of an `if`, or end in a comment.
        lines += [line, f"[ $? = 0 ] || {{ echo {failed}; exit 1; }}"]
    return lines


def _option(text: str) -> str:
    name, equals, value = text.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else name


def _list(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else []


def _table(value: object) -> dict[str, object]:
    return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}
