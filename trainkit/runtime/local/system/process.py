"""Processes of the operating system: parents, descendants, memory, and marks of a session."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import os
import select
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.settings import ELSEWHERE, SESSION_MARK

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_F_SETSIG = 10

_PF_EXITING = 4
"""Among a process's flags: set before it closes its descriptors."""

_MADV_COLLAPSE = 25
_HUGE_BYTES = 2 << 20
_LOOK_S = 0.002
_FLUSH_FAILED = 120

STACKS = signal.SIGRTMAX - 5
"""Signal at which a worker writes down the stacks of its threads; programs use none of these by habit."""
_STACKS_FILE = "tk-stacks"
_STACKS_S = 5.0
_STACKS_QUIET_S = 0.05

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


def die_with_writer(pipe: int) -> None:
    """Be killed when the last writer of a pipe ends; at once if it has. Takes its reading end `pipe`."""
    own = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY)  # whom the kernel tells is noted by opening
    os.set_inheritable(own, True)  # also by what this process may execute
    os.close(pipe)
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(own, 0)
    if poll.poll(0):
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


def remove_folder(folder: Path, *, spared: int | None = None) -> None:
    """Remove a session's folder, and those that it has links to; nothing if it is gone already.

    Args:
        folder: of the session.
        spared: process that goes on, and so do the folders that it has linked.
    """
    for link in (folder / ELSEWHERE).glob("*"):
        if not link.name.startswith(f"{spared}-"):
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
    """Return the pids of the direct children of a process that has one thread."""
    try:
        with open(f"/proc/{of}/task/{of}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without this list, or no descriptor left: look at every process
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


def status_number(pid: int, name: bytes) -> int:
    """Return a number that the kernel tells of a process, such as b"Threads:"; 0 if it is gone."""
    return _sum_of_numbers(f"/proc/{pid}/status", (name,))


def status_bytes(pid: int, name: bytes) -> int:
    """Return an amount of memory that the kernel tells of a process, such as b"VmRSS:"; 0 if it is gone."""
    return 1024 * status_number(pid, name)


def own_share_bytes(pid: int) -> int:
    """Return the proportional set size: a page shared by n processes counts as one n-th."""
    return 1024 * _sum_of_numbers(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"SwapPss:"))


def parent(pid: int) -> int:
    """Return the pid of a process's parent; 0 if it is gone."""
    return _sum_of_numbers(f"/proc/{pid}/status", (b"PPid:",))


def command_line(pid: int) -> bytes:
    """Return the command line of a process, which its forks share; empty if it is gone."""
    return _read(f"/proc/{pid}/cmdline")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # its process has ended, or is not ours, or the kernel does not have it
        return b""


def _sum_of_numbers(path: str, names: tuple[bytes, ...]) -> int:
    return sum(int(line.split()[1]) for line in _read(path).splitlines() if line.startswith(names))


def ended_children() -> Iterator[tuple[int, int]]:
    """Yield pid and status of each child that has ended, which is forgotten with that."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def pending_fd(number: int) -> int:
    """Return a descriptor that can be read while a signal is pending, which it stays."""
    mask = (1 << number - 1).to_bytes(128, "little")  # a `sigset_t`
    if (fd := _libc.signalfd(-1, mask, os.O_CLOEXEC)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


class ChildWatch:
    """Descriptor that can be read when children of this process may have ended."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler, so that the wake-up fd is written to
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read_fd

    def ended(self) -> Iterator[tuple[int, int]]:
        """Yield pid and status of each child that has ended, once there was something to read."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        yield from ended_children()

    def leave(self) -> None:
        """Undo all this in a child that was just forked."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._read_fd)
        os.close(self._write_fd)


def exists(pid: int) -> bool:
    """Return True if a process of this number exists and has not ended."""
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except OSError:
        return False


