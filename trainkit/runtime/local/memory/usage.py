"""Processes that use shared memory, as reported by the kernel."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from trainkit.resources import describe_bytes
from trainkit.runtime.local.memory import locks
from trainkit.runtime.local.memory.locks import MEMORY_LINK

_DELETED = " (deleted)"  # links to files without a name end with this text
_NOBODY = 0
_WORKER_PREFIX = "tk-"  # process names of workers begin with this text


GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Errors of inspecting a process that has ended, has closed the descriptor, or belongs to another user."""


class OpenSegment(NamedTuple):
    """Descriptor of a segment in some process.

    Attributes:
        path: path by which the segment can be opened.
        locked: True if the open file has a lock, which means that the process uses the segment and does not
            only keep it for reuse.
    """

    pid: int
    inode: int
    path: str
    locked: bool


def all_pids() -> list[int]:
    """Return the pids of all visible processes."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def open_segments(pids: Iterable[int], session: int | None = None) -> Iterator[OpenSegment]:
    """Yield these processes' descriptors of memory segments of `session`; None means any session."""
    for pid, number, target in _descriptors(pids):
        if target.startswith(_link_of(session)):
            path = f"/proc/{pid}/fd/{number}"
            with contextlib.suppress(*GONE):
                with open(f"/proc/{pid}/fdinfo/{number}", "rb") as file:
                    locked = b"\nlock:" in file.read()
                yield OpenSegment(pid, os.stat(path).st_ino, path, locked)


def _link_of(session: int | None) -> str:
    return MEMORY_LINK if session is None else f"{MEMORY_LINK}{session:06x} "


@contextlib.contextmanager
def opened(segment: OpenSegment, session: int) -> Iterator[int]:
    """Yield a new descriptor of a segment while the block runs.

    Meanwhile, the other process may have opened a different file at the descriptor's number. So the file is
    first checked through a descriptor that allows no access. Closing a descriptor that allows access would
    release this process's own POSIX locks on the file.

    Raises:
        FileNotFoundError: the process has closed the descriptor.
    """
    with open(segment.path, "rb", 0, opener=lambda path, _: os.open(path, os.O_PATH | os.O_CLOEXEC)) as seen:
        path = f"/proc/self/fd/{seen.fileno()}"
        if not os.readlink(path).startswith(_link_of(session)):
            raise FileNotFoundError(segment.path)
        with open(path, "r+b", 0) as file:
            yield file.fileno()


def _open_files(pids: Iterable[int], inodes: Container[int]) -> Iterator[tuple[int, int]]:
    """Yield (pid, inode) of each descriptor of these processes for an unnamed disk file in `inodes`."""
    for pid, number, target in _descriptors(pids):
        if target.endswith(_DELETED) and not target.startswith("/memfd:"):
            with contextlib.suppress(*GONE):
                inode = os.stat(f"/proc/{pid}/fd/{number}").st_ino
                if inode in inodes:
                    yield pid, inode


def _descriptors(pids: Iterable[int]) -> Iterator[tuple[int, str, str]]:
    """Yield (pid, descriptor number, target path) for each descriptor of these processes."""
    for pid in pids:
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")
        except GONE:
            continue
        for number in numbers:
            with contextlib.suppress(*GONE):
                yield pid, number, os.readlink(f"/proc/{pid}/fd/{number}")


def mapped_by_readers(pid: int, inodes: Container[int]) -> set[int]:
    """Return the inodes of the segments that a process maps for reading, by private mappings."""
    mapped = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="replace") as file:
        for line in file:  # a line is "7f00bbb78000-7f00bbc78000 rw-p 00000000 00:01 1153    /memfd:..."
            if line.rstrip().endswith(_DELETED):
                fields = line.split(maxsplit=5)
                if fields[1].endswith("p") and int(fields[4]) in inodes:
                    mapped.add(int(fields[4]))
    return mapped


def holders(
    pids: Iterable[int], session: int | None = None, *, on_disk: bool = False
) -> dict[int, tuple[int, set[int]]]:
    """Return the size of every segment in use and the pids of the processes that use the segment, by inode.

    A segment that is not used by any process is in a socket, on its way between two processes.

    Args:
        pids: pids of the processes to search.
        session: number of the session; None means any session.
        on_disk: True for segments on disk, False for segments in memory.
    """
    pids = list(pids)
    sizes = locks.sizes_in_use(session, on_disk=on_disk)
    if not sizes:
        return {}
    if on_disk:
        opened = _open_files(pids, sizes)
    else:
        opened = ((each.pid, each.inode) for each in open_segments(pids, session) if each.locked)
    mapped = ((pid, inode) for pid in pids for inode in mapped_by_readers(pid, sizes))
    users: dict[int, set[int]] = {}
    for pid, inode in itertools.chain(opened, mapped):
        users.setdefault(inode, set()).add(pid)
    return {
        inode: (size, users.get(inode, set()))
        for inode, size in sizes.items()
        # If `session` is None, segments in sockets are left out, because they could belong to any program.
        if session is not None or inode in users
    }


def objects(processes: Mapping[int, str]) -> list[dict[str, Any]]:
    """Return the large objects that these processes use, largest first.

    Args:
        processes: names by pid.

    Returns:
        A row for each object, with object_id (hexadecimal), size_bytes, the pids of the processes that use
            it, and spilled, which is True for an object on disk.
    """
    rows: list[dict[str, Any]] = [
        {"object_id": f"{inode:016x}", "size_bytes": size, "pids": sorted(pids), "spilled": spilled}
        for spilled in (False, True)
        for inode, (size, pids) in holders(processes, on_disk=spilled).items()
    ]
    return sorted(rows, key=lambda row: -row["size_bytes"])


def describe_holders(session: int, driver: int) -> str:
    """Return a text that lists the processes that use a session's shared memory, largest amount first."""
    totals: dict[int, tuple[int, int]] = {}
    for size, pids in holders(all_pids(), session).values():
        for pid in pids or {_NOBODY}:
            held, count = totals.get(pid, (0, 0))
            totals[pid] = held + size, count + 1
    parts = []
    for pid, (size, count) in sorted(totals.items(), key=lambda item: -item[1][0]):
        who = "objects in transit" if pid == _NOBODY else f"{_name(pid, driver)} (pid {pid})"
        parts.append(f"{who} {describe_bytes(size)} in {count} object{'s' * (count != 1)}")
    return ", ".join(parts) or "no process"


def _name(pid: int, driver: int) -> str:
    if pid == driver:
        return "driver"
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().strip().removeprefix(_WORKER_PREFIX)
    except OSError:
        return "a process that has ended"
