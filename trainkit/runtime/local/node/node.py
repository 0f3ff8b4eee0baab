"""The node: the process that supervises a session. It makes the parts and connects them."""

from __future__ import annotations

import functools
import math
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainkit.clock import SYSTEM
from trainkit.errors import ObjectLostError, TrainkitError
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.local.node.logs import TICK_S, LineDeduplicator, RepeatedLine, SessionLogs
from trainkit.runtime.local.node.loop import LoopConnection, try_send
from trainkit.runtime.local.node.memory_monitor import MemoryMonitor
from trainkit.runtime.local.node.named_actors import NamedActors
from trainkit.runtime.local.node.records import NOBODY, WorkerRecord
from trainkit.runtime.local.node.scheduler import ResourceScheduler
from trainkit.runtime.local.node.server import SessionServer
from trainkit.runtime.local.node.state import answer_state
from trainkit.runtime.local.node.workers import WorkerTable
from trainkit.runtime.local.system import process
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.local.wire.channel import Connection, Descriptor
from trainkit.runtime.local.wire.frames import FAILURE, NOTICE, REQUEST, VALUE, Frame
from trainkit.runtime.local.wire.messages import (
    Abandoned,
    ArgumentsThere,
    Available,
    AwaitGroup,
    Blocked,
    Cancel,
    CancelOwed,
    Departing,
    FindActor,
    FindGroup,
    Imports,
    Kill,
    Leaving,
    Output,
    QueryExit,
    Reclaimed,
    Reconnect,
    Redirect,
    Release,
    ReleaseActor,
    RequestLease,
    Reserve,
    ReturnLease,
    ShownAs,
    Shutdown,
    StartActor,
    State,
    Waits,
    packed,
    unpacked,
)
from trainkit.runtime.local.worker.template import run_template
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import LostHandle, pack
from trainkit.runtime.specs import SessionSpec
from trainkit.settings import SESSION_MARK, dedup_logs

LOG = "node.log"
"""In the session's folder: what the node prints once there is no program to print it in."""

_DRIVER = 1
_GRACE_S = 2.0


def end_program(node: Node, then: Callable[[], None]) -> None:
    """End all that belongs to the program that started the session.

    Args:
        node: whose session it is.
        then: called once, when that is dead, or after a grace if the kernel can't end some of it yet.
    """
    workers = node.worker_table.workers()
    staying = _belonging_to(NOBODY, workers)
    doomed = {worker.worker_id: worker for worker in workers if worker.serial not in staying}
    node.stores.forsake(_DRIVER, "the program that asked for it has ended")

    waiting = [then]

    def done() -> None:
        while waiting:
            waiting.pop()()

    def ended(worker_id: int, _: ExitRecord) -> None:
        doomed.pop(worker_id, None)
        if not doomed:
            done()

    if not doomed:
        done()
    node.after(_GRACE_S, done)
    for worker_id in list(doomed):
        node.worker_table.kill(worker_id, "its program has ended", functools.partial(ended, worker_id))


def _belonging_to(owner: int, workers: list[WorkerRecord]) -> set[int]:
    """Numbers of the workers that `owner` asked for, that those asked for, and so on."""
    found = {worker.serial for worker in workers if worker.owner == owner}
    while True:
        more = {worker.serial for worker in workers if worker.owner in found} - found
        if not more:
            return found
        found |= more


