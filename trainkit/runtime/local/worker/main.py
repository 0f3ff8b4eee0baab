"""Worker process: its start, the loop that reads its connections, and its end.

An arriving call passes from its connection through the queue to `runner.begin`, and then to `Calls`, which
sends the answer with `Calls.answer`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import NodeDiedError
from trainkit.runtime import session, signals
from trainkit.runtime.calls.options import interface_of
from trainkit.runtime.failures import ActorExit
from trainkit.runtime.local.client.actors import ActorConnection, ActorEndpoint, known_endpoint, shared
from trainkit.runtime.local.client.background import BackgroundThread
from trainkit.runtime.local.client.engine import LocalEngine
from trainkit.runtime.local.memory.budget import StoreBudget
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.context import ProcessContext, calling
from trainkit.runtime.local.wire import channel, messages
from trainkit.runtime.local.worker.bootstrap import Inherited, enter_environment
from trainkit.runtime.local.worker.calls import ArrivedCall, CallerConnection, Calls, RecordedCalls
from trainkit.runtime.local.worker.executors import AsyncioExecutor, Executor, Threads
from trainkit.runtime.local.worker.serial_executor import SerialExecutor
from trainkit.runtime.observability.call_recorder import CallRecorder
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import Interface

_FLUSH_S = 10.0
_LONG_S = 0.02
"""Run time of a call after which the tasks in the queue are returned to their owner, so that other workers
run them.
"""


def run_worker(spec: messages.WorkerSpec, inherited: Inherited, fds: Sequence[int]) -> None:
    """Run the worker that `spec` describes in this newly forked process, then end the process.

    Args:
        spec: specification of the worker.
        inherited: environment of the process that requested the worker.
        fds: descriptors of the worker's control connection, first connection, stdout, stderr, and the account
            of the object store. The function uses copies of the descriptors, and closes the originals.
    """
    control, first, out, err, account = fds
    signals.serve_program()
    # Orphaned descendants become children of this worker while it runs, and of the node when it ends.
    process.become_subreaper()
    own_variables = enter_environment(spec, inherited, out, err)
    group = None if spec.group is None else (spec.group, list(spec.group_bundles))
    engine = LocalEngine(
        socket.socket(fileno=os.dup(control)),
        spec.totals,
        StoreBudget(account),
        serial=spec.serial,
        cpus=spec.cpus,
        gpus=spec.visible_gpus,
        group=group,
        own_variables=own_variables,
        context=ProcessContext(
            namespace=spec.namespace,
            actor_id=spec.worker_id if spec.is_actor else None,
            actor_name=spec.registration.name if spec.registration else "",
            class_name=spec.class_name,
            resources=spec.placement.resources,
            restarts=spec.restarts,
        ),
    )
    session.adopt(engine)
    session.watch(lambda package: engine.node.tell(messages.Imports(package)))
    if not spec.is_actor:
        engine.results.started = weakref.WeakSet()
    worker = _Worker(spec, engine)
    worker.connect(socket.socket(fileno=os.dup(first)))
    for fd in fds:
        os.close(fd)
    code = 0
    try:
        worker.serve()
        worker.depart("its last handle is gone")
    except ActorExit:
        worker.depart("it ended itself by exit_actor()")
    except SystemExit as error:
        code = process.exit_code(error)
        if spec.is_actor and code == 0:
            worker.depart("it ended itself with exit code 0")
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        worker.leave(code)


class _Connection(CallerConnection):
    """Connection to a caller, which the worker's main loop reads."""

    def __init__(self, sock: socket.socket, worker: _Worker, background: BackgroundThread) -> None:
        super().__init__(sock)
        self._worker = worker
        self._background = background

    def on_frame(self, frame: channel.Frame) -> None:
        if frame.kind == channel.CALLS:
            calls = [ArrivedCall(*call) for call in pickle.loads(frame.body.payload)]
        else:
            calls = [ArrivedCall(frame.call_id, "", None, frame.kind, frame.body)]
        self._worker.arrived(self, calls)

    def on_end(self) -> None:
        return  # the caller sends no more calls, but may still read answers

    def on_backlog(self) -> None:
        self._background.flush(self)
        if self.ended:
            self._worker.keep_writing(self)

    def tick(self) -> None:
        self._background.tick(self)

    def on_tick(self) -> bool:
        return self._worker.return_slow()


