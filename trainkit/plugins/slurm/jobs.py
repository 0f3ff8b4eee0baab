"""Jobs that were submitted: their records in the jobs' folders, and what Slurm says about them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainkit import settings
from trainkit.errors import ConfigError, TrainkitError, did_you_mean
from trainkit.plugins.slurm.batch import ATTEMPTS
from trainkit.plugins.slurm.reasons import corrected

RECORD = "job.json"
_LAST_LINES, _TAIL_BYTES = 10, 10_000
_COLUMNS = {"JobState": "%T", "Reason": "%r", "NodeList": "%N", "TimeLimit": "%l", "TimeLeft": "%L"}


@dataclass(frozen=True)
class Job:
    """Job that `trainkit submit` has submitted.

    Attributes:
        id: Slurm's id.
        name: name of the job.
        folder: folder of the job.
        command: command line of the program.
    """

    id: str
    name: str
    folder: Path
    command: str

    def last_output(self) -> str:
        """Return the last lines of the job's output."""
        lines = []
        for path in self.outputs():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                lines += file.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-_LAST_LINES:])

    def outputs(self) -> list[Path]:
        """Return the files with the job's output: several for an array."""
        return sorted(self.folder.glob("output*.txt"))


def jobs_folder() -> Path:
    """Return the folder that contains the folders of all jobs."""
    return settings.results_dir().absolute() / "jobs"


def call(*words: str) -> str:
    """Run a command of Slurm and return its output.

    Raises:
        ConfigError: the command is missing on this machine; TrainkitError: it failed, with Slurm's words.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError(
            f"{words[0]} is missing: run this command on a machine of the cluster, such as its login node"
        ) from None
    if done.returncode:
        raise TrainkitError(f"{words[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def submitted() -> list[Job]:
    """Return the jobs that were submitted, the latest last."""
    found = []
    for path in jobs_folder().glob(f"*/{RECORD}"):
        record = json.loads(path.read_text())
        found.append((record["time"], Job(record["id"], record["name"], path.parent, record["command"])))
    return [job for _, job in sorted(found, key=lambda each: each[0])]


def job_named(wanted: str) -> Job:
    """Return the job with this id or name; of several with this name, the latest.

    Raises:
        ConfigError: no job has this id or name.
    """
    jobs = submitted()
    for job in reversed(jobs):
        if wanted in (job.id, job.name, job.folder.name):
            return job
    hint = did_you_mean(wanted, [name for job in jobs for name in (job.id, job.name)])
    raise ConfigError(f"no job {wanted!r} in {jobs_folder()}.{hint} `trainkit jobs` lists your jobs")


def states_of(jobs: Sequence[Job]) -> dict[str, dict[str, str]]:
    """Return what Slurm says about jobs, by id.

    Jobs that the controller has forgotten are looked up in Slurm's database, where there is one, and in the
    record that the batch script wrote.
    """
    known = _queued()
    forgotten = [job for job in jobs if job.id not in known]
    known |= _accounted([job.id for job in forgotten])
    return {job.id: corrected(known.get(job.id) or _recorded(job), job.last_output()) for job in jobs}


def _queued() -> dict[str, dict[str, str]]:
    """Return the fields of your jobs that the controller still knows, of an array by its first task."""
    columns = "|".join(["%F", *_COLUMNS.values()])
    lines = call("squeue", "--me", "--states=all", "--noheader", f"--format={columns}").splitlines()
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        job_id, *values = line.split("|")
        found.setdefault(job_id, dict(zip(_COLUMNS, values, strict=True)))
    for job_id, fields in found.items():
        if fields["JobState"] not in ("PENDING", "RUNNING"):
            found[job_id] = fields | _details(job_id)
    return found


def _details(job_id: str) -> dict[str, str]:
    text = call("scontrol", "show", "job", "--oneliner", job_id)
    fields = dict(word.split("=", 1) for word in text.splitlines()[0].split(" ") if "=" in word)
    return {
        name: fields[name] for name in ("JobState", "ExitCode", "Restarts", "TimeLimit") if name in fields
    }


def _accounted(ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the fields of jobs in Slurm's database; empty where a cluster has no database."""
    if not ids or shutil.which("sacct") is None:
        return {}
    words = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State,ExitCode,Timelimit"]
    done = subprocess.run([*words, f"--jobs={','.join(ids)}"], capture_output=True, text=True, check=False)
    found = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        job_id, state, code, limit = line.split("|")
        state, _, by = state.partition(" by ")
        found[job_id] = {"JobState": state, "ExitCode": code, "TimeLimit": limit, "CancelledBy": _user(by)}
    return found


def _user(uid: str) -> str:
    try:
        return pwd.getpwuid(int(uid)).pw_name if uid else ""
    except (KeyError, ValueError):
        return uid


def _recorded(job: Job) -> dict[str, str]:
    """Return the fields that the job's own record tells."""
    cancelled = job.folder / "cancelled.txt"
    if cancelled.exists():
        return {"JobState": "CANCELLED", "CancelledBy": cancelled.read_text().strip()}
    last = ""
    for path in sorted(job.folder.glob(f"{ATTEMPTS}*"), key=os.path.getmtime):
        last = path.read_text().splitlines()[-1]
    kind, *values = last.split() or ["", ""]
    if kind == "end":
        return {"JobState": "COMPLETED" if values[0] == "0" else "FAILED", "ExitCode": f"{values[0]}:0"}
    return {"JobState": "UNKNOWN"}
