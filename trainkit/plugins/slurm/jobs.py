"""Jobs that were submitted: their records in the jobs' folders, and what Slurm says about them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trainkit import settings
from trainkit.errors import ConfigError, TrainkitError, did_you_mean
from trainkit.plugins.slurm.batch import ATTEMPTS
from trainkit.plugins.slurm.reasons import Fields, corrected

RECORD = "job.json"
_CANCELLED = "cancelled.txt"
_LAST_LINES, _TAIL_BYTES = 10, 10_000
_COLUMNS = {"JobState": "%T", "Reason": "%r", "NodeList": "%N", "EndTime": "%e", "TimeLimit": "%l"}

_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_CONF_SERVER")
"""Variables of Slurm that name the cluster, not a job."""


@dataclass(frozen=True)
class Job:
    """Job that `trainkit submit` has submitted.

    Attributes:
        id: Slurm's id.
        name: name of the job.
        folder: folder of the job.
        command: command line of the program.
        task: number of the array's task that is meant; "" for all tasks.
    """

    id: str
    name: str
    folder: Path
    command: str
    task: str = ""

    def __str__(self) -> str:
        return f"{self.id}_{self.task}" if self.task else self.id

    def last_output(self) -> str:
        """Return the last lines of the job's output."""
        lines = []
        for path in self.outputs():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                lines += file.read().decode(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join(lines[-_LAST_LINES:])

    def outputs(self) -> list[Path]:
        """Return the files with the job's output: several for an array."""
        found = self.folder.glob(f"output-{self.task}.txt" if self.task else "output*.txt")
        return sorted(found, key=lambda path: (len(path.name), path.name))

    def cancel(self) -> None:
        """Cancel the job, and record the name of this user."""
        call("scancel", str(self))
        self._own(_CANCELLED).write_text(f"{user_name()}\n")

    def of(self, task: str) -> Job:
        """Return the job that means only this task of its array."""
        return replace(self, task=task)

    def begun(self) -> list[str]:
        """Return the numbers of the tasks that have begun; [""] for a job that is no array."""
        found = [path.suffix[1:] for path in self.folder.glob(f"{ATTEMPTS}.*")]
        return [self.task] if self.task else sorted(found, key=int) or [""]

    def recorded(self) -> dict[str, str]:
        """Return the fields that the records in the job's folder tell."""
        path = self._own(ATTEMPTS)
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        fields = {"JobState": "UNKNOWN", "Attempts": str(sum(line[:1] == ["start"] for line in lines))}
        if lines and len(lines[-1]) > 1 and lines[-1][0] == "end":
            code = lines[-1][1]
            fields |= {"JobState": "COMPLETED" if code == "0" else "FAILED", "ExitCode": f"{code}:0"}
        for cancelled in (self.folder / _CANCELLED, self._own(_CANCELLED)):
            if cancelled.exists() and fields["JobState"] != "COMPLETED":
                fields |= {"JobState": "CANCELLED", "CancelledBy": cancelled.read_text().strip()}
        return fields

    def _own(self, name: str) -> Path:
        return self.folder / (f"{name}.{self.task}" if self.task else name)


def jobs_folder() -> Path:
    """Return the folder that contains the folders of all jobs."""
    return settings.results_dir().absolute() / "jobs"


def user_name() -> str:
    """Return the name of this process's user, whatever the environment says."""
    return _user(str(os.getuid()))


def call(*words: str) -> str:
    """Run a command of Slurm and return its output. Warnings of the command are shown.

    Raises:
        ConfigError: the command is missing on this machine; TrainkitError: it failed, with Slurm's words.
    """
    # These variables hide jobs. Inside of a job, the job's own variables would get into a new job.
    hidden = ("SQUEUE_", "SACCT_", "SLURM_")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    variables |= {name: value for name in _KEPT if (value := os.environ.get(name))}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, env=variables, errors="replace"
        )
    except FileNotFoundError:
        raise ConfigError(
            f"{words[0]} is missing: run this command on a machine of the cluster, such as its login node"
        ) from None
    if done.returncode:
        raise TrainkitError(f"{words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    sys.stderr.write(done.stderr)
    return done.stdout.strip()


def submitted() -> list[Job]:
    """Return your jobs that were submitted, the latest last."""
    found = []
    for path in jobs_folder().glob("*"):
        try:
            record = json.loads((path / RECORD).read_text())
            if record["user"] == user_name():
                found.append((record["time"], Job(record["id"], record["name"], path, record["command"])))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # a job that is being submitted, or the job of another user
        except (ValueError, KeyError, TypeError) as error:
            sys.stderr.write(f"trainkit: {path / RECORD} is damaged, and is ignored: {error!r}\n")
    return [job for _, job in sorted(found, key=lambda each: each[0])]


def job_named(wanted: str) -> Job:
    """Return the job with this id or name, or a task of an array, as 12_3; of several jobs, the latest.

    Raises:
        ConfigError: no job has this id or name.
    """
    jobs = submitted()
    for job in reversed(jobs):
        if wanted in (job.id, job.name, job.folder.name):
            return job
    job_id, _, task = wanted.rpartition("_")
    for job in reversed(jobs):
        if job_id in (job.id, job.name) and task.isdecimal():
            return job.of(task)
    hint = did_you_mean(wanted, [name for job in jobs for name in (job.id, job.name)])
    raise ConfigError(f"no job {wanted!r} in {jobs_folder()}.{hint} `trainkit jobs` lists your jobs")


def states_of(jobs: Sequence[Job]) -> dict[Job, dict[str, dict[str, str]]]:
    """Return what Slurm says about the tasks of jobs, by the tasks' numbers; "" for a job that is no array.

    Jobs that the controller has forgotten are looked up in Slurm's database, where there is one, and in the
    records of the job itself.
    """
    known = _queued(jobs)
    known |= _accounted([job for job in jobs if job not in known])
    found: dict[Job, dict[str, dict[str, str]]] = {}
    for job in jobs:
        # The controller forgets each task of an array by itself, while others still run.
        forgotten: dict[str, dict[str, str]] = {task: {} for task in job.begun() if task or job not in known}
        tasks = forgotten | known.get(job, {})
        found[job] = {task: _with_record(job.of(task), fields) for task, fields in tasks.items()}
    return found


def _with_record(job: Job, fields: Fields) -> dict[str, str]:
    """Return the fields of a job or task, with what its own records tell."""
    merged = {**job.recorded(), **fields}
    if merged["JobState"] == "FAILED":
        if "ExitCode" not in merged:  # the batch script was killed
            text = call("scontrol", "show", "job", "--oneliner", f"{job}")
            merged["ExitCode"] = text.partition(" ExitCode=")[2].partition(" ")[0]
        return corrected(merged, job.last_output())
    return merged


def _queued(jobs: Sequence[Job]) -> dict[Job, dict[str, dict[str, str]]]:
    """Return the fields of the jobs that the controller still knows, by task."""
    columns = "|".join(["%F|%K", *_COLUMNS.values(), "%o"])
    lines = call(
        "squeue", "--me", "--array", "--states=all", "--noheader", f"--format={columns}"
    ).splitlines()
    found: dict[Job, dict[str, dict[str, str]]] = {}
    by_id = {job.id: job for job in jobs}
    for line in lines:
        job_id, task, *values, script = line.split("|", len(_COLUMNS) + 2)
        job, task = by_id.get(job_id), task if task.isdecimal() else ""
        # A home may be shared by several clusters, and a cluster may count from the beginning again.
        if job is not None and job.folder.name in script and job.task in ("", task):
            found.setdefault(job, {})[task] = dict(zip(_COLUMNS, values, strict=True))
    return found


def _accounted(jobs: Sequence[Job]) -> dict[Job, dict[str, dict[str, str]]]:
    """Return the fields of jobs in Slurm's database, by task; empty where a cluster has no database."""
    if not jobs or shutil.which("sacct") is None:
        return {}
    words = ["sacct", "--allocations", "--noheader", "--parsable2"]
    words += ["--format=State,ExitCode,Timelimit,JobID,JobName", f"--jobs={','.join(map(str, jobs))}"]
    try:
        lines = call(*words).splitlines()
    except TrainkitError as error:
        if "storage is disabled" in str(error):
            return {}
        raise
    found: dict[Job, dict[str, dict[str, str]]] = {}
    for line in lines:
        state, code, limit, job_id, name = line.split("|", 4)
        job_id, _, task = job_id.partition("_")
        if task.startswith("["):
            continue  # tasks that have never begun
        state, _, by = state.partition(" by ")
        fields = {"JobState": state, "ExitCode": code, "TimeLimit": limit}
        fields |= {"CancelledBy": _user(by)} if by else {}
        for job in jobs:
            if (job.id, job.name) == (job_id, name) and job.task in ("", task):
                found.setdefault(job, {})[task] = fields
    return found


def _user(uid: str) -> str:
    try:
        return pwd.getpwuid(int(uid)).pw_name
    except (KeyError, ValueError):
        return uid
