"""Table of the workers: their start from templates, and the consequences of their ends."""

from __future__ import annotations

import functools
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.errors import TrainkitError
from trainkit.runtime.local.node.loop import try_send
from trainkit.runtime.local.node.records import (
    NOBODY,
    EndedActors,
    ExitRecords,
    OutputPipe,
    WorkerRecord,
    actor_row,
    lost_connection,
)
from trainkit.runtime.local.node.restarts import Restarts
from trainkit.runtime.local.node.templates import Templates
from trainkit.runtime.local.system import process
from trainkit.runtime.local.wire.channel import Descriptor
from trainkit.runtime.local.wire.frames import NOTICE, Frame
from trainkit.runtime.local.wire.messages import (
    Cancel,
    Exited,
    Forked,
    ForkFailed,
    ForkWorker,
    Ready,
    Unusable,
    Waits,
    WorkerSpec,
    packed,
    unpacked,
)
from trainkit.runtime.placement import Allocation
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.specs import Placement, Registration

if TYPE_CHECKING:
    from trainkit.runtime.local.node.node import Node

_SWEEP_S = 0.05
_REVIVE_S = 0.2
"""So often it is tried to make an actor anew that there was no descriptor for."""

_DRIVER = 1


@dataclass(frozen=True)
class StartingWorker:
    """A worker that a template was asked for.

    Attributes:
        imports: the template's.
        spare: copies of what was sent with the request, if the template may yet prove unusable.
    """

    worker: WorkerRecord
    imports: frozenset[str]
    spec: WorkerSpec
    spare: list[Descriptor]


