"""Node of a session, which is the process that supervises the session's workers.

    driver ──requests──▶ node ──forks by──▶ template ──▶ worker, worker, ...
       ▲                  ▲ └───────── control ────────────▲
       └── exits, output ─┘

The node has one thread with one event loop, and never receives the payload of a call. Orphaned descendants
become children of the node, so that processes that a worker started never outlive the node. When the driver
ends, all workers end except detached actors and the workers that they requested.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from trainkit.errors import ObjectLostError
from trainkit.runtime import signals
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.logs import SessionLogs, WorkerOutput
from trainkit.runtime.local.node.loop import Loop
from trainkit.runtime.local.node.memory_monitor import MemoryMonitor
from trainkit.runtime.local.node.named_actors import NamedActors
from trainkit.runtime.local.node.placement_groups import PlacementGroups
from trainkit.runtime.local.node.reclaim import LeaseReclaimer
from trainkit.runtime.local.node.restarts import Restarts
from trainkit.runtime.local.node.scheduler import IdleWorkers, ResourceScheduler
from trainkit.runtime.local.node.server import Clients, SessionServer
from trainkit.runtime.local.node.state import CallCounts, StateListing, WaitExplainer
from trainkit.runtime.local.node.supervisor import Supervisor
from trainkit.runtime.local.node.workers import WorkerProcesses
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.child_watch import ChildWatch, ended_children
from trainkit.runtime.local.wire import messages, sessions
from trainkit.runtime.local.wire.channel import NOTICE, REQUEST, Descriptor, Frame
from trainkit.runtime.placement import Ledger
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import LostHandle
from trainkit.settings import NUMBERS

LOG = "node.log"
"""File in the session's folder for the node's output after the driver has ended."""

_LOOK_S = 1.0
"""Interval for serving the queue even if no resources became free, because a request blocks other requests
only for a limited time.
"""
_LAST_WORDS_S = 0.25
"""Time for which the node outlives the last detached actor, so that callers can ask how the actor ended."""
_GRACE_S = 2.0
"""Longest wait for the end of a program's workers, as the kernel can't kill some processes at once."""


class Parts:
    """Objects that make the node's decisions. This class creates and connects them.

    Args:
        session: record of the session and its driver.
        loop: the node's event loop.
        notify: `Clients.notify`.
        make_processes: function that makes the `WorkerProcesses` from the table of workers and from a
            function that delivers events.
        unneeded: function called when the last detached actor has ended.
    """

    def __init__(
        self,
        session: records.SessionRecord,
        loop: Loop,
        notify: records.Notify,
        make_processes: Callable[[records.WorkerTable, records.Publish], WorkerProcesses],
        unneeded: Callable[[records.DetachedActorsEnded], None],
    ) -> None:
        spec, after = session.spec, loop.after
        self.events = records.Events()
        publish = self.events.publish
        self.table = table = records.WorkerTable()
        self.queue = queue = records.RequestQueue(publish)
        self.machine = machine = Ledger.of_machine(spec.totals)
        self.processes = make_processes(table, publish)
        self.restarts = Restarts(loop, table, self.processes.start, notify)
        self.supervisor = Supervisor(loop, table, queue, self.processes, self.restarts, publish)
        self.named_actors = NamedActors(table, self.restarts, spec.namespace, publish)
        self.groups = PlacementGroups(machine, queue, table, self.supervisor.kill)
        self.reclaimer = LeaseReclaimer(queue, self.groups, table, after, notify)
        idle = IdleWorkers(int(spec.totals.get("CPU", 1)), after, self.processes.end)
        self.scheduler = ResourceScheduler(queue, self.groups, table, idle, self.reclaimer, publish)
        self.explainer = WaitExplainer(queue, self.groups, table, spec.totals, after, notify)
        monitor = MemoryMonitor(table, after, self.supervisor.kill)
        self.events.connect(
            {
                records.RequestGranted: [self.processes.grant],
                records.RequestRefused: [self.supervisor.request_refused],
                records.RequestsWaiting: [
                    self.reclaimer.reclaim,
                    self.explainer.explain_later,
                    lambda _: after(_LOOK_S, queue.look_again),
                ],
                records.StartFailed: [self.scheduler.start_failed],
                records.WorkerStarted: [
                    self.restarts.worker_started,
                    self.named_actors.worker_started,
                    monitor.worker_started,
                ],
                records.WorkerExited: [self.scheduler.worker_exited, self.supervisor.worker_exited],
                records.WorkerEnded: [
                    self.scheduler.worker_ended,
                    self.named_actors.worker_ended,
                    self.restarts.worker_ended,
                ],
                records.DetachedActorsEnded: [unneeded],
            }
        )


class Node:
    """Node of a session.

    Args:
        session: record of the session and its driver.
        driver: socket to the driver.
    """

    def __init__(self, session: records.SessionRecord, driver: socket.socket) -> None:
        self._session = session
        # The pidfd reports the driver's end even if a child of the driver keeps the driver's socket open. The
        # pidfd is opened before the session's folder is made. If the folder were made first, it would stay
        # behind if the driver had ended already.
        self._driver_pidfd = _pidfd(session)
        self._loop = loop = Loop()
        self._clients = clients = Clients(loop, self._dispatch)
        logs = SessionLogs(session.node_id)
        self._output = output = WorkerOutput(logs, session.spec.log_to_driver, loop.after, clients.notify)
        parts = Parts(
            session,
            loop,
            clients.notify,
            lambda table, publish: WorkerProcesses(session, loop, table, clients, output, publish),
            lambda _: self._end_if_unneeded(),
        )
        self._table, self._queue, self._machine = parts.table, parts.queue, parts.machine
        self._processes, self._supervisor, self._restarts = parts.processes, parts.supervisor, parts.restarts
        self._scheduler, self._reclaimer, self._groups = parts.scheduler, parts.reclaimer, parts.groups
        self._named_actors = parts.named_actors
        self._listing = StateListing(session, parts.table, parts.queue, parts.groups, parts.explainer, logs)
        self._calls = CallCounts(session, loop.after, clients.notify)
        self._server = SessionServer(loop, clients, parts.table, session, self._dispatch)
        clients.add(records.DRIVER, driver, self._driver_left)
        loop.watch(self._driver_pidfd, self._driver_left)
        children = ChildWatch()
        loop.watch(children.fileno(), lambda: self._processes.collect(children.ended()))
        signal.signal(signal.SIGTERM, lambda *_: self._stop())
        self._is_told_to_end = False
        self._pending_fd = process.pending_fd(*NUMBERS)
        loop.watch(self._pending_fd, self._told_to_end)

    def warm(self, imports: frozenset[str]) -> None:
        """Start a template (a process that forks workers) with these imports,
        unless such a template exists.
        """
        self._processes.warm(imports)

    def run(self) -> None:
        """Serve requests until the node is stopped or the session is no longer needed."""
        self._loop.run(self._scheduler.serve)

    def _dispatch(self, serial: int, frame: Frame, may_ask: tuple[type, ...] = (object,)) -> None:
        """Handle a request or notice from a process.

        Raises:
            TypeError: the process may not send this message.
        """
        message = messages.unpacked(frame.body)
        if not isinstance(message, may_ask):
            raise TypeError(f"only the session's own processes may send this message: {message!r}")
        handles = [handle for handle in frame.body.handles if isinstance(handle, Descriptor)]
        answer = functools.partial(self._clients.answer, serial, frame.call_id)
        lost = next((handle for handle in frame.body.handles if isinstance(handle, LostHandle)), None)
        if lost is not None:
            why = f"the session's node could not serve the request: {lost.why}"
            self._refuse(message, why, answer if frame.kind == REQUEST else lambda _: None)
            return
        if frame.kind not in (REQUEST, NOTICE):
            raise TypeError(f"the node cannot handle a frame of kind {frame.kind}")
        match message:
            case messages.StartActor():
                if self._named_actors.register(message, answer):
                    self._restarts.remember(serial, message, frame.body)
                    self._scheduler.enqueue(serial, message, handles[0])
            case messages.ArgumentsThere(worker_id):
                self._queue.arguments_there(worker_id)
            case messages.FindActor():
                self._named_actors.find(message, handles, answer)
            case messages.RequestLease():
                self._scheduler.enqueue(serial, message, handles[0], answer)
            case messages.ReturnLease(worker_id, retire):
                self._scheduler.return_lease(worker_id, retire)
            case messages.Reserve():
                self._groups.reserve(serial, message, answer)
            case messages.FindGroup(name):
                self._groups.find(name, answer)
            case messages.AwaitGroup(group_id):
                self._groups.await_group(group_id, answer)
            case messages.Release(group_id):
                self._groups.release(group_id, answer)
                self._end_if_unneeded()
            case messages.Available():
                self._reclaimer.when_returned(serial, lambda: answer(self._machine.amounts()))
            case messages.State("calls"):
                self._calls.ask(answer)
            case messages.CallsCounted(calls):
                self._calls.counted(calls)
            case messages.State(kind):
                answer(self._listing.rows(kind))
            case messages.Reclaimed(count):
                self._reclaimer.reclaimed(serial, count)
            case messages.Blocked(waiting):
                self._scheduler.blocked(serial, waiting)
            case messages.Kill(worker_id, reason, restart):
                self._supervisor.kill(worker_id, reason, lambda _: answer(None), restart)
            case messages.Reconnect():
                self._supervisor.reconnect(serial, message, handles[0], answer)
            case messages.ReleaseActor(worker_id):
                self._restarts.let_go(worker_id)
            case messages.Cancel():
                self._supervisor.cancel(message)
            case messages.Abandoned(introduced):
                answer(self._supervisor.may_leave(serial, introduced))
            case messages.Imports(package):
                self._processes.learn_import(serial, package)
            case messages.Departing(stays, reason):
                self._supervisor.departs(serial, stays, reason)
                if stays:
                    answer(None)
            case messages.QueryExit():
                self._supervisor.query_exit(message, answer)
            case messages.ShownAs(name):
                self._table.show_as(serial, name)
            case messages.Shutdown() if serial == records.DRIVER:
                self._driver_left(lambda: answer(True))
            case messages.Shutdown():
                self._stop()
            case _:
                raise TypeError(f"the node cannot handle {message!r}")

    def _refuse(self, message: Any, why: str, answer: records.Answer) -> None:
        """Refuse a request whose file descriptors this process could not receive."""
        if isinstance(message, messages.StartActor):
            self._supervisor.never_started(message.worker_id, ExitRecord(reason=why))
        answer(None if isinstance(message, messages.Reconnect) else ObjectLostError(why))

    def _stop(self) -> None:
        self._output.stop_counting()
        self._loop.stop()

    def _told_to_end(self) -> None:
        """Handle a signal. The signal stays pending, so that workers see that the whole session received the
        signal.
        """
        seen = signal.sigpending()
        self._loop.unwatch(self._pending_fd)
        self._loop.after(signals.KEPT_S, lambda: self._take_pending(seen))

    def _take_pending(self, seen: set[signal.Signals]) -> None:
        # A signal that arrives after the first signal stays pending for the same time.
        self._is_told_to_end |= signal.SIGTERM in seen
        signals.take_pending(seen)
        self._loop.watch(self._pending_fd, self._told_to_end)

    def _driver_left(self, then: Callable[[], None] = lambda: None) -> None:
        """End the program's workers, then call `then`. Stop the node if no detached actor or group exists."""
        self._is_told_to_end |= signal.SIGTERM in signal.sigpending()
        if self._is_told_to_end or not self._outlives_its_program():
            self._stop()
        if self._loop.stopping or self._session.driver_gone:
            return
        self._output.stop_counting()
        self._session.driver_gone = True
        signals.keep_no_longer()
        self._loop.unwatch(self._driver_pidfd)
        if not self._may_stay():
            self._stop()
            return

        def done() -> None:
            then()
            self._clients.drop(records.DRIVER)

        self._end_program(done)

    def _end_if_unneeded(self) -> None:
        if self._session.driver_gone:
            self._loop.after(_LAST_WORDS_S, lambda: None if self._outlives_its_program() else self._stop())

    def _outlives_its_program(self) -> bool:
        return self._named_actors.has_detached() or self._groups.has_detached()

    def _may_stay(self) -> bool:
        """Record the program's end in the session's folder, and redirect output to a file.

        Return False if a file can't be written. The node's output is redirected because a reader of the
        program's output, such as a pipe, waits until all processes have closed the output.
        """
        try:
            self._server.write_card()
            path = self._session.folder / LOG
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:  # writing fails if the session's folder was removed or the disk is full
            sys.stderr.write(f"trainkit: detached actors end with the program (can't write {LOG}: {error})\n")
            return False
        self._processes.redirect(fd)
        process.take_output(fd)
        os.close(fd)
        return True

    def _end_program(self, then: Callable[[], None]) -> None:
        """End all workers that belong to the program that started the session.

        Args:
            then: function called once, when all these workers are dead, or after 2 s if the kernel can't end
                some yet.
        """
        staying = self._table.belonging_to(records.NOBODY)
        doomed = {worker.worker_id for worker in self._table.all() if worker.serial not in staying}
        self._scheduler.give_up(records.DRIVER, "the program that requested it has ended")
        waiting = [then]

        def done() -> None:
            while waiting:
                waiting.pop()()

        def ended(worker_id: int, _: ExitRecord) -> None:
            doomed.discard(worker_id)
            if not doomed:
                done()

        if not doomed:
            done()
        self._loop.after(_GRACE_S, done)
        for worker_id in list(doomed):
            then_ended = functools.partial(ended, worker_id)
            self._supervisor.kill(worker_id, "its program has ended", then_ended)

    def end_everything(self) -> None:
        """Kill all descendants.

        Return when no descendant is left, or when their number has not decreased for `process.END_S`.
        """
        signal.set_wakeup_fd(-1)

        def left() -> list[int]:
            for _ in ended_children():
                pass
            return process.descendants(os.getpid())

        if stuck := process.end(left, process.END_S):
            sys.stderr.write(f"trainkit: these processes could not be ended: {stuck}\n")
            return
        self._processes.drain()
        # After `trainkit stop`, a living driver removes the folder itself. Before that, it reads from the
        # folder the name of the process that ended the session.
        if self._session.driver_gone or not sessions.ended_by(self._session.folder):
            process.remove_folder(self._session.folder)


def _pidfd(session: records.SessionRecord) -> int:
    try:
        return os.pidfd_open(session.driver_pid)
    except ProcessLookupError:  # the driver has ended already, so no session is needed
        process.remove_folder(session.folder)  # the folder may exist already, as the driver may have made it
        os._exit(0)
