"""Functions for processes of the operating system and their parents, descendants, memory and sessions."""

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
from collections.abc import Callable, Iterable, Sequence
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
"""Process flag that the kernel sets before an ending process closes its descriptors."""

_MADV_COLLAPSE = 25
_HUGE_BYTES = 2 << 20
_LOOK_S = 0.002
_FLUSH_FAILED = 120

END_S = 10.0
"""Seconds without progress after which killed processes of a session count as stuck."""
NODE_S = END_S + 5.0
"""Seconds to wait for a node that ends its session. The node gives up after `END_S` without progress."""

STACKS = signal.SIGRTMAX - 5
"""Signal at which a worker writes its threads' stacks. Programs rarely use real-time signals."""
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
    """Make orphaned descendants of this process its children, instead of children of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, or at once if the parent has ended already."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def die_with_writer(pipe: int) -> None:
    """Have the kernel kill this process when the last writer of a pipe ends, or at once if no writer is left.

    The function takes ownership of the pipe's reading end `pipe`.
    """
    own = os.open(f"/proc/self/fd/{pipe}", os.O_RDONLY)  # the kernel signals the owner of this open file
    os.set_inheritable(own, True)  # the pipe must stay open if this process executes another program
    os.close(pipe)
    fcntl.fcntl(own, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC)
    poll = select.poll()
    poll.register(own, 0)
    if poll.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)


def set_name(name: str) -> None:
    """Set the process name in `ps` and `top` to the first 15 bytes of `name`."""
    _prctl(_PR_SET_NAME, name.encode()[:15])


def use_huge_pages() -> None:
    """Move this process's memory to huge pages, so that a fork copies a much smaller page table.

    A process with torch then forks in 1 ms instead of 4 ms. If the kernel is too old or no huge page is free,
    the memory stays where it is, which does no harm.
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
    """Remove a session's folder, if it exists, and the folders that it links to.

    Args:
        folder: the session's folder.
        spared: pid of a process that continues; folders that belong to this process stay, although the
            session's folder links to them.
    """
    for link in (folder / ELSEWHERE).glob("*"):
        if not link.name.startswith(f"{spared}-"):
            shutil.rmtree(link.resolve(), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def thread_count() -> int:
    """Return the number of threads of this process, including threads that Python does not know."""
    return len(os.listdir("/proc/self/task"))


_spare: list[int] = []


def keep_spare() -> None:
    """Keep a descriptor in reserve, so that this process can always list its descendants."""
    if not _spare:
        _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def _parents() -> list[tuple[int, int]]:
    """Return (pid, parent's pid) of every visible process."""
    found = []
    has_spare = bool(_spare)
    while _spare:
        os.close(_spare.pop())
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # the process ended meanwhile
                found.append((int(entry), int(_stat(int(entry))[1])))
    if has_spare:
        keep_spare()
    return found


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat, starting with the state."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The second field is a name in parentheses, which may contain any characters. So the fields are
        # counted from the end of the name.
        return file.read().rpartition(b")")[2].split()


def is_ending(pid: int) -> bool:
    """Return True if a process has ended or is ending, so that its descriptors may be closed."""
    try:
        return bool(int(_stat(pid)[6]) & _PF_EXITING)
    except OSError:
        return True


def children(of: int) -> list[int]:
    """Return the pids of the direct children of a single-threaded process."""
    try:
        with open(f"/proc/{of}/task/{of}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # the kernel has no such list, or no descriptor is left, so check every process
        return [pid for pid, parent in _parents() if parent == of]


def descendants(of: int) -> list[int]:
    """Return the pids of all descendants of a process, parents before their children."""
    return families([of])[of][1:]


def families(pids: Iterable[int]) -> dict[int, list[int]]:
    """Return, by pid, the pids of each process and of its descendants, with parents before children."""
    by_parent: dict[int, list[int]] = {}
    for pid, parent in _parents():
        by_parent.setdefault(parent, []).append(pid)
    found = {pid: [pid] for pid in pids}
    for family in found.values():
        for pid in family:  # the loop also visits the pids that are added here
            family.extend(by_parent.get(pid, ()))
    return found


def own_pages_bytes(pid: int) -> int:
    """Return a process's anonymous memory and swap, with shared pages counted in full; 0 if it ended."""
    return 1024 * _sum_of_numbers(f"/proc/{pid}/status", (b"RssAnon:", b"VmSwap:"))


def status_number(pid: int, name: bytes) -> int:
    """Return the number in a field of a process's status, such as b"Threads:"; 0 if the process has ended."""
    return _sum_of_numbers(f"/proc/{pid}/status", (name,))


def status_bytes(pid: int, name: bytes) -> int:
    """Return the amount of memory in a field of a process's status, such as b"VmRSS:".

    Return 0 if the process has ended.
    """
    return 1024 * status_number(pid, name)


def own_share_bytes(pid: int) -> int:
    """Return a process's anonymous memory and swap; a page that n processes share counts as one n-th."""
    return 1024 * _sum_of_numbers(f"/proc/{pid}/smaps_rollup", (b"Pss_Anon:", b"SwapPss:"))


def parent(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process has ended."""
    return _sum_of_numbers(f"/proc/{pid}/status", (b"PPid:",))


def command_line(pid: int) -> bytes:
    """Return the command line of a process, which is equal in its forks; empty if the process has ended."""
    return _read(f"/proc/{pid}/cmdline")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended or belongs to another user, or the kernel lacks the file
        return b""


def _sum_of_numbers(path: str, names: tuple[bytes, ...]) -> int:
    return sum(int(line.split()[1]) for line in _read(path).splitlines() if line.startswith(names))


def pending_fd(*numbers: int) -> int:
    """Return a descriptor that is readable while one of the signals `numbers` is pending.

    Polling does not consume the signal.
    """
    mask = sum(1 << number - 1 for number in numbers).to_bytes(
        128, "little"
    )  # these bytes are the C library's `sigset_t`
    if (fd := _libc.signalfd(-1, mask, os.O_CLOEXEC)) < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(fd)


def exists(pid: int) -> bool:
    """Return True if a process with this pid exists and has not ended."""
    try:
        return _stat(pid)[0] not in (b"Z", b"X")
    except OSError:
        return False


def environment(pid: int) -> dict[str, str]:
    """Return a process's initial environment; empty if it has ended or belongs to another user."""
    pairs = (item.partition(b"=") for item in _read(f"/proc/{pid}/environ").split(b"\0") if item)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in pairs}


def marked(mark: str) -> list[int]:
    """Return the pids of all processes whose environment names the session `mark`, except this process."""
    own = os.getpid()
    return [pid for pid, _ in _parents() if pid != own and environment(pid).get(SESSION_MARK) == mark]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process; do nothing if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def end(left: Callable[[], Sequence[int]], patience_s: float) -> Sequence[int]:
    """Kill the processes that the function `left` returns, until it returns no pids.

    Return the pids of the processes that did not end.

    A busy machine ends processes slowly. So this function gives up only when the number of processes has not
    decreased for `patience_s` seconds.
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
    """Return the current working folder of this process.

    Raises:
        ConfigError: the folder was deleted.
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
    """Return the number of processes that the kernel has killed for lack of memory.

    Return 0 if the kernel does not report the number.
    """
    return int(_read("/proc/vmstat").partition(b"\noom_kill ")[2].partition(b"\n")[0] or 0)


def exit_code(error: SystemExit) -> int:
    """Return the exit code, from 0 to 255, of a process that ends by `error`."""
    return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)


def is_open(stream: TextIO | None) -> bool:
    """Return True if a standard stream is usable. User code may have closed the stream or set it to None."""
    return stream is not None and not getattr(stream, "closed", False)


def flush_streams(code: int) -> int:
    """Flush standard output and error, and return the process's exit code.

    If output could not be written, show the error, set the failed stream to None and return 120, as Python
    does.

    Args:
        code: exit code if all output could be written.
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
            with contextlib.suppress(OSError):  # the stream for errors may be closed too
                os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
    return code


def finish_program(limit_s: float | None) -> None:
    """Wait for threads and then call exit functions, in the same order as Python does at a program's end.

    Each exit function is called only once, even if this function is called several times.

    Args:
        limit_s: longest wait for each thread in seconds; None for no limit.
    """
    _run_threads_exitfuncs()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(limit_s)
    atexit._run_exitfuncs()


def _run_threads_exitfuncs() -> None:
    """Call the functions that end executors' threads, as Python does before it waits for threads.

    `concurrent.futures`, loky and similar packages register such functions. If the functions were not called,
    the threads of these packages would wait forever.
    """
    functions = getattr(threading, "_threading_atexits", [])
    while functions:
        try:
            functions.pop()()
        except Exception:
            traceback.print_exc()


def memory_files(pid: int, name: str) -> list[str]:
    """Return paths of a process's memory files with this name.

    Return [] if the process has ended or is not accessible.
    """
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            link = f"/proc/{pid}/fd/{number}"
            with contextlib.suppress(FileNotFoundError):  # the descriptor was closed after it was listed
                if os.readlink(link).startswith(f"/memfd:{name} "):
                    found.append(link)
    return found


def offer_stacks() -> None:
    """Make this process write the stacks of its threads to a memory file whenever it receives STACKS."""
    faulthandler.register(STACKS, os.memfd_create(_STACKS_FILE, os.MFD_CLOEXEC), all_threads=True)


def stacks(pid: int) -> str | None:
    """Return the Python stacks of a process's threads, with the last call first.

    Return None if the process has ended, belongs to another user, or has not called `offer_stacks`. A process
    that has not called `offer_stacks` gets no signal, because the signal would kill it.
    """
    try:
        # with a pidfd, the file and the signal certainly belong to the same process
        pidfd = os.pidfd_open(pid)
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
    except (OSError, IndexError, ValueError):  # the process has ended meanwhile, or belongs to another user
        return None
    finally:
        os.close(pidfd)