class _Worker:
    def __init__(self, spec: messages.WorkerSpec, engine: LocalEngine) -> None:
        self._spec = spec
        self._engine = engine
        self._background = engine.background
        self._waiter = engine.waiter
        self._poll = select.epoll()
        self._conns: dict[int, CallerConnection] = {}
        self._parted: list[CallerConnection] = []
        self._parting = threading.Lock()
        self._queue: deque[tuple[CallerConnection, ArrivedCall]] = deque()
        # Calls to a restarted actor may arrive before its constructor call. Such calls wait in this list.
        self._early: list[tuple[CallerConnection, ArrivedCall]] | None = [] if spec.is_actor else None
        self._leaving = False
        self._introduced = 0
        # Connection for handles of this worker's actor that are in this process itself.
        self._own_conn: _Connection | None = None
        self._waited_at = 0.0
        self._waiting = False  # True while the main thread waits for other processes
        # True while tasks that arrive behind a long call are returned to their owner.
        self._returns_slow = False
        self._fatal: BaseException | None = None
        self._main = threading.get_ident()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wake_fd, select.EPOLLIN)
        self._node = engine.node
        self._poll.register(self._node, select.EPOLLIN)
        parts = (spec, engine.codec, engine.waiter, engine.node, self.keep_writing)
        recorder = CallRecorder.if_wanted(engine.scratch_dir(), f"{spec.serial:x}")
        self._calls = Calls(*parts) if recorder is None else RecordedCalls(*parts, recorder=recorder)
        self._runner = self._way_of_running()
        engine.node.on_notice = self._noticed
        engine.is_cancelled = self._is_cancelled
        if spec.is_actor:
            engine.own_handle = self._own_handle
        else:
            engine.waiter.on_blocked = self._blocked

    def _way_of_running(self) -> Executor:
        conduct = self._spec.conduct
        if conduct.is_async:
            return AsyncioExecutor(self, self._calls, self._engine.futures, conduct.concurrency)
        if (conduct.concurrency.max_concurrency or 1) > 1 or conduct.concurrency.groups:
            return Threads(self, self._calls, conduct.concurrency)
        return SerialExecutor(
            self._calls, self._engine.results, self._node, can_raise=not self._spec.is_actor
        )

    def connect(self, sock: socket.socket) -> _Connection:
        """Serve the connection over `sock`, and return its object."""
        conn = _Connection(sock, self, self._background)
        self._conns[conn.fileno()] = conn
        self._poll.register(conn, select.EPOLLIN)
        return conn

    def _introduce(self, body: Packed) -> None:
        """Serve the connection whose descriptor is in `body`.

        If the descriptor could not be received, the caller finds the connection closed.
        """
        (handle,) = body.handles
        if isinstance(handle, channel.Descriptor):
            self.connect(socket.socket(fileno=handle.take()))

    def _is_cancelled(self) -> bool:
        # The background thread watches the connection too, because the main thread, which normally reads it,
        # may be busy with the call.
        self._node.try_read()
        return calling.get()[0] in self._calls.cancelled

    def _own_handle(self) -> tuple[ActorEndpoint, Interface]:
        """Return the endpoint (shared connection) and the interface for a new handle of
        this process's own actor.
        """
        interface = interface_of(self._calls.made_of, self._spec.name)
        known = known_endpoint(self._engine.mark, self._spec.worker_id)
        if known is not None:
            return known, interface
        own = self._own_conn
        if own is not None and self._conns.get(own.fileno()) is own:
            # Reading the connection closes it if no earlier handle uses it any more.
            self._read_caller(own.fileno())
            self.wake()  # the main thread must run the calls that were read
        with channel.descriptors_explained:
            ours, theirs = socket.socketpair()
        self._own_conn = self.connect(theirs)
        peer = ActorConnection(ours, self._spec.name, self._spec.worker_id)
        conduct = self._spec.conduct
        peer.home, peer.in_order = self._engine.mark, conduct.in_order
        peer.max_task_retries = conduct.max_task_retries
        if conduct.is_restarted:  # handles that are sent to other processes must reconnect
            peer.kind, peer.life = channel.RECONNECTING_ACTOR, self._spec.restarts
        return shared(ActorEndpoint(peer)), interface

    def arrived(self, conn: CallerConnection, calls: Sequence[ArrivedCall]) -> None:
        """Queue calls, or serve a new connection."""
        if calls[0].kind == channel.CONNECT and (body := calls[0].body) is not None:
            self._introduce(body)
        else:
            self._enqueue([(conn, call) for call in calls])
            if len(calls) > 1 and not self._spec.is_actor and not conn.ticking:
                self._calls.begun_at = SYSTEM.monotonic()
                conn.tick()
        if threading.get_ident() != self._main:  # the background thread has read the frame
            if self._waiting:
                self._return_unbegun(channel.BLOCKED)
            elif self._returns_slow and self._takes_long():
                self._return_unbegun(channel.SLOW)
            self.wake()

    def _enqueue(self, calls: list[tuple[CallerConnection, ArrivedCall]]) -> None:
        if self._early is None:
            self._queue.extend(calls)
        elif calls[0][1].kind == channel.INIT:
            early, self._early = self._early, None
            self._queue.extend([*calls, *early])
        else:
            self._early.extend(calls)

    def return_slow(self) -> bool:
        """Return queued tasks to their owner if the running task takes long.

        Return True if a further check is needed later.
        """
        if self._spec.is_actor or not (self._queue or self._calls.running):
            return False
        if not self._takes_long():
            return True
        self._returns_slow = True
        for conn in list(self._conns.values()):
            # Tasks that the owner sends from now on must be returned too.
            self._background.watch(conn, channel.SLOW)
            conn.try_read()
        self._return_unbegun(channel.SLOW)
        return False

    def _takes_long(self) -> bool:
        """Return True if the running call has taken more than 20 ms."""
        return bool(self._calls.running) and SYSTEM.monotonic() - self._calls.begun_at > _LONG_S

    def _stop_returning(self) -> None:
        """Stop returning arriving tasks to their owner, as the long call has ended."""
        self._returns_slow = False
        for conn in list(self._conns.values()):
            self._background.unwatch(conn, channel.SLOW)

    def _blocked(self, waiting: bool) -> None:
        """Return queued and arriving tasks to their owner while the main thread waits,
        perhaps for one of these tasks.
        """
        self._waiting = waiting
        note = self._background.watch if waiting else self._background.unwatch
        for conn in list(self._conns.values()):
            note(conn, channel.BLOCKED)
            conn.try_read()
        if waiting:
            self._return_unbegun(channel.BLOCKED)

    def _return_unbegun(self, why: str) -> None:
        """Return the queued small tasks to their owner, so that other workers can run them."""
        returned: dict[CallerConnection, list[int]] = {}
        kept = []
        while True:
            try:
                conn, call = self._queue.pop()
            except IndexError:
                break
            if call.body is None:
                returned.setdefault(conn, []).insert(0, call.call_id)
            else:
                kept.append((conn, call))
        self._queue.extend(reversed(kept))
        if kept and threading.get_ident() != self._main:
            self.wake()  # the main thread may have found the queue empty while the calls were removed
        for conn in returned or ([*self._conns.values()] if why == channel.BLOCKED else []):
            with contextlib.suppress(OSError):  # the owner has ended
                conn.send(channel.RETURNED, 0, Packed(pickle.dumps((returned.get(conn, []), why))))

    def wake(self) -> None:
        """Wake the main thread, so that it checks its queue and connections."""
        os.eventfd_write(self._wake_fd, 1)

    def end(self, error: BaseException) -> None:
        """End the worker as if `error` had been raised in the main thread."""
        self._calls.require_parent(self._spec.name, error)
        self._fatal = self._fatal or error
        self.wake()

    def serve(self) -> None:
        """Run calls until no process can send further calls, or the node ends the worker."""
        if isinstance(self._runner, AsyncioExecutor):
            self._runner.serve(self._poll.fileno(), self._turn)
        else:
            while self._begin() and self._read(-1):
                pass
        if self._fatal is not None:
            raise self._fatal

    def _turn(self) -> bool:
        self._calls.require_parent(self._spec.name)  # this process may be a fork that a coroutine made
        # this may not be the main thread: with concurrency groups, a different thread serves
        self._main = threading.get_ident()
        return self._read(0) and self._begin()

    def depart(self, reason: str) -> None:
        """Report to the node that this process ends cleanly, so that its actor is not restarted.

        The process stays until other processes have received its results, and the tasks that it started have
        ended.
        """
        engine = self._engine
        engine.owed.on_settled = self.wake
        stays = engine.owes()
        departing = messages.Departing(stays, reason)
        if not stays:  # no answer is needed, as the node reads this message before it handles the exit
            self._node.tell(departing)
            return
        with contextlib.suppress(NodeDiedError):
            # The node must know the reason before the connections close, because callers ask for the reason
            # when their connection has closed.
            self._waiter.get_without_lending(self._node.ask(departing))
        self._calls.forget()
        for fd, conn in list(self._conns.items()):  # later calls fail, as the actor has ended
            conn.flush_if_open()
            conn.flush_blocking(_FLUSH_S)
            self._poll.unregister(fd)
            del self._conns[fd]
            conn.close()
        while engine.owes() and self._read(-1):
            pass

    def _begin(self) -> bool:
        """Begin the queued calls. Return False if the worker must end."""
        queue, begin = self._queue, self._runner.begin
        while queue and self._fatal is None:
            try:
                conn, call = queue.popleft()
            except IndexError:  # the background thread has just returned the task to its owner
                break
            begin(conn, call)
            if self._returns_slow:
                self._stop_returning()
            if conn.has_posted and not self._goes_on(conn):
                conn.flush_if_open()
        if self._leaving or self._fatal is not None:
            return False
        abandoned = self._spec.is_actor and not self._conns and not self._runner.unfinished
        return not (abandoned and self._may_end())

    def _may_end(self) -> bool:
        """Return True if this actor, which has no handles left, may end. For a named actor, ask the node."""
        if not self._spec.conduct.is_registered:
            return True
        try:
            may_end: bool = self._node.demand(messages.Abandoned(self._introduced))
        except NodeDiedError:
            return True
        return may_end

    def _goes_on(self, conn: CallerConnection) -> bool:
        """Return True if the next queued call arrived over `conn`."""
        try:
            return self._queue[0][0] is conn
        except IndexError:
            return False

    def _read(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds for data, then read the connections that have data; -1 means no
        limit.

        Return False if the node has ended.
        """
        # Only the serial executor allows a busy poll, because the threads of other executors need the CPU.
        looks = timeout_s < 0 and isinstance(self._runner, SerialExecutor)
        for fd, _ in (self._arrived_shortly() if looks else []) or self._poll.poll(timeout_s):
            if fd == self._node.fileno():
                if self._node.try_read() and self._node.closed:
                    return False
            elif fd == self._wake_fd:
                os.eventfd_read(fd)
            else:
                self._read_caller(fd)
        return True

    def _arrived_shortly(self) -> list[tuple[int, int]]:
        """Return the events of a brief busy poll if the last calls arrived quickly, as sleeping would take
        longer; see `SHORT_WAIT_S`.
        """
        begun, before = SYSTEM.monotonic(), self._waited_at
        self._waited_at = begun
        if begun - before > 4 * channel.SHORT_WAIT_S:
            # After a long wait or call, a busy poll would waste time.
            return []
        end = begun + channel.SHORT_WAIT_S
        while SYSTEM.monotonic() < end:
            events = self._poll.poll(0)
            if events:
                return events
            os.sched_yield()
        return []

    def _read_caller(self, fd: int) -> None:
        conn = self._conns.get(fd)  # `conn` is None if another thread has just read the connection's end
        if conn is not None and conn.try_read() and conn.ended and self._conns.pop(fd, None) is conn:
            self._poll.unregister(fd)
            # The queued calls keep the connection alive. While answers are unsent, `_parted` also keeps it
            # alive.
            with self._parting:
                self._parted = [other for other in [*self._parted, conn] if other.has_backlog]

    def keep_writing(self, conn: CallerConnection) -> None:
        """Keep `conn`, which is no longer read, until its unsent answers are written."""
        if conn.has_backlog:
            with self._parting:
                self._parted.append(conn)

    def _noticed(self, message: Any, body: Packed) -> None:
        match message:
            case messages.Connect():
                self._introduced += 1
                self._introduce(body)
            case messages.EndWorker():
                self._leaving = True
                self.wake()
            case messages.Cancel(_, call_id, recursive):
                self._runner.cancelled(call_id, recursive)
            case _:
                self._engine.notified(message, body)

    def leave(self, code: int) -> None:
        """Finish threads and exit functions as a Python program does, send unsent data, and exit."""
        self._calls.forget()
        process.finish_program(_FLUSH_S)
        for conn in {*self._conns.values(), *self._parted, *(conn for conn, _ in self._queue)}:
            conn.flush_if_open()
            conn.flush_blocking(_FLUSH_S)
        self._background.finish(_FLUSH_S)
        os._exit(process.flush_streams(code))
