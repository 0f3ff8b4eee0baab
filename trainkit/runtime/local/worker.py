"""A worker process: runs the calls that come over its connections, in its main thread, one at a time."""

from __future__ import annotations

import atexit
import faulthandler
import os
import random
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import threadpoolctl

from trainkit.runtime import api
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local import process
from trainkit.runtime.local.channel import (
    CALL,
    CONNECT,
    FAILURE,
    INIT,
    VALUE,
    Connection,
    Descriptor,
    Frame,
)
from trainkit.runtime.local.client import LocalEngine
from trainkit.runtime.local.messages import Connect, Exit, WorkerSpec
from trainkit.runtime.local.objects import opened
from trainkit.runtime.local.refs import LocalRef
from trainkit.runtime.results import split_results
from trainkit.runtime.serialize import Packed, pack, unpack
from trainkit.runtime.specs import ObjectRef
from trainkit.settings import SESSION_MARK

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_FLUSH_S = 10.0
_FUNCTIONS_KEPT = 16


def run_worker(spec: WorkerSpec, fds: Sequence[int]) -> None:
    """Become the worker of `spec`, in a process just forked; returns when it is to end.

    Args:
        spec: what it runs for, with what, and what it sees.
        fds: its control connection, its first connection, and what stdout and stderr become; the
            caller closes those that are only copied.
    """
    control, first, out, err = fds
    process.set_name(f"tk-{spec.name}")
    # Orphans of what runs here stay here while it runs, and become the node's when it ends.
    process.become_subreaper()
    own_variables = _settle_in(spec, out, err)
    group = None if spec.group is None else (spec.group, list(spec.group_bundles))
    engine = LocalEngine(
        socket.socket(fileno=os.dup(control)),
        spec.totals,
        serial=spec.serial,
        cpus=spec.cpus,
        gpus=sorted(spec.gpus),
        group=group,
        own_variables=own_variables,
    )
    api.adopt(engine)
    worker = _Worker(spec, engine)
    worker.connect(socket.socket(fileno=os.dup(first)))
    for fd in fds:
        os.close(fd)
    code = 0
    try:
        worker.serve()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        worker.leave(code)


