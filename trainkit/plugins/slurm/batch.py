"""Batch script of a job: it checks the environment, runs the program, and requeues the job at its limit."""

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

ATTEMPTS = "attempts.txt"
"""File in a job's folder: a line "start NODE UNIX_TIME" or "end CODE UNIX_TIME" for each attempt."""

PREEMPTED = 138
"""Exit code of a program that SIGUSR1 has ended (128 and the number of the signal)."""

_SCRIPT = """\
cd {folder} || exit 1
{before}
export {variables}
node=$(hostname) attempts={attempts}${{SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}}
echo "start ${{SLURMD_NODENAME:-$node}} $(date +%s)" >> "$attempts"
if ! problem=$({python} -c "import trainkit" 2>&1); then
    echo "trainkit: {python_name} on $node can't import trainkit: name another Python with --python, or load"
    echo "modules in the settings of the cluster. Python says:"
    echo "$problem"
    echo "end 1 $(date +%s)" >> "$attempts"
    exit 1
fi

# Before the time limit, Slurm sends SIGUSR1 to this shell alone. A cancel sends SIGTERM to all processes.
{command} &
program=$!
trap 'kill -USR1 $program 2>/dev/null' USR1
trap : TERM
wait $program
code=$?
while kill -0 $program 2>/dev/null; do wait $program; code=$?; done
echo "end $code $(date +%s)" >> "$attempts"
if [ $code -eq {preempted} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_requeues} ]; then
    echo "trainkit: the time limit is near: the job is submitted again, and resumes"
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
exit $code
"""


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

    def text(self) -> str:
        """Return the batch script."""
        settings = self.settings
        notice_s, python = int(str(settings["signal_before"])), str(settings["python"])
        output = "output-%a.txt" if settings.get("array") else "output.txt"
        options: dict[str, object] = {
            "job-name": self.name,
            "chdir": self.working_folder,
            "output": self.folder / output,
            "open-mode": "append",
            "requeue": None,
            "ntasks-per-node": 1,
            "signal": f"B:USR1@{notice_s}",
            **{flag: settings[name] for name, flag in _FLAGS.items() if settings.get(name) is not None},
            **_table(settings.get("options")),
        }
        before = [f"module load {shlex.quote(each)}" for each in _list(settings.get("modules"))]
        variables = {
            PREEMPT_SIGNALS: "USR1",
            STOP_GRACE_S: f"${{{STOP_GRACE_S}:-{notice_s // 2}}}",
            "PYTHONUNBUFFERED": "1",
        }
        if self.paths:
            variables["PYTHONPATH"] = f'{shlex.quote(":".join(self.paths))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
        body = _SCRIPT.format(
            folder=shlex.quote(str(self.working_folder)),
            before="\n".join([*before, *_list(settings.get("before"))]),
            variables=" ".join(f"{name}={value}" for name, value in variables.items()),
            attempts=shlex.quote(str(self.folder / ATTEMPTS)),
            python=shlex.quote(python),
            python_name=python.replace('"', ""),
            command=shlex.join(self.command).replace("'$SLURM_JOB_NUM_NODES'", '"$SLURM_JOB_NUM_NODES"'),
            preempted=PREEMPTED,
            max_requeues=settings["max_requeues"],
        )
        return "\n".join(["#!/bin/bash", *(_line(name, value) for name, value in options.items()), body])


def _line(name: str, value: object) -> str:
    return f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={shlex.quote(str(value))}"


def _list(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else []


def _table(value: object) -> dict[str, object]:
    return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}