def environment(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it is gone or not ours."""
    pairs = (item.partition(b"=") for item in _read(f"/proc/{pid}/environ").split(b"\0") if item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def marked(mark: str) -> list[int]:
    """Return the pids of the processes that carry a session's mark, this one not included."""
    own = os.getpid()
    return [pid for pid, _ in _parents() if pid != own and environment(pid).get(SESSION_MARK) == mark]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal; without effect if the process is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(left: Callable[[], Sequence[int]], patience_s: float) -> Sequence[int]:
    """Kill the processes that `left` returns until there are none; return those that could not be ended.

    A busy machine ends them one after the other, so they are given up when there have not been fewer for
    `patience_s`.
    """
    fewest, given_up_at = sys.maxsize, 0.0
    while pids := left():
        now = SYSTEM.monotonic()
        if len(pids) < fewest:
            fewest, given_up_at = len(pids), now + patience_s
        elif now >= given_up_at:
            break
        for pid in pids:
            kill(pid)
        SYSTEM.sleep(_LOOK_S)
    return pids


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
    return int(_read("/proc/vmstat").partition(b"\noom_kill ")[2].partition(b"\n")[0] or 0)


def exit_code(error: SystemExit) -> int:
    """Return the exit code of a process that ends by this: 0 to 255."""
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)


def is_open(stream: TextIO | None) -> bool:
    """Return whether a standard stream is there: user code may close it, or set it to None."""
    return stream is not None and not getattr(stream, "closed", False)


def flush_streams(code: int) -> int:
    """Flush standard output and error, and return the code to exit with.

    As in a Python program that is 120, and the error is shown, if what was printed could not be written.
    A stream that failed is given up.

    Args:
        code: of a process that could write it all.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not is_open(stream):
            continue
        try:
            stream.flush()
        except Exception:
            setattr(sys, name, None)
            code = _FLUSH_FAILED
            with contextlib.suppress(OSError):  # nobody is left to tell
                os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    return code


def finish_program(limit_s: float | None) -> None:
    """Wait for threads and call exit functions, in the order in which a Python program ends.

    Each exit function is called once, however often this is.

    Args:
        limit_s: seconds to wait for each thread; None: as long as it takes.
    """
    _run_threads_exitfuncs()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(limit_s)
    atexit._run_exitfuncs()


def _run_threads_exitfuncs() -> None:
    """Have executors end their threads, as Python does before it waits for threads.

    `concurrent.futures`, loky and their like register for it, and their threads wait for ever without.
    """
    functions = getattr(threading, "_threading_atexits", [])
    while functions:
        try:
            functions.pop()()
        except Exception:
            traceback.print_exc()


def memory_files(pid: int, name: str) -> list[str]:
    """Return paths of the files in memory of this name that a process has; none if it is gone or not ours."""
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{number}"
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(link).startswith(f"/memfd:{name} "):
                    found.append(link)
    return found


def offer_stacks() -> None:
    """Have this process write the stacks of its threads into a file in memory whenever STACKS arrives."""
    faulthandler.register(STACKS, os.memfd_create(_STACKS_FILE, os.MFD_CLOEXEC), all_threads=True)


def stacks(pid: int) -> str | None:
    """Return the stacks of a process's threads as Python has them, the last call first.

    None: it is gone, is another user's, or does not offer them. The signal would end such a process, so it is
    sent to none of those.
    """
    try:
        pidfd = os.pidfd_open(pid)  # the file, once found, is that of the process that is signalled
    except OSError:
        return None
    try:
        caught = int(_read(f"/proc/{pid}/status").partition(b"SigCgt:")[2].split(maxsplit=1)[0], 16)
        paths = memory_files(pid, _STACKS_FILE)
        if not paths or not caught >> (STACKS - 1) & 1:
            return None
        with open(paths[0], "rb") as file:
            before = written = file.seek(0, os.SEEK_END)
            signal.pidfd_send_signal(pidfd, STACKS)
            since = SYSTEM.monotonic()
            deadline = since + _STACKS_S
            while SYSTEM.monotonic() < deadline:
                SYSTEM.sleep(_LOOK_S)
                size = file.seek(0, os.SEEK_END)
                if size != written:
                    written, since = size, SYSTEM.monotonic()
                elif written > before and SYSTEM.monotonic() - since > _STACKS_QUIET_S:
                    break
            file.seek(before)
            return file.read().decode(errors="replace")
    except (OSError, IndexError, ValueError):  # it has ended meanwhile, or is not ours
        return None
    finally:
        os.close(pidfd)
