"""Commands `trainkit jobs`, `logs` and `cancel`, and the part of `trainkit why` for jobs."""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from trainkit.cli import HELP, Command
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.slurm.jobs import call, job_named, states_of, submitted
from trainkit.plugins.slurm.reasons import is_over, state_words

_POLL_S = 0.5


class Jobs(Command):
    """Command `trainkit jobs`."""

    help = HELP["jobs"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="show jobs that have ended, too")

    def run(self, arguments: argparse.Namespace) -> int:
        jobs = submitted()
        states = states_of(jobs)
        shown = [job for job in jobs if arguments.all or not is_over(states[job.id])]
        for job in shown:
            sys.stdout.write(f"{job.id}  {job.name}  {state_words(states[job.id])}\n    {job.folder}\n")
        if not shown:
            over = f"; {len(jobs)} have ended: trainkit jobs --all" if jobs else ""
            sys.stdout.write(f"no job waits or runs{over}\n")
        return 0


class Logs(Command):
    """Command `trainkit logs`."""

    help = HELP["logs"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("job", help="id or name of a job")
        parser.add_argument("-f", "--follow", action="store_true", help="continue until the job has ended")

    def run(self, arguments: argparse.Namespace) -> int:
        job = job_named(arguments.job)
        offsets: dict[Path, int] = {}
        while True:
            over = not arguments.follow or is_over(states_of([job])[job.id])  # before the last look
            for path in job.outputs():
                offsets[path] = _print_from(path, offsets.get(path, 0))
            if over:
                break
            SYSTEM.sleep(_POLL_S)
        if not offsets or arguments.follow:
            sys.stdout.write(f"trainkit: job {job.id} {state_words(states_of([job])[job.id])}\n")
        return 0


def _print_from(path: Path, offset: int) -> int:
    """Print a file from an offset; return the offset of its end."""
    with path.open("rb") as file:
        file.seek(offset)
        sys.stdout.write(file.read().decode(errors="replace"))
        sys.stdout.flush()
        return file.tell()


class Cancel(Command):
    """Command `trainkit cancel`."""

    help = HELP["cancel"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("jobs", nargs="+", metavar="JOB", help="ids or names of jobs")

    def run(self, arguments: argparse.Namespace) -> int:
        for job in [job_named(word) for word in arguments.jobs]:
            call("scancel", job.id)
            (job.folder / "cancelled.txt").write_text(f"{getpass.getuser()}\n")
            sys.stdout.write(f"job {job.id} was cancelled: its programs get SIGTERM, save and end\n")
        return 0


def explain(wanted: str) -> list[str]:
    """Return lines that explain the state of a job; empty if there is no such job."""
    try:
        job = job_named(wanted)
        fields = states_of([job])[job.id]
    except (ConfigError, TrainkitError):
        return []  # `trainkit why` says that nothing has this name
    lines = [
        f"job {job.id} ({job.name}) {state_words(fields)}",
        f"  folder: {job.folder}",
        f"  command: {job.command}",
    ]
    if is_over(fields) and fields.get("JobState") != "COMPLETED":
        lines += [f"  | {line}" for line in job.last_output().splitlines()]
    return lines