def may_stay(node: Node) -> bool:
    """Tell others that the program has ended, and print to a file from now on; False if that can't be.

    Whoever reads the program's output waits for the last to hold it open.
    """
    try:
        node.door.driver_left()
        fd = os.open(node.mark / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:  # the session's folder was removed, or the disk is full
        sys.stderr.write(f"trainkit: detached actors end with this program, as nobody finds them: {error}\n")
        return False
    for template in node.worker_table.templates.connections():
        try_send(template, NOTICE, 0, packed(Redirect(), [Descriptor(os.dup(fd))]))
    process.take_output(fd)
    os.close(fd)
    return True


_DRIVER_SERIAL = 1
_END_S = 2.0
_LAST_WORDS_S = 0.25
"""So long after the last detached actor's end its callers may still ask how it ended."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run the node of one session; `arguments` names the descriptor of what `launch.start_node` wrote."""
    with open(int(arguments[0]), "rb") as file:
        file.seek(0)
        options = pickle.load(file)
    ours, theirs = socket.socketpair()
    node_pid = os.getpid()
    # The plain template is forked before there is any state, so that it is as small as can be.
    template_pid = os.fork()
    if template_pid == 0:
        process.die_with_parent(node_pid)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.close(options["fd"])
        os.close(options["account"])
        ours.close()
        run_template(theirs, frozenset())
    theirs.close()
    process.set_name("trainkit-node")
    process.become_subreaper()
    process.keep_spare()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    node = Node(options, ours, template_pid)
    code = 0
    try:
        node.run()
    except Exception:
        traceback.print_exc()
        code = 1
    finally:
        node.end_everything()
        os._exit(code)


class Node:
    """The loop, and the dispatch of what arrives in it."""

    def __init__(self, options: dict[str, Any], template: socket.socket, template_pid: int) -> None:
        self._poll = select.poll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._backlogged: dict[int, Connection] = {}
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._stopping = False
        self._clients: dict[int, Connection] = {}
        self.spec: SessionSpec = options["spec"]
        self.account_fd: int = options["account"]
        self.guard = MemoryMonitor(self)
        self.logs = SessionLogs(os.environ[SESSION_MARK].rpartition("-")[2])
        self._logs_fail = False
        self._folding = LineDeduplicator() if dedup_logs() else None
        self.worker_table = WorkerTable(self, template, template_pid)
        for imports in options["preload"]:
            self.worker_table.templates.warm(imports)
        self.stores = ResourceScheduler(self, self.spec, options["gpus"])
        self.registry = NamedActors(self, self.spec.namespace, self._end_if_unneeded)
        self.driver_gone = False
        self.mark = Path(os.environ[SESSION_MARK])
        self.door = SessionServer(self, self.mark, options["driver"])
        self.add_client(_DRIVER_SERIAL, socket.socket(fileno=options["fd"]))
        self.driver_pid: int = options["driver"]
        # Also when a child of the driver still holds its socket open, the driver's end ends us.
        self._driver_pidfd = _pidfd(self.driver_pid)
        self.watch(self._driver_pidfd, self._driver_left)
        wake_read, self._wake_write = socket.socketpair()
        wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._wake_read = wake_read
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.stop())
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        self.watch(wake_read.fileno(), self._child_ended)

    # the loop

    def run(self) -> None:
        """Serve until the driver is gone or says so."""
        while not self._stopping:
            for fd, event in self._poll.poll(self._timeout_ms()):
                if event & select.POLLOUT and fd in self._backlogged:
                    self._flush(fd)
                reader = self._readers.get(fd)
                if reader is not None and event & ~select.POLLOUT:
                    reader()
            self._run_timers()
            self.stores.serve()

    def watch(self, fd: int, reader: Callable[[], None]) -> None:
        """Call `reader` when `fd` can be read."""
        self._readers[fd] = reader
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Undo `watch`."""
        if self._readers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` once, `seconds` from now."""
        self._timers.append((SYSTEM.monotonic() + seconds, action))

    def stop(self) -> None:
        """Leave the loop."""
        self._stop_folding()
        self._stopping = True

    def _timeout_ms(self) -> float | None:
        if not self._timers:
            return None
        return max(0.0, min(at for at, _ in self._timers) - SYSTEM.monotonic()) * 1000

    def _run_timers(self) -> None:
        now = SYSTEM.monotonic()
        due = [action for at, action in self._timers if at <= now]
        self._timers = [(at, action) for at, action in self._timers if at > now]
        for action in due:
            action()

    def connection(
        self, sock: socket.socket, on_frame: Callable[[Frame], None], on_close: Callable[[], None]
    ) -> Connection:
        """A connection that is read in the loop."""
        conn = LoopConnection(sock, self, on_frame, on_close)
        self.watch(conn.fileno(), functools.partial(_read, conn))
        return conn

    def forget(self, conn: Connection) -> None:
        """Read and flush `conn` no more."""
        self.unwatch(conn.fileno())
        self._backlogged.pop(conn.fileno(), None)

    def flush_later(self, conn: Connection) -> None:
        """Flush `conn` when it can be written to."""
        self._backlogged[conn.fileno()] = conn
        self._poll.modify(conn.fileno(), select.POLLIN | select.POLLOUT)

    def _flush(self, fd: int) -> None:
        conn = self._backlogged[fd]
        conn.flush()
        if not conn.has_backlog:
            del self._backlogged[fd]
            if fd in self._readers:
                self._poll.modify(fd, select.POLLIN)

    # clients

    def add_client(self, serial: int, sock: socket.socket) -> Connection:
        """Serve the requests of one more process: the driver, or a worker."""
        on_close = self._driver_left if serial == _DRIVER_SERIAL else (lambda: None)
        conn = self.connection(sock, functools.partial(self._serve, serial), on_close)
        self._clients[serial] = conn
        return conn

    def admit(self, serial: int, conn: Connection, reader: Callable[[], None]) -> None:
        """Serve the requests of another program."""
        self._clients[serial] = conn
        self.watch(conn.fileno(), reader)

    def drop_client(self, serial: int) -> None:
        """Forget a process that has ended."""
        conn = self._clients.pop(serial, None)
        if conn is not None:
            if not conn.closed:
                self.forget(conn)
            conn.close()

    def notify(self, serial: int, message: Any) -> None:
        """Send a notice to one client, if it is still there."""
        conn = self._clients.get(serial)
        if conn is not None:
            try_send(conn, NOTICE, 0, packed(message))

    def clients(self) -> list[int]:
        """Numbers of all processes of the session that can make requests."""
        return [serial for serial in self._clients if serial not in self.door.guests]

    def print_lines(self, worker: WorkerRecord, is_error: bool, lines: list[str]) -> None:
        """Show a worker's output in the driver."""
        if not self.spec.log_to_driver:
            return
        name, pid = worker.shown_as or worker.name, worker.pid or 0
        if self._folding is not None:
            waiting = bool(self._folding)
            lines = self._folding.fresh(worker.serial, name, pid, is_error, lines, SYSTEM.monotonic())
            if not waiting and self._folding:
                self.after(TICK_S, self._print_repeated)
        if lines:
            self.notify(_DRIVER_SERIAL, Output(name, pid, is_error, lines))

    def _print_repeated(self, now: float | None = None) -> None:
        """Say which lines were repeated, `now` by the clock."""
        if self._folding is None:
            return
        self._print_pending(self._folding.due(SYSTEM.monotonic() if now is None else now))
        if self._folding:
            self.after(TICK_S, self._print_repeated)

    def print_rest(self, worker: WorkerRecord) -> None:
        """Show what a worker that has ended was the last to repeat."""
        if self._folding is not None and worker.pid is not None:
            self._print_pending(self._folding.last_of(worker.pid))

    def _print_pending(self, pending: list[RepeatedLine]) -> None:
        for known in pending:
            self.notify(_DRIVER_SERIAL, Output(known.name, known.pid, known.is_error, [known.text]))

    def _stop_folding(self) -> None:
        """Say what has been held back, and hold nothing back any more: the program is about to end."""
        self._print_repeated(math.inf)
        self._folding = None

    def keep_output(self, worker: WorkerRecord, kind: str, data: bytes) -> None:
        """Keep what a worker printed in its file."""
        if self._logs_fail:
            return
        try:
            self.logs.write(worker, kind, data)
        except OSError as error:
            self._logs_fail = True
            self.notify(_DRIVER_SERIAL, Waits(f"what workers print is not kept in files any more: {error}"))

    def _serve(self, serial: int, frame: Frame) -> None:
        """Do what one process asks; if that fails, it is the only one to be harmed."""
        try:
            self.from_client(serial, frame)
        except Exception as error:
            sys.stderr.write(f"trainkit: the node could not do what was asked:\n{traceback.format_exc()}")
            if frame.kind == REQUEST:
                reason = f"the session's node could not do what was asked: {type(error).__name__}: {error}"
                self._answer(serial, frame.call_id, TrainkitError(reason))

    def _answer(self, serial: int, call_id: int, value: Any) -> None:
        conn = self._clients.get(serial)
        if conn is not None:
            failed = isinstance(value, Exception)
            body = pack_failure(value, "trainkit") if failed else pack(value)
            try_send(conn, FAILURE if failed else VALUE, call_id, body)

    def from_client(self, serial: int, frame: Frame, may_ask: tuple[type, ...] = (object,)) -> None:
        """Do what a process asks or tells; raises TypeError for what it may not."""
        message = unpacked(frame.body)
        if not isinstance(message, may_ask):
            raise TypeError(f"this is for the session's own processes: {message!r}")
        handles = [handle for handle in frame.body.handles if isinstance(handle, Descriptor)]
        answer = functools.partial(self._answer, serial, frame.call_id)
        lost = next((handle for handle in frame.body.handles if isinstance(handle, LostHandle)), None)
        if lost is not None:
            why = f"the session's node could not do what was asked: {lost.why}"
            self._refuse(message, why, answer if frame.kind == REQUEST else lambda _: None)
            return
        if frame.kind not in (REQUEST, NOTICE):
            raise TypeError(f"the node cannot handle a frame of kind {frame.kind}")
        match message:
            case StartActor():
                self.registry.start(
                    serial,
                    message,
                    handles[0],
                    answer,
                    lambda: self.worker_table.restarts.remember(serial, message, frame.body),
                )
            case ArgumentsThere(worker_id):
                self.stores.arguments_there(worker_id)
            case FindActor():
                self.registry.find(message, handles, answer)
            case RequestLease():
                self.stores.lease(serial, message, handles[0], answer)
            case ReturnLease(worker_id, retire):
                self.stores.return_lease(worker_id, retire)
            case Reserve():
                self.stores.groups.reserve(serial, message, answer)
            case FindGroup(name):
                self.stores.groups.find(name, answer)
            case AwaitGroup(group_id):
                self.stores.groups.await_group(group_id, answer)
            case Release(group_id):
                self.stores.groups.release(group_id, answer)
                self._end_if_unneeded()
            case Available():
                self.stores.count_available(serial, answer)
            case State(kind):
                answer(answer_state(self, kind))
            case Reclaimed(count):
                self.stores.patience.reclaimed(serial, count)
            case Blocked(waiting):
                self.stores.blocked(serial, waiting)
            case Kill(worker_id, reason, restart):
                self.worker_table.kill(worker_id, reason, lambda _: answer(None), restart)
            case Reconnect():
                self.worker_table.restarts.reconnect(serial, message, handles[0], answer)
            case ReleaseActor(worker_id):
                self.worker_table.restarts.let_go(worker_id)
            case Cancel():
                self.worker_table.cancel(message)
            case CancelOwed(maker):
                self.notify(maker, message)
            case Abandoned(introduced):
                answer(self.worker_table.may_end(serial, introduced))
            case Leaving(reason):
                self.worker_table.is_leaving(serial, reason)
                answer(None)
            case Imports(package):
                self.worker_table.imports(serial, package)
            case Departing(stays):
                self.worker_table.departs(serial, stays)
            case QueryExit(worker_id, life):
                self.worker_table.inquire(worker_id, answer, life)
            case ShownAs(name):
                self.worker_table.show_as(serial, name)
            case Shutdown() if serial == _DRIVER_SERIAL:
                self._driver_left(lambda: answer(True))
            case Shutdown():
                self.stop()
            case _:
                raise TypeError(f"the node cannot handle {message!r}")

    def _refuse(self, message: Any, why: str, answer: Callable[[Any], None]) -> None:
        """Do not do what is asked, as what came with it is lost."""
        if isinstance(message, StartActor):
            self.worker_table.never_started(message.worker_id, ExitRecord(reason=why))
        answer(None if isinstance(message, Reconnect) else ObjectLostError(why))

    # ends

    def _driver_left(self, then: Callable[[], None] = lambda: None) -> None:
        """End all but what is detached; `then` is called when that is alone. Without any, stop."""
        if not self._outlives_its_program():
            self.stop()
        if self._stopping or self.driver_gone:
            return
        self._stop_folding()
        self.driver_gone = True
        self.unwatch(self._driver_pidfd)
        if not may_stay(self):
            self.stop()
            return

        def done() -> None:
            then()
            self.drop_client(_DRIVER_SERIAL)

        end_program(self, done)

    def _end_if_unneeded(self) -> None:
        if self.driver_gone:
            self.after(_LAST_WORDS_S, lambda: None if self._outlives_its_program() else self.stop())

    def _outlives_its_program(self) -> bool:
        return self.registry.has_detached() or self.stores.groups.has_detached()

    def _child_ended(self) -> None:
        try:
            self._wake_read.recv(4096)
        except BlockingIOError:
            return
        self.worker_table.reap()

    def end_everything(self) -> None:
        """Kill all descendants; returns when none is left, or after a grace."""
        signal.set_wakeup_fd(-1)
        deadline = SYSTEM.monotonic() + _END_S
        own = os.getpid()
        while left := process.descendants(own):
            if SYSTEM.monotonic() >= deadline:
                sys.stderr.write(f"trainkit: these processes could not be ended: {left}\n")
                return
            for pid in left:
                process.kill(pid)
            while True:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break
            SYSTEM.sleep(0.002)
        self.worker_table.drain()
        # Else the driver does it, once it has read who has ended the session.
        if self.driver_gone or not sessions.ended_by(self.mark):
            process.remove_folder(self.mark)


def _read(conn: Connection) -> None:
    with conn.reading:
        conn.read_available()


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # the driver is gone already
        os._exit(0)
