"""Commands `trainkit jobs`, `logs` and `cancel`, and the part of `trainkit why` for jobs."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from trainkit.cli import HELP, Command
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.slurm.jobs import Job, job_named, states_of, submitted
from trainkit.plugins.slurm.reasons import Fields, is_over, state_words

_POLL_S, _POLLS_OF_STATE = 0.5, 4
_MOST_NAMES = 5


class Jobs(Command):
    """Command `trainkit jobs`."""

    help = HELP["jobs"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--all", action="store_true", help="show jobs that have ended, too")

    def run(self, arguments: argparse.Namespace) -> int:
        states = states_of(submitted())
        shown = [job for job in states if arguments.all or not _are_over(states[job])]
        for job in shown:
            lines = _lines(job, states[job])
            sys.stdout.write("\n".join([f"{job}  {job.name}  {lines[0]}", *lines[1:], f"    {job.folder}\n"]))
        if not shown:
            over = f"; {len(states)} have ended: trainkit jobs --all" if states else ""
            sys.stdout.write(f"no job waits or runs{over}\n")
        return 0


def _are_over(tasks: Mapping[str, Fields]) -> bool:
    return all(map(is_over, tasks.values()))


def _lines(job: Job, tasks: Mapping[str, Fields]) -> list[str]:
    """Return the state of a job in words; several lines for an array whose tasks differ."""
    by_words: dict[str, list[str]] = {}
    for task, fields in sorted(tasks.items(), key=lambda each: int(each[0] or 0)):
        by_words.setdefault(state_words(fields), []).append(task)
    if len(by_words) == 1:
        return list(by_words)
    lines = [f"is an array of {len(tasks)} tasks"]
    for words, numbers in by_words.items():
        more = f" and {len(numbers) - _MOST_NAMES} more" if len(numbers) > _MOST_NAMES else ""
        lines.append(f"    {', '.join(f'{job.id}_{each}' for each in numbers[:_MOST_NAMES])}{more}: {words}")
    return lines


class Logs(Command):
    """Command `trainkit logs`."""

    help = HELP["logs"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("job", help="id or name of a job; ID_TASK for a task of an array")
        parser.add_argument("-f", "--follow", action="store_true", help="continue until the job has ended")

    def run(self, arguments: argparse.Namespace) -> int:
        job = job_named(arguments.job)
        offsets: dict[Path, int] = {}
        shown, polls, over = "", 0, False
        while not over:
            if polls % _POLLS_OF_STATE == 0:
                try:
                    tasks = states_of([job])[job]
                    words, over = "\n".join(_lines(job, tasks)), _are_over(tasks)
                except TrainkitError as error:
                    if not polls:
                        raise
                    words = f"is in a state that Slurm does not tell: {error}"
            _print_news(job, offsets)  # after the state, to have the last lines of a job that has ended
            if not arguments.follow:
                break
            if words != shown and not over:
                sys.stdout.write(f"trainkit: job {job} {words}\n")
                sys.stdout.flush()
                shown = words
            SYSTEM.sleep(0 if over else _POLL_S)
            polls += 1
        if not offsets or arguments.follow:
            sys.stdout.write(f"trainkit: job {job} {words}\n")
        return 0


def _print_news(job: Job, offsets: dict[Path, int]) -> None:
    """Print what the output files have more than at the last call; several files have a line before each."""
    outputs = job.outputs()
    for path in outputs:
        offset = offsets.setdefault(path, 0)
        if path.stat().st_size == offset:
            continue
        with path.open("rb") as file:
            file.seek(offset)
            if len(outputs) > 1:
                sys.stdout.write(f"==> {path.name} <==\n")
            sys.stdout.flush()
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            offsets[path] = file.tell()


class Cancel(Command):
    """Command `trainkit cancel`."""

    help = HELP["cancel"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("jobs", nargs="+", metavar="JOB", help="ids or names of jobs, or ID_TASK")

    def run(self, arguments: argparse.Namespace) -> int:
        for job, tasks in states_of([job_named(word) for word in arguments.jobs]).items():
            if _are_over(tasks):
                sys.stdout.write(f"job {job} has ended already: see `trainkit why {job}`\n")
            else:
                job.cancel()
                sys.stdout.write(f"job {job} was cancelled: its programs get SIGTERM, save and end\n")
        return 0


def explain(wanted: str) -> list[str]:
    """Return lines that explain the state of a job; empty if there is no such job."""
    try:
        job = job_named(wanted)
    except ConfigError:
        return []  # `trainkit why` says that nothing has this name
    place = [f"  folder: {job.folder}", f"  command: {job.command}"]
    try:
        tasks = states_of([job])[job]
    except TrainkitError as error:
        return [f"job {job} ({job.name}) is in a state that Slurm does not tell: {error}", *place]
    first, *others = _lines(job, tasks)
    lines = [f"job {job} ({job.name}) {first}", *others, *place]
    if _are_over(tasks) and any(fields["JobState"] != "COMPLETED" for fields in tasks.values()):
        lines += [f"  | {line}" for line in job.last_output().splitlines()]
    return lines