class WorkerTable:
    """All processes of the session.

    Args:
        node: whose loop it lives in.
        plain: the connection of the template that imports nothing.
        plain_pid: its pid.
    """

    def __init__(self, node: Node, plain: socket.socket, plain_pid: int) -> None:
        self._node = node
        self._plain_pid = plain_pid
        self._workers: dict[int, WorkerRecord] = {}
        self._by_pid: dict[int, WorkerRecord] = {}
        self._by_serial: dict[int, WorkerRecord] = {}
        self._unborn: dict[int, StartingWorker] = {}
        self._exit_records = ExitRecords()
        self.dead = EndedActors()
        self._early: dict[int, list[Cancel]] = {}
        self._next_serial = _DRIVER
        self._sweeping = False
        self.restarts = Restarts(node)
        self.templates = Templates(node.connection, self._from_template, self._template_gone, plain)

    def show_as(self, serial: int, name: str) -> None:
        """Show the output of the process with that number under `name`."""
        worker = self._by_serial.get(serial)
        if worker is not None:
            worker.shown_as = name

    # births

    def next_serial(self) -> int:
        """A number for the next process."""
        self._next_serial += 1
        return self._next_serial

    def start(
        self,
        spec: WorkerSpec,
        first: Descriptor,
        *,
        owner: int,
        placement: Placement,
        allocation: Allocation,
        ledger_group: tuple[int, int] | None,
        delay_s: float = 0.0,
        registration: Registration | None = None,
        class_name: str = "",
    ) -> None:
        """Fork the worker of `spec`.

        Args:
            spec: what it is to be.
            first: its first connection.
            owner: number of the process that asked for it.
            placement: what was asked for.
            allocation: what it holds.
            ledger_group: the group and bundle that this was taken from; None for the machine.
            delay_s: how long to wait before.
            registration: of an actor that more than its handles reach.
            class_name: of an actor.

        Raises:
            OSError: there is no descriptor left for it; nothing of it is.
        """
        ours, theirs = socket.socketpair()
        pipes = [[Descriptor(fd) for fd in os.pipe2(os.O_CLOEXEC)] for _ in range(2)]
        account = Descriptor(os.dup(self._node.account_fd))
        worker = WorkerRecord(
            worker_id=spec.worker_id,
            serial=spec.serial,
            name=spec.name,
            owner=owner,
            placement=placement,
            surroundings=spec.surroundings,
            allocation=allocation,
            ledger_group=ledger_group,
            control=self._node.add_client(spec.serial, ours),
            stdout=OutputPipe(
                pipes[0][0].take(),
                lambda lines: self._node.print_lines(worker, False, lines),
                lambda data: self._node.keep_output(worker, "out", data),
            ),
            stderr=OutputPipe(
                pipes[1][0].take(),
                lambda lines: self._node.print_lines(worker, True, lines),
                lambda data: self._node.keep_output(worker, "err", data),
            ),
            oom_kills_before=process.oom_kills(),
            restarts=spec.restarts,
            is_actor=spec.is_actor,
            class_name=class_name,
            registration=registration,
        )
        self._workers[spec.worker_id] = worker
        self._by_serial[spec.serial] = worker
        self.restarts.started(spec)
        for pipe in (worker.stdout, worker.stderr):
            self._node.watch(pipe.fd, functools.partial(self._read, pipe))
        handles = [Descriptor(theirs.detach()), first, pipes[0][1], pipes[1][1], account]
        if delay_s:
            self._node.after(delay_s, lambda: self._fork_late(worker, spec, handles))
            return
        try:
            self._fork(worker, spec, handles)
        except OSError:
            del self._workers[spec.worker_id]
            self._close(worker)
            raise

    def _fork_late(self, worker: WorkerRecord, spec: WorkerSpec, handles: list[Descriptor]) -> None:
        if worker.ending:
            self._bury(worker, self._order_of(worker))
            return
        try:
            self._fork(worker, spec, handles)
        except OSError as error:  # no descriptor left
            self._bury(worker, ExitRecord(reason=str(error)))

    def _fork(self, worker: WorkerRecord, spec: WorkerSpec, handles: list[Descriptor]) -> None:
        imports, template = self.templates.for_worker(spec.surroundings.preload, _kind(worker))
        spare = [] if self.templates.can_fork(imports) else [handle.copy() for handle in handles]
        self._node.registry.started(worker)  # its connections lie there when the process looks for them
        # By its number: a lease may pass on, and with it the id, before the template has answered.
        self._unborn[spec.serial] = StartingWorker(worker, imports, spec, spare)
        try_send(template, NOTICE, 0, packed(ForkWorker(spec), handles))
        for early in self._early.pop(spec.worker_id, ()):
            self.cancel(early)
        self._node.guard.started(worker)

    def imports(self, serial: int, package: str) -> None:
        """Note that a worker imports what its template could have: the next of its kind is forked with it."""
        worker = self._by_serial.get(serial)
        if worker is not None:
            self.templates.learn(_kind(worker), worker.surroundings.preload | {package})

    def _read(self, pipe: OutputPipe) -> None:
        if not pipe.read():
            self._node.unwatch(pipe.fd)

    def _from_template(self, imports: frozenset[str], frame: Frame) -> None:
        match unpacked(frame.body):
            case Forked(0, _) | ForkFailed(0, _):  # a template: if it failed, its connection closes
                pass
            case Forked(serial, pid):
                worker = self._unborn.pop(serial).worker
                worker.pid = pid
                self._by_pid[pid] = worker
                if worker.ending:
                    process.kill(pid)
                elif worker.interrupted:
                    process.kill(pid, signal.SIGINT)
            case ForkFailed(serial, reason):
                worker = self._unborn.pop(serial).worker
                self._bury(worker, self._order_of(worker) if worker.ending else ExitRecord(reason=reason))
            case Exited(pid, status):
                self._ended(pid, status)
            case Ready():
                self.templates.is_ready(imports)
            case Unusable(reason):
                self.templates.unusable[imports] = reason
                self._node.notify(
                    _DRIVER,
                    Waits(
                        f"workers start more slowly from now on, without imports made beforehand: {reason}"
                    ),
                )
            case message:
                raise TypeError(f"the node cannot handle {message!r}")

    def _template_gone(self, imports: frozenset[str]) -> None:
        if not imports:
            raise RuntimeError("the template process ended, so no worker can be started any more")
        why = self.templates.unusable.get(imports, f"the template with {', '.join(sorted(imports))} ended")
        for serial, unborn in list(self._unborn.items()):
            if unborn.imports == imports:
                del self._unborn[serial]
                if unborn.spare:  # it was only getting ready: the plain template can do without it
                    _, plain = self.templates.for_worker(frozenset())
                    self._unborn[serial] = StartingWorker(unborn.worker, frozenset(), unborn.spec, [])
                    try_send(plain, NOTICE, 0, packed(ForkWorker(unborn.spec), unborn.spare))
                else:
                    self._bury(unborn.worker, ExitRecord(reason=why))

    # deaths

    def worker(self, worker_id: int) -> WorkerRecord | None:
        """The living worker of that id."""
        return self._workers.get(worker_id)

    def by_serial(self, serial: int) -> WorkerRecord | None:
        """Return the worker whose process has that number in the session, until its end is dealt with."""
        return self._by_serial.get(serial)

    def workers(self) -> list[WorkerRecord]:
        """All living workers."""
        return list(self._workers.values())

    def rename(self, worker: WorkerRecord, worker_id: int) -> None:
        """Know a reused worker by the id of its new lease."""
        del self._workers[worker.worker_id]
        worker.worker_id = worker_id
        self._workers[worker_id] = worker

    def kill(
        self, worker_id: int, reason: str, then: Callable[[ExitRecord], None], restart: bool = False
    ) -> None:
        """End a worker at once; `then` is called when it is dead. With `restart` it may be made anew."""
        worker = self._workers.get(worker_id)
        if worker is None:
            if not (restart and self.restarts.record(worker_id)):  # else there is no process to end yet
                self._node.stores.withdraw(worker_id)
            then(self._exit_records.get(worker_id, ExitRecord()))
            return
        worker.may_restart = restart and (worker.may_restart or not worker.ending)
        worker.ending = worker.ending or reason
        worker.inquiries.append(then)
        if worker.pid is not None:  # else it is killed as soon as it is born
            process.kill(worker.pid)

    def cancel(self, message: Cancel) -> None:
        """Hand a cancellation to its worker, and interrupt what that is doing, so that it looks at it."""
        worker = self._workers.get(message.worker_id)
        if worker is not None:
            try_send(worker.control, NOTICE, 0, packed(message))
            if worker.pid is not None:
                process.kill(worker.pid, signal.SIGINT)
            else:  # it may run already, only that its template has not said so yet
                worker.interrupted = True
        elif self._node.stores.is_queued(message.worker_id):
            self._early.setdefault(message.worker_id, []).append(message)

    def is_leaving(self, serial: int, reason: str) -> None:
        """A worker ends of its own will."""
        worker = self._by_serial.get(serial)
        if worker is not None:
            worker.ending = worker.ending or reason

    def departs(self, serial: int, stays: bool) -> None:
        """Note that a worker ends in order. An actor is over, also if its process stays for its debts."""
        worker = self._by_serial.get(serial)
        if worker is None:
            return
        worker.departs = True
        if stays and worker.is_actor:
            end = self._exit(worker, 0)
            self._end_role(worker, end)
            self._node.stores.release(worker)
            self._node.stores.groups.owner_ended(worker.serial)
            for answer in worker.inquiries:
                answer(end)
            worker.inquiries.clear()
            self.restarts.ended(worker.worker_id, end)
            worker.worker_id, worker.is_actor, worker.registration = -worker.serial, False, None
            self._workers[worker.worker_id] = worker

    def _end_role(self, worker: WorkerRecord, end: ExitRecord) -> None:
        self._workers.pop(worker.worker_id, None)  # gone if its next process could not be made
        self._exit_records[worker.worker_id] = end
        if worker.is_actor:
            self.dead.add(actor_row(worker), end)
        self._node.registry.ended(worker.worker_id)

    def heir(self, worker: WorkerRecord) -> int:
        """Return who has what a worker leaves: the program, or nobody if a detached actor began it all."""
        seen = {worker.serial}
        owner = worker.owner
        while owner not in (_DRIVER, NOBODY):
            above = self._by_serial.get(owner)
            if above is None or owner in seen:
                return _DRIVER
            seen.add(owner)
            owner = above.owner
        return owner

    def may_end(self, serial: int, introduced: int) -> bool:
        """Return whether an actor that nobody holds is to end; not if a connection is on its way to it."""
        worker = self._by_serial.get(serial)
        if worker is None or worker.introduced == introduced:
            self.is_leaving(serial, "its last handle is gone")
            return True
        return False

    def inquire(self, worker_id: int, answer: Callable[[Any], None], life: int | None = None) -> None:
        """Say how a worker ended, once it has; of an actor that is made anew, how that `life` of it did.

        Who asks has found its connection closed. If the worker lives, it had no descriptor left for that.
        """
        worker = self.settled(worker_id)
        record = self.restarts.record(worker_id)
        if record is not None and life is not None and life < record.restarts:
            answer(record.last_exit)
        elif worker is not None and self.lives(worker):
            answer(lost_connection(worker))
        elif worker is not None:
            worker.inquiries.append(answer)
        elif worker_id in self._exit_records:
            answer(self._exit_records[worker_id])
        elif not self._node.stores.inquire_queued(worker_id, answer):
            answer(self._exit_records.unknown())

    def settled(self, worker_id: int) -> WorkerRecord | None:
        """The living worker of that id, once what it has told the node so far is taken note of."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            worker.control.try_read()
        return self._workers.get(worker_id)

    def lives(self, worker: WorkerRecord) -> bool:
        """Return whether a worker goes on: it has not ended, and is not about to."""
        over = worker.pid is None or worker.ending or worker.departs or worker.control.closed
        return not over and not process.is_ending(worker.pid or 0)

    def never_started(self, worker_id: int, exit_: ExitRecord) -> None:
        """Remember how a worker ended that never was one."""
        self._exit_records[worker_id] = exit_
        self._early.pop(worker_id, None)
        self.restarts.ended(worker_id, exit_)
        self._node.registry.ended(worker_id)

    def reap(self) -> None:
        """Collect children that ended: orphans, and the workers of a template that was killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._plain_pid:
                raise RuntimeError("the template process ended, so no worker can be started any more")
            self._ended(pid, status)

    def _ended(self, pid: int, status: int) -> None:
        worker = self._by_pid.pop(pid, None)
        if worker is None:
            return
        code = os.waitstatus_to_exitcode(status)
        for pipe in (worker.stdout, worker.stderr):
            pipe.drain()
        self._node.print_rest(worker)
        self._bury(worker, self._exit(worker, code))
        if not self._sweeping:
            self._sweeping = True
            self._node.after(_SWEEP_S, self._sweep)

    def _exit(self, worker: WorkerRecord, code: int) -> ExitRecord:
        return ExitRecord(
            pid=worker.pid,
            code=code,
            requested=bool(worker.ending),
            reason=worker.ending,
            may_restart=worker.may_restart,
            stderr_tail="\n".join(worker.stderr.tail),
            log_files=self._node.logs.files_of(worker),
            out_of_memory=code == -signal.SIGKILL and process.oom_kills() > worker.oom_kills_before,
        )

    def _bury(self, worker: WorkerRecord, exit_: ExitRecord) -> None:
        heir = self.heir(worker)
        in_order = worker.departs and exit_.code == 0
        self._node.stores.blocked(worker.serial, False)  # what it lent while it waited is held again
        self._close(worker)  # which leaves descriptors for the process that comes next
        if in_order:
            self._node.stores.bequeath(worker, heir)
        self._node.stores.forsake(worker.serial, f"{worker.name}, which asked for it, has ended")
        for orphan in self.workers():
            if orphan.owner != worker.serial:
                continue
            if in_order:
                self._inherit(orphan, heir)
            else:
                self.kill(
                    orphan.worker_id, f"its owner {worker.name} (pid {worker.pid}) ended", lambda _: None
                )
        self._revive_or_end(worker, exit_)

    def _revive_or_end(self, worker: WorkerRecord, exit_: ExitRecord) -> None:
        try:
            end = self.restarts.revive(worker, exit_)
        except (OSError, TrainkitError) as error:  # no descriptor left: once there are some again
            if worker.pid is not None:
                text = f"{worker.name} (pid {worker.pid}) can't be made anew yet, and waits: {error}"
                self._node.notify(_DRIVER, Waits(text))
            self._workers[worker.worker_id] = worker
            worker.pid, worker.restarts = None, worker.restarts or 1
            self._node.after(_REVIVE_S, functools.partial(self._revive_again, worker, exit_))
            return
        if end is not None:
            self._end_role(worker, end)
        self._node.stores.ended(worker)
        inquiries, worker.inquiries = worker.inquiries, []
        for answer in inquiries:
            answer(exit_)
        if end is not None:
            self.restarts.ended(worker.worker_id, end)

    def _revive_again(self, worker: WorkerRecord, exit_: ExitRecord) -> None:
        self._revive_or_end(worker, self._order_of(worker) if worker.ending else exit_)

    def _inherit(self, orphan: WorkerRecord, heir: int) -> None:
        """Go on with what a worker that ended in order had: actors live as long as their handles."""
        if not orphan.is_actor:
            self._node.stores.return_lease(orphan.worker_id, False)
        else:
            orphan.owner = heir
            self.restarts.let_go(orphan.worker_id)

    def _close(self, worker: WorkerRecord) -> None:
        """Close all that leads to a worker's process."""
        for pipe in (worker.stdout, worker.stderr):
            self._node.unwatch(pipe.fd)
            pipe.close()
        self._node.logs.forget(worker)
        self._node.drop_client(worker.serial)
        self._by_serial.pop(worker.serial, None)

    def _order_of(self, worker: WorkerRecord) -> ExitRecord:
        """The end of a worker that was to be ended before it had a process."""
        return ExitRecord(requested=True, reason=worker.ending, may_restart=worker.may_restart)

    def drain(self) -> None:
        """Take what workers printed last."""
        for worker in self.workers():
            for pipe in (worker.stdout, worker.stderr):
                pipe.drain()

    def _sweep(self) -> None:
        """Kill what ended workers left behind: it has become this process's own child."""
        self._sweeping = False
        found = False
        for pid in process.children(os.getpid()):
            if pid == self._plain_pid or pid in self._by_pid:
                continue
            process.kill(pid)
            found = True
        if found:  # what it had started in turn comes next
            self._sweeping = True
            self._node.after(_SWEEP_S, self._sweep)


def _kind(worker: WorkerRecord) -> str:
    """Return what a worker has in common with others that run the same code."""
    return worker.class_name or worker.name
