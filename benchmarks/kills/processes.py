"""Processes of a killed program, found by a mark in their environment, and what they leave behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kills.plan import DRIVER, GROUP, JOB, LOADER, NODE, TEMPLATE, WORKER, WRITER

MARK = "KILLS_PROGRAM"
"""Environment variable that all processes of a program inherit. Its value differs for each cycle."""
NODE_NAME, TEMPLATE_NAME, WORKER_PREFIX = "trainkit-node", "trainkit-tmpl", "tk-"
WRITER_NAME = "tk-checkpoint-writer"[:15]
ALLOWED = re.compile(r"trainkit-[a-z0-9_]+|torchinductor_.*|cc\w{6}\..*|[a-z0-9_]{8}")
"""Names in the temporary folder that may stay: logs of sessions, torch's caches, a compiler's files, and the
file of eight characters with which `tempfile.gettempdir` tries whether it can write."""


@dataclass(frozen=True)
class Process:
    """A process that runs.

    Attributes:
        pid: its pid.
        name: its name, as `ps` shows it.
        parent: pid of its parent.
    """

    pid: int
    name: str
    parent: int


def marked(mark: str) -> dict[int, Process]:
    """Return the running processes of the program with this mark, by pid."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            # A process that ends meanwhile, or belongs to another user, is not one of the program's.
            with contextlib.suppress(OSError):
                if wanted in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    name, _, rest = Path(entry.path, "stat").read_text().partition(" (")[2].rpartition(") ")
                    state, parent = rest.split()[:2]
                    if state != "Z":
                        found[int(entry.name)] = Process(int(entry.name), name, int(parent))
    return found


def candidates(target: str, driver: int, there: Mapping[int, Process]) -> list[int]:
    """Return the pids that a fault on this target may hit, sorted; for a whole job all of its pids.

    Args:
        target: one of the targets of `plan` that are processes.
        driver: pid of the driver.
        there: the program's processes.
    """
    workers = {pid for pid, each in there.items() if each.name.startswith(WORKER_PREFIX)}
    loaders = {pid for pid in workers if there[pid].parent in workers}
    chosen: Mapping[str, Iterable[int]] = {
        DRIVER: there.keys() & {driver},
        GROUP: there.keys() & {driver},
        JOB: there.keys(),
        NODE: {pid for pid, each in there.items() if each.name == NODE_NAME},
        TEMPLATE: {pid for pid, each in there.items() if each.name == TEMPLATE_NAME},
        WORKER: workers - loaders,
        WRITER: {pid for pid, each in there.items() if each.name == WRITER_NAME},
        LOADER: loaders | {pid for pid, each in there.items() if each.parent in workers},
    }
    return sorted(chosen[target])


def send(target: str, pids: Sequence[int], number: signal.Signals) -> bool:
    """Send a signal to processes, or to the whole group of the process; return False if none was there."""
    reached = False
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, number) if target == GROUP else os.kill(pid, number)
            reached = True
    return reached


def segments() -> set[str]:
    """Return the names of all segments of shared memory."""
    return set(os.listdir("/dev/shm"))


def leftovers(
    folder: Path, mark: str, pids: Iterable[int], spared: Iterable[str], before: Set[str] = frozenset()
) -> list[str]:
    """Return what a program has left behind.

    Args:
        folder: temporary folder that was the program's own.
        mark: mark of the program.
        pids: all pids that the program had.
        spared: prefixes of names of processes and files that may stay.
        before: segments that are older than the program.
    """
    may_stay = tuple(spared)
    found = [f"process {each.name}" for each in marked(mark).values() if not each.name.startswith(may_stay)]
    files = [path.name for path in folder.iterdir() if not ALLOWED.fullmatch(path.name)]
    found += [f"file {name}" for name in files if not name.startswith(may_stay)]
    own = {str(pid) for pid in pids}
    # Segments, such as torch_1234_567, have the pid of their maker between separators.
    new = segments() - before
    found += [f"segment {name}" for name in new if own & set(re.split(r"[^0-9a-zA-Z]", name))]
    if not may_stay:
        sockets = Path("/proc/net/unix").read_text().splitlines()
        found += [f"socket {line.split()[-1]}" for line in sockets if str(folder) in line]
    return sorted(found)
