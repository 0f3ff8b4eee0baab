"""Batch script of a job: it checks the environment, runs the program, and requeues the job at its limit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainkit.settings import JOB_END_TIME, PREEMPT_SIGNALS, STOP_GRACE_S

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

PREEMPTED = "138 | 143"
"""Exit codes of a program that ends early, by SIGUSR1 or `stop_before_s` (128 and the number of a signal)."""

_SCRIPT = """\
cd {folder} || exit 1
{before}
export {variables}
node=$(hostname) attempts={attempts}${{SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}} program= again=
# A job that has ended well may have been submitted again at its last moment.
if tail -n 1 "$attempts" 2>/dev/null | grep -q '^end 0 '; then exit 0; fi
echo "start ${{SLURMD_NODENAME:-$node}} $(date +%s)" >> "$attempts"
if ! problem=$({python} -c "import trainkit" 2>&1); then
    echo "trainkit: {python_name} on $node can't import trainkit: name another Python with --python, or load"
    echo "modules in the settings of the cluster. Python says:"
    echo "$problem"
    echo "end 1 $(date +%s)" >> "$attempts"
    exit 1
fi
slurm_says() {{
    scontrol show job --oneliner "$SLURM_JOB_ID" | grep -o " $1=[^ ]*" | head -n 1 | cut -d= -f2-
}}
submit_again() {{  # unless somebody has cancelled the job, or Slurm itself submits it again
    [ "$(slurm_says JobState)" = RUNNING ] || [ "$(slurm_says Reason)" = TimeLimit ] || return
    [ -z "$again" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {max_requeues} ] || return
    echo "trainkit: the time is over: the job is submitted again, and resumes"
    scontrol requeue "$SLURM_JOB_ID" && again=1
}}
# Older releases of Slurm do not set SLURM_JOB_END_TIME.
end=$(date -d "$(slurm_says EndTime)" +%s 2>/dev/null) && export {end_time}="$end"

# Before the time limit, Slurm sends SIGUSR1 to this shell alone. At the limit and at a cancel, it sends
# SIGTERM to all processes, and SIGKILL soon after.
trap '[ -z "$program" ] || kill -USR1 $program 2>/dev/null' USR1
trap '[ "$(slurm_says Reason)" != TimeLimit ] || submit_again' TERM
{command} &
program=$!
wait $program
code=$?
while kill -0 $program 2>/dev/null; do wait $program; code=$?; done
echo "end $code $(date +%s)" >> "$attempts"
case $code in {preempted}) submit_again ;; esac
[ -z "$again" ] || exit 0
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
        before += _list(settings.get("before"))
        variables = {
            PREEMPT_SIGNALS: "USR1",
            STOP_GRACE_S: f"${{{STOP_GRACE_S}:-{notice_s // 2}}}",
            "PYTHONUNBUFFERED": "1",
        }
        if self.paths:
            variables["PYTHONPATH"] = f'{shlex.quote(":".join(self.paths))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
        body = _SCRIPT.format(
            folder=shlex.quote(str(self.working_folder)),
            before="\n".join(map(_or_end, before)),
            variables=" ".join(f"{name}={value}" for name, value in variables.items()),
            attempts=shlex.quote(str(self.folder / ATTEMPTS)),
            python=shlex.quote(python),
            python_name=python.replace('"', ""),
            command=shlex.join(self.command).replace("'$SLURM_JOB_NUM_NODES'", '"$SLURM_JOB_NUM_NODES"'),
            preempted=PREEMPTED,
            end_time=JOB_END_TIME,
            max_requeues=settings["max_requeues"],
        )
        return "\n".join(["#!/bin/bash", *(_line(name, value) for name, value in options.items()), body])


def _line(name: str, value: object) -> str:
    return f"#SBATCH --{name}" if value is None else f"#SBATCH --{name}={shlex.quote(str(value))}"


def _or_end(line: str) -> str:
    """Return a line of the script that ends the job if it fails."""
    words = shlex.quote(f"trainkit: this line of the settings of the cluster failed: {line}")
    return f"{line} || {{ echo {words}; exit 1; }}"


def _list(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, (list, tuple)) else []


def _table(value: object) -> dict[str, object]:
    return {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {}
