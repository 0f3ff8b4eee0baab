"""Processes of the operating system: parents, descendants, memory, and marks of a session."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from trainkit.errors import ConfigError
from trainkit.settings import ELSEWHERE, SESSION_MARK

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_PF_EXITING = 4
"""Among a process's flags: set before it closes its descriptors."""

_MADV_COLLAPSE = 25
_HUGE_BYTES = 2 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Have orphans among this process's descendants become its children, instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when the process `parent`, which forked this one, ends; at once if it has already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def set_name(name: str) -> None:
    """Show `name` (its first 15 bytes) in `ps` and `top`."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def use_huge_pages() -> None:
    """Move this process's memory to huge pages, so that a fork copies a page table hundreds of times smaller.

    Forking a process that has torch takes 4 ms without and 1 ms with it. What the kernel can't move (too
    old, no huge page free) stays where it is: nothing depends on it.
    """
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
    for span, access, _, _, _, *name in mappings:
        if access == "rw-p" and (not name or name[0] == "[heap]"):
            low, high = (int(bound, 16) for bound in span.split("-"))
            start, end = -(-low // _HUGE_BYTES) * _HUGE_BYTES, high // _HUGE_BYTES * _HUGE_BYTES
            if start < end:
                _libc.madvise(start, end - start, _MADV_COLLAPSE)


def remove_folder(folder: Path, *, linked: bool = True) -> None:
    """Remove a session's folder; nothing if it is gone already.

    Args:
        folder: of the session.
        linked: also remove the folders it has links to, as the program that uses them is gone.
    """
    for link in (folder / ELSEWHERE).glob("*") if linked else ():
        shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def thread_count() -> int:
    """Return the number of threads of this process, also of those that Python does not know."""
    return len(os.listdir("/proc/self/task"))


_spare: list[int] = []


def keep_spare() -> None:
    """Keep a descriptor back, so that this process can tell its descendants also when no other is left."""
    if not _spare:
        _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _parents() -> list[tuple[int, int]]:
    """Yield (pid, parent's pid) of every process that can be seen."""
    found = []
    has_spare = bool(_spare)
    while _spare:
        os.close(_spare.pop())
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it ended meanwhile
                found.append((int(entry), int(_stat(int(entry))[1])))
    if has_spare:
        keep_spare()
    return found


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat, from the state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name in parentheses may hold anything, so count from its end.
        return file.read().rpartition(b")")[2].split()


def is_ending(pid: int) -> bool:
    """Return whether a process has ended, or has begun to: it may have closed its descriptors."""
    try:
        return bool(int(_stat(pid)[6]) & _PF_EXITING)
    except OSError:
        return True


def children(of: int) -> list[int]:
    """Return the pids of the direct children of a process."""
    return [pid for pid, parent in _parents() if parent == of]


def descendants(of: int) -> list[int]:
    """Return the pids of all descendants of a process, parents before their children."""
    return families([of])[of][1:]


def families(pids: Iterable[int]) -> dict[int, list[int]]:
    """Return for each process its own pid and those of all its descendants, parents before children."""
    by_parent: dict[int, list[int]] = {}
    for pid, parent in _parents():
        by_parent.setdefault(parent, []).append(pid)
    found = {pid: [pid] for pid in pids}
    for family in found.values():
        for pid in family:  # grows while it is read
            family.extend(by_parent.get(pid, ()))
    return found


def own_pages_bytes(pid: int) -> int:
    """Return memory and swap of a process that is no file's, shared pages in full; 0 if it is gone."""
    return 1024 * _sum_of_numbers(f"/proc/{pid}/status", (b"RssAnon:", b"VmSwap:"))


def own_share_bytes(pid: int) -> int:
    """Return the proportional set size: a page shared by n processes counts as one n-th."""
    return 1024 * _sum_of_numbers(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"SwapPss:"))


def parent(pid: int) -> int:
    """Return the pid of a process's parent; 0 if it is gone."""
    return _sum_of_numbers(f"/proc/{pid}/status", (b"PPid:",))


def command_line(pid: int) -> bytes:
    """Return the command line of a process, which its forks share; empty if it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _sum_of_numbers(path: str, names: tuple[bytes, ...]) -> int:
    try:
        with open(path, "rb") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith(names))
    except OSError:  # it ended
        return 0


def exists(pid: int) -> bool:
    """Return True if a process of this number exists and has not ended."""
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except OSError:
        return False


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it is gone or not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = file.read().split(b"\0")
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in items if item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def marked(mark: str) -> list[int]:
    """Return the pids of the processes that carry a session's mark, this one not included."""
    own = os.getpid()
    return [pid for pid, _ in _parents() if pid != own and environment(pid).get(SESSION_MARK) == mark]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; without effect if the process is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def working_folder() -> str:
    """Return the folder that this process runs in.

    Raises:
        ConfigError: that folder was deleted.
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current working directory was deleted; change to one that exists") from None


def take_output(fd: int) -> None:
    """Make `fd` this process's standard output and error."""
    for standard in (1, 2):
        os.dup2(fd, standard)


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory; 0 where it doesn't tell."""
    try:
        with open("/proc/vmstat") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0