def _settle_in(spec: WorkerSpec, out: int, err: int) -> dict[str, str]:
    """Give the process the surroundings of the one that asked for it, before any user code runs.

    Returns:
        The variables that were set for this process alone, and are not handed on.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, standard)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="backslashreplace", encoding="utf-8")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace", encoding="utf-8")  # noqa: SIM115
    seen = spec.surroundings
    threads = str(max(1, int(spec.cpus)))
    own = {name: threads for name in THREAD_VARIABLES if name not in seen.environ}
    own["CUDA_VISIBLE_DEVICES"] = ",".join(spec.visible_gpus)
    mark = {SESSION_MARK: os.environ[SESSION_MARK]}
    _set_environment({**seen.environ, **own, **spec.env, **mark})
    sys.path[:] = seen.sys_path
    sys.argv[:] = [""]
    os.chdir(spec.cwd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(sys.stderr)
    _set_threads()
    _reseed()
    _cap_gpu_memory(spec)
    return own


def _set_environment(wanted: Mapping[str, str]) -> None:
    """Make os.environ equal `wanted`, touching only what differs: most of it was inherited."""
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _set_threads() -> None:
    """Tell libraries that were loaded before the variables were set."""
    count = _first_number(os.environ["OMP_NUM_THREADS"])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(max(1, count))
    if "numpy" in sys.modules:
        blas = _first_number(os.environ["OPENBLAS_NUM_THREADS"])
        if blas > 1:  # the template loaded it with one thread; looking the library up takes milliseconds
            threadpoolctl.threadpool_limits(blas, user_api="blas")


def _first_number(setting: str) -> int:
    """Of a setting such as "4" or "4,2"; 0, which the libraries take for "not set", if there is none."""
    first = setting.split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _reseed() -> None:
    """Forked siblings would draw the same numbers otherwise."""
    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _cap_gpu_memory(spec: WorkerSpec) -> None:
    """Hold a worker with a fraction of a GPU to that share of its memory."""
    shares = [share for share in spec.gpus.values() if share < 1]
    torch = sys.modules.get("torch")
    if shares and torch is not None and torch.cuda.device_count():
        torch.cuda.set_per_process_memory_fraction(shares[0], 0)


class _CallerConnection(Connection):
    """A connection that calls come over."""

    def __init__(self, sock: socket.socket, worker: _Worker) -> None:
        super().__init__(sock)
        self._worker = worker

    def on_frame(self, frame: Frame) -> None:
        self._worker.arrived(self, frame)

    def on_end(self) -> None:
        return  # the caller makes no more calls, but may read the answers to those it made

    def on_backlog(self) -> None:
        self._worker.engine.pump.flush(self)


class _Worker:
    def __init__(self, spec: WorkerSpec, engine: LocalEngine) -> None:
        self._spec = spec
        self.engine = engine
        self._poll = select.epoll()
        self._conns: dict[int, Connection] = {}
        self._parted: list[Connection] = []
        self._queue: deque[tuple[Connection, Frame]] = deque()
        # Calls to an actor made anew may come before what it is to be made with: they wait for that.
        self._early: list[tuple[Connection, Frame]] | None = [] if spec.is_actor else None
        self._instance: Any = None
        self._failed: Packed | None = None
        self._functions: dict[int, Any] = {}
        self._leaving = False
        self._main = threading.get_ident()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake_fd, select.EPOLLIN)
        engine.link.on_notice = self._noticed
        control = engine.link
        self._control = control
        self._poll.register(control, select.EPOLLIN)

    def connect(self, sock: socket.socket) -> None:
        """Serve one more connection."""
        conn = _CallerConnection(sock, self)
        self._conns[conn.fileno()] = conn
        self._poll.register(conn, select.EPOLLIN)

    def arrived(self, conn: Connection, frame: Frame) -> None:
        """Queue a call, or serve the further connection that came."""
        if frame.kind == CONNECT:
            (handle,) = frame.body.handles
            self.connect(socket.socket(fileno=handle.open_fd()))
        elif self._early is not None and frame.kind != INIT:
            self._early.append((conn, frame))
        else:
            early, self._early = self._early or [], None
            self._queue.extend([(conn, frame), *early])
        self._wake()

    def _wake(self) -> None:
        """Let the main thread look at its queue, if it was the pump's thread that put something there."""
        if threading.get_ident() != self._main:
            os.eventfd_write(self._wake_fd, 1)

    def serve(self) -> None:
        """Run calls until there is nobody left who could make one, or the node says so."""
        queue = self._queue
        while True:
            while queue:
                self._run(*queue.popleft())
            if self._leaving or (self._spec.is_actor and not self._conns):
                return
            for fd, _ in self._poll.poll():
                if fd == self._control.fileno():
                    if not self._control.try_read():
                        continue
                    if self._control.closed:
                        return
                elif fd == self._wake_fd:
                    os.eventfd_read(fd)
                else:
                    self._read(fd)

    def _read(self, fd: int) -> None:
        conn = self._conns[fd]
        if conn.try_read() and conn.ended:
            self._poll.unregister(fd)
            del self._conns[fd]
            # Calls of it that are queued hold it; answers that are not yet written are kept here.
            self._parted = [other for other in [*self._parted, conn] if other.has_backlog]

    def _noticed(self, message: Any, body: Packed) -> None:
        match message:
            case Connect():
                (handle,) = body.handles
                if isinstance(handle, Descriptor):
                    self.connect(socket.socket(fileno=handle.take()))
            case Exit():
                self._leaving = True
                self._wake()
            case _:
                self.engine.notified(message, body)

    def _run(self, conn: Connection, frame: Frame) -> None:
        where = self._where(INIT, self._spec.name)
        count = 1
        try:
            definition, method, count, args, kwargs = unpack(opened(frame.body))
            where = self._where(frame.kind, method)
            function = self._target(frame.kind, definition, method)
            if function is None:
                self._answer(conn, frame.call_id, [(FAILURE, self._failed)] * count)
                return
            result = function(*map(self._resolved, args), **{k: self._resolved(v) for k, v in kwargs.items()})
            if frame.kind == INIT:
                self._instance = result
                return
            answers = [
                (VALUE, self.engine.store(pack(item, f"the result of {method}")))
                for item in split_results(result, count, method)
            ]
        except Exception as error:
            failure = self.engine.store(pack_failure(error, where))
            if frame.kind == INIT:
                self._failed = failure
                return
            answers = [(FAILURE, failure)] * count
        self._answer(conn, frame.call_id, answers)

    def _where(self, kind: int, method: str) -> str:
        name = f"{self._spec.name}.{method}" if self._spec.is_actor and kind == CALL else method
        return f"{name} (pid {os.getpid()})"

    def _target(self, kind: int, definition: LocalRef | None, method: str) -> Any:
        """What to call; None if the actor's constructor failed, so that there is nothing to call."""
        if definition is not None:
            function = self._functions.pop(definition.id, None)
            if function is None:
                function = self.engine.get([definition], None)[0]
            self._functions[definition.id] = function  # the last used is the last to be forgotten
            if len(self._functions) > _FUNCTIONS_KEPT:
                del self._functions[next(iter(self._functions))]
            return function
        if self._failed is not None:
            return None
        return getattr(self._instance, method)

    def _resolved(self, value: Any) -> Any:
        return self.engine.get([value], None)[0] if isinstance(value, ObjectRef) else value

    def _answer(self, conn: Connection, call_id: int, answers: Sequence[tuple[int, Any]]) -> None:
        try:
            for index, (kind, body) in enumerate(answers):
                conn.send(kind, call_id + index, body)
        except OSError:
            return  # the caller is gone
        if conn.ended and conn.has_backlog:
            self._parted.append(conn)

    def leave(self, code: int) -> None:
        """End the process in the order in which a Python program ends, then what it started."""
        self._instance = None
        self._functions.clear()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join(_FLUSH_S)
        atexit._run_exitfuncs()
        for conn in [*self._conns.values(), *self._parted]:
            conn.flush_blocking(_FLUSH_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
