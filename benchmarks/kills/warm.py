"""Warm start of programs: a process that has imported everything forks each of them.

    campaign ──request──▶ warm process ──fork──▶ driver ──fork──▶ spares, which become the node of a session
        ▲                      │
        └──pid, exit code──────┘

Importing torch and scikit-learn takes most of the time of a small program, and the same again in its session.
A forked program is a process with a group and a session of its own. It has the environment of a new program,
also in /proc, where trainkit finds the processes of a session. The node of a program's fourth session, and a
template that replaces a second killed template, start as new Python processes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks.kills.spares import MESSAGE_BYTES, PAD, PAD_BYTES, Block, Spares, draw_seeds

NODES = 3
"""Number of spares of a driver: the nodes of its first sessions."""
LIBRARIES = {
    "lightning": "benchmarks.kills.lightning_parts",
    "transformers": "benchmarks.kills.transformers_parts",
}
"""Modules of programs that need a library, which is not always installed, by library."""
MODULES = (
    "benchmarks.kills.loop_parts",
    "benchmarks.kills.parts",
    "benchmarks.kills.runtime_parts",
    "benchmarks.kills.search_parts",
    "benchmarks.kills.step_parts",
    "benchmarks.kills.trainer_parts",
    "benchmarks.kills.tuner_parts",
    "multiprocessing.popen_fork",
    "torch.distributed.checkpoint",
    "torch.profiler._cupti_monitor",
    "trainkit.plugins.pipeline.pipeline",
    "trainkit.plugins.profile",
    "trainkit.runtime.local.client.engine",
    "trainkit.train.strategies.fsdp",
    "trainkit.train.strategies.tensor",
)
"""Modules that the warm process imports, in addition to all that trainkit's templates import."""


class Forked:
    """Program that the warm process has forked, with the interface of `Popen` that a cycle needs.

    Args:
        sock: socket on which the warm process sends the pid, and then the exit code.

    Attributes:
        pid: its pid.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._code: int | None = None
        self.pid = self._received()

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""
        if self._code is None and select.select([self._sock], [], [], 0)[0]:
            self._code = self._received()
            self._sock.close()
        return self._code

    def wait(self) -> int:
        """Wait for the program's end, and return its exit code."""
        while (code := self.poll()) is None:
            select.select([self._sock], [], [])
        return code

    @property
    def returncode(self) -> int | None:
        """The exit code; None before `poll` or `wait` has returned it."""
        return self._code

    def _received(self) -> int:
        data = self._sock.recv(64)
        if not data:
            raise RuntimeError("the process that forks programs has ended")
        return int(data)


class WarmParent:
    """The warm process, as the campaign sees it.

    Args:
        environment: environment that all programs have in common.
        log: file for its output.
    """

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._lock = threading.Lock()
        self._sock, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with theirs, log.open("ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.kills.warm", str(theirs.fileno())],
                # Templates of trainkit start with these values, and must not start threads.
                env={
                    **environment,
                    PAD: "x" * PAD_BYTES,
                    "OPENBLAS_NUM_THREADS": "1",
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                },
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> Forked:
        """Start a program.

        Args:
            arguments: name of its part and folder of its job.
            environment: its environment.
            folder: its working folder, with the file `log` for its output.
        """
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        request = pickle.dumps((list(arguments), dict(environment), str(folder)))
        with theirs, (folder / "log").open("ab") as log, self._lock:
            socket.send_fds(self._sock, [request], [theirs.fileno(), log.fileno()])
        return Forked(ours)

    def end(self) -> None:
        """End the warm process. Programs that still run are not ended."""
        self._sock.close()
        self._child.wait()


def main(control: socket.socket) -> int:
    """Import all modules, then fork programs at the campaign's request until it ends.

    Returns in each forked process too, with the exit code of its program.
    """
    block = Block.own()
    warm_up()
    program = serve(control, block)
    if program is None:
        return 0
    nodes = Spares(block, NODES)
    needed = nodes.prepare()
    if needed is not None:
        needed()
    nodes.serve_nodes()
    return program()


def warm_up() -> None:
    """Import what programs and their sessions need.

    Raises:
        RuntimeError: an import has started a thread, so that forks are unsafe.
    """
    from trainkit.runtime.local.system import process
    from trainkit.runtime.session import PRELOADS

    gc.disable()
    present = [module for library, module in LIBRARIES.items() if find_spec(library) is not None]
    for module in (*(name for names in PRELOADS.values() for name in names), *MODULES, *present):
        importlib.import_module(module)
    if process.thread_count() != 1:
        raise RuntimeError("an import has started a thread, so programs can't be forked: use --cold")
    # Templates do the same. They move memory to huge pages while idle, which costs more than it saves here.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    vars(process)["use_huge_pages"] = lambda: None
    gc.collect()
    gc.freeze()
    gc.enable()


def serve(control: socket.socket, block: Block) -> Callable[[], int] | None:
    """Fork programs until the campaign ends; return None then, and in each forked process its program."""
    running: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                pid, answers = running.pop(descriptor)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                os.close(descriptor)
                with answers, contextlib.suppress(BrokenPipeError):  # the campaign has been ended
                    answers.send(b"%d" % code)
                continue
            request, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
            if not request:
                return None
            answers, log = socket.socket(fileno=fds[0]), fds[1]
            if (pid := os.fork()) == 0:
                for other, (_, sock) in running.items():
                    os.close(other)
                    sock.close()
                control.close()
                answers.close()
                return _begun(block, log, *pickle.loads(request))
            os.close(log)
            answers.send(b"%d" % pid)
            descriptor = os.pidfd_open(pid)
            running[descriptor] = pid, answers
            poll.register(descriptor, select.POLLIN)


def _begun(
    block: Block, log: int, arguments: list[str], environment: dict[str, str], folder: str
) -> Callable[[], int]:
    """Make this forked process a program of its own, and return the function that runs the program."""
    from benchmarks.kills import parts

    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(folder)
    block.take(environment)
    _use_clock()
    tempfile.tempdir = None
    draw_seeds()
    sys.argv[:] = [str(parts.__file__), *arguments]
    return parts.main


def _use_clock() -> None:
    if (path := os.environ.get("KILLS_CLOCK")) is not None:
        importlib.import_module("sitecustomize").use(path)


if __name__ == "__main__":
    # Objects of this module are pickled by no program, so it may run as __main__.
    sys.exit(main(socket.socket(fileno=int(sys.argv[1]))))
