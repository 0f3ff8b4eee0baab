"""Worker processes, which are forked from templates, signalled, and reaped when they end.

A template is a process that has imported packages and forks workers. A session has a template for each set of
imports that enough workers need.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import InitVar, dataclass, field, replace
from typing import NamedTuple

from trainkit.errors import ObjectLostError
from trainkit.resources import QUANTUM
from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.logs import OutputPipe, WorkerOutput
from trainkit.runtime.local.node.loop import Loop, try_send
from trainkit.runtime.local.node.server import Clients
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.child_watch import ended_children
from trainkit.runtime.local.system.devices import gpu_name
from trainkit.runtime.local.wire import messages
from trainkit.runtime.local.wire.channel import NOTICE, Connection, Descriptor, Frame
from trainkit.runtime.placement import Allocation
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.session import HEAVY, SLOW
from trainkit.runtime.specs import PlacementGroupId

_SWEEP_S = 0.05
_AGAIN_S = 1.0
_MOST_MUTE_ENDS = 3

Imports = frozenset[str]

_KINDS = 256
"""Number of kinds of workers (workers that run the same code) whose imports are remembered."""

_WORTH_IT = 4
"""Number of workers with the same imports from which on a template with these imports is worth its memory."""


def choose(wanted: Imports, existing: Collection[Imports], ready: Collection[Imports]) -> Imports:
    """Choose the template from which to fork a worker that probably needs the imports `wanted`, and return
    the imports of this template.

    Slow imports take seconds. A template that has all wanted slow imports is chosen even if it lacks other
    imports, because a new template would save the worker only tenths of a second. If a template is still
    importing a heavy package, the worker waits for the template, because an import by the worker itself would
    take at least as long.

    Args:
        wanted: imports that the worker probably needs.
        existing: imports of all templates, including templates that are still importing.
        ready: imports of the templates that can fork now.
    """
    slow = wanted & SLOW
    if wanted in ready or not slow:
        return wanted
    near = [have for have in existing if slow <= have <= wanted]
    best = max(near, key=lambda have: (have in ready, len(have)), default=slow)
    return wanted if wanted in existing and (wanted - best) & HEAVY else best


@dataclass(eq=False)
class Templates:
    """Connections to the template processes, by the imports of each template.

    Args:
        connect: function that makes a connection, which the node's event loop reads.
        on_frame: function called for each frame from a template, with the template's imports and the frame.
        on_gone: function called with the imports of a template that has ended.
        plain: socket to the plain template, which has no imports.
    """

    _connect: Callable[[socket.socket, Callable[[Frame], None], Callable[[], None]], Connection]
    _on_frame: Callable[[Imports, Frame], None]
    _on_gone: Callable[[Imports], None]
    plain: InitVar[socket.socket]
    _learned: dict[str, Imports] = field(default_factory=dict)
    _asked: Counter[Imports] = field(default_factory=Counter)
    _conns: dict[Imports, Connection] = field(default_factory=dict)
    _unusable: dict[Imports, str] = field(default_factory=dict)
    """Reason why a template failed, by the imports of the template."""
    _ready: set[Imports] = field(default_factory=lambda: {frozenset()})

    def __post_init__(self, plain: socket.socket) -> None:
        self._add(frozenset(), plain)

    @property
    def has_plain(self) -> bool:
        """True if the plain template is running."""
        return frozenset() in self._conns

    def replace_plain(self, sock: socket.socket) -> None:
        """Use the template at `sock` in place of the plain template, which has ended."""
        self._add(frozenset(), sock)
        self._ready.add(frozenset())

    def _add(self, imports: Imports, sock: socket.socket) -> None:
        on_frame = functools.partial(self._on_frame, imports)
        self._conns[imports] = self._connect(sock, on_frame, functools.partial(self._gone, imports))

    def _gone(self, imports: Imports) -> None:
        self._conns.pop(imports, None)
        self._ready.discard(imports)
        self._on_gone(imports)

    def mark_ready(self, imports: Imports) -> None:
        """Record that a template has finished its imports."""
        self._ready.add(imports)

    def mark_unusable(self, imports: Imports, reason: str) -> None:
        """Record that a template with these imports failed."""
        self._unusable[imports] = reason

    def warm(self, imports: Imports) -> None:
        """Start a template with exactly these imports, unless such a template exists or has failed.

        Raises:
            OSError: the machine has no resources for a new template.
        """
        if imports in self._conns or imports in self._unusable or not self.has_plain:
            return
        # The template that has most of these imports already forks the new template, so that the new template
        # has the least to import.
        base = max((have for have in self._conns if have <= imports), key=len)
        ours, theirs = socket.socketpair()
        self._add(imports, ours)
        order = messages.packed(messages.ForkTemplate(imports), [Descriptor(theirs.detach())])
        try_send(self._conns[base], NOTICE, 0, order)

    def connections(self) -> list[Connection]:
        """Return the connections to all templates."""
        return list(self._conns.values())

    def learn(self, kind: str, imports: Imports) -> Imports:
        """Record the packages that a worker of this kind has imported itself.

        Return the imports of a template that suits workers of this kind.
        """
        known = self._learned.pop(kind, frozenset())
        self._learned[kind] = wanted = known | imports
        if len(self._learned) > _KINDS:
            del self._learned[next(iter(self._learned))]
        return choose(wanted, self._conns, self._ready)

    def learned(self, kind: str) -> Imports:
        """Return the packages that workers of this kind have imported themselves, if pandas or sklearn is
        among them; else an empty set.
        """
        wanted = self._learned.get(kind, frozenset())
        return wanted if wanted & (HEAVY - SLOW) else frozenset()

    def for_worker(self, wanted: Imports, kind: str = "") -> tuple[Imports, Connection]:
        """Return the imports of the template from which to fork a worker of `kind`, and the
        connection to the template.

        The worker's owner has imported `wanted`.

        Raises:
            OSError: the machine has no resources for a new template.
        """
        wanted |= (known := self._learned.get(kind, frozenset()))
        self._asked[wanted] += 1
        if wanted & SLOW and self._asked[wanted] >= _WORTH_IT:
            # The new template leaves out heavy packages that workers of this kind have not imported so far.
            self.warm(wanted - (HEAVY - SLOW - known))
        chosen = choose(wanted, self._conns, self._ready)
        self.warm(chosen)
        if chosen in self._unusable:
            chosen = frozenset()
        return chosen, self._conns[chosen]


class StartingWorker(NamedTuple):
    """Worker that a template was asked to fork.

    Attributes:
        imports: imports of the template.
        spare: copies of the request's descriptors, to be sent to a different template if this template ends.
    """

    worker: records.WorkerRecord
    imports: Imports
    spare: list[Descriptor]


@dataclass(eq=False)
class WorkerProcesses:
    """Processes of the workers.

    Args:
        session: record of the session and its driver.
        loop: the node's event loop.
        table: the living workers.
        clients: connections of the processes that can make requests.
        output: output of the workers.
        publish: function that delivers an event.
    """

    _session: records.SessionRecord
    _loop: Loop
    _table: records.WorkerTable
    _clients: Clients
    _output: WorkerOutput
    _publish: records.Publish
    _by_pid: dict[int, records.WorkerRecord] = field(default_factory=dict)
    _starting: dict[int, StartingWorker] = field(default_factory=dict)
    _early: dict[int, list[messages.Cancel]] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)
    """Process numbers of workers that could not be started yet for lack of memory, processes or
    descriptors.
    """
    _refused_templates: set[Imports] = field(default_factory=set)
    _told_refusal: bool = False
    _mute_ends: int = 0
    """Number of consecutive plain templates that ended without sending a message."""

    def __post_init__(self) -> None:
        self._templates = Templates(
            self._loop.connection, self._from_template, self._template_gone, self._session.template
        )

    def warm(self, imports: Imports) -> None:
        """Start a template with these imports, now or when the machine has resources for it."""
        try:
            self._templates.warm(imports)
        except OSError as error:
            self._refused_templates.add(imports)
            self._wait_for_room(str(error))

    def grant(self, event: records.RequestGranted) -> None:
        """Start the worker of a granted request, or connect the client to an idle worker."""
        request = event.request
        message, first = request.start, request.first
        if message is None or first is None:
            raise TypeError(f"a request without a process cannot be started: {request.what}")
        if event.idle is not None:
            # If the worker dies now, its caller finds the connection closed, and asks for the worker's exit
            # record by the new id.
            try_send(event.idle.control, NOTICE, 0, messages.packed(messages.Connect(), [first]))
            return
        try:
            self.start(
                self._spec_of(event, message),
                first,
                owner=request.owner,
                allocation=event.allocation,
                ledger_group=event.where,
            )
        except OSError as error:  # the node has no descriptor left
            self._publish(records.StartFailed(event, str(error)))

    def _spec_of(
        self, event: records.RequestGranted, message: messages.StartActor | messages.RequestLease
    ) -> messages.WorkerSpec:
        placement, session = message.placement, self._session.spec
        group = None
        if event.where is not None:
            captures = placement.group is not None and placement.group.capture
            group = PlacementGroupId(group=event.where[0], bundle=event.where[1], capture=captures)
        gpus = {index: share / QUANTUM for index, share in sorted(event.allocation.gpus.items())}
        # The session's variables are added only for workers of the driver, as these workers pass the
        # variables on to their own workers.
        of_session = session if event.request.client == records.DRIVER else None
        spec = messages.WorkerSpec(
            worker_id=message.worker_id,
            serial=self._table.next_serial(),
            name=message.name,
            is_actor=isinstance(message, messages.StartActor),
            cpus=event.allocation.amounts.get("CPU", 0) / QUANTUM,
            gpus=gpus,
            visible_gpus=[gpu_name(index, self._session.gpus) for index in gpus],
            totals=dict(session.totals),
            group=group,
            group_bundles=event.bundles,
            env={**of_session.environment, **placement.env} if of_session else placement.env,
            cwd=placement.cwd or (of_session and of_session.working_dir) or message.environment.cwd,
            environment=message.environment,
            placement=placement,
            namespace=session.namespace,
        )
        if not isinstance(message, messages.StartActor):
            return spec
        return spec._replace(
            conduct=message.conduct, class_name=message.class_name, registration=message.registration
        )

    def start(
        self,
        spec: messages.WorkerSpec,
        first: Descriptor,
        *,
        owner: int,
        allocation: Allocation,
        ledger_group: tuple[int, int] | None,
        delay_s: float = 0.0,
    ) -> None:
        """Fork the worker that `spec` describes.

        Args:
            spec: specification of the worker.
            first: first connection of the worker.
            owner: number of the process that requested the worker.
            allocation: resources reserved for the worker.
            ledger_group: the group and bundle that `allocation` was taken from; None for the machine.
            delay_s: delay before the fork, in seconds.

        Raises:
            OSError: no descriptor is left for the worker; nothing was started.
        """
        ours, theirs = socket.socketpair()
        pipes = [[Descriptor(fd) for fd in os.pipe2(os.O_CLOEXEC)] for _ in range(2)]
        account = Descriptor(os.dup(self._session.account_fd))
        stdout = self._output.pipe(pipes[0][0].take(), "out", lambda: worker)
        stderr = self._output.pipe(pipes[1][0].take(), "err", lambda: worker)
        worker = records.WorkerRecord(
            worker_id=spec.worker_id,
            serial=spec.serial,
            name=spec.name,
            owner=owner,
            spec=spec,
            allocation=allocation,
            ledger_group=ledger_group,
            control=self._clients.add(spec.serial, ours),
            stdout=stdout,
            stderr=stderr,
            oom_kills_before=process.oom_kills(),
            restarts=spec.restarts,
            is_actor=spec.is_actor,
        )
        self._table.add(worker)
        for output in (stdout, stderr):
            self._loop.watch(output.fd, functools.partial(self._read, output))
        handles = [Descriptor(theirs.detach()), first, pipes[0][1], pipes[1][1], account]
        if delay_s:
            self._loop.after(delay_s, lambda: self._fork_late(worker, handles))
            return
        try:
            self._fork(worker, handles)
        except OSError:
            self._table.remove(spec.worker_id)
            self._close(worker)
            raise

    def _fork_late(self, worker: records.WorkerRecord, handles: list[Descriptor]) -> None:
        if worker.ending:
            self._exited(worker, worker.exit_as_ordered())
            return
        try:
            self._fork(worker, handles)
        except OSError as error:  # the node has no descriptor left
            self._exited(worker, ExitRecord(reason=str(error)))

    def _fork(self, worker: records.WorkerRecord, handles: list[Descriptor]) -> None:
        spec = worker.spec
        self._have_plain()
        imports, template = self._templates.for_worker(spec.environment.preload, worker.kind)
        spare = [handle.copy() for handle in handles]
        # The event is published before the fork, so that waiting connections are sent before the worker reads
        # its messages.
        self._publish(records.WorkerStarted(worker))
        # Starting workers are stored by process number, as a worker's id may change with a new lease
        # before the template answers.
        self._starting[spec.serial] = StartingWorker(worker, imports, spare)
        try_send(template, NOTICE, 0, messages.packed(messages.ForkWorker(spec), handles))
        for early in self._early.pop(spec.worker_id, ()):
            self.cancel(worker, early)

    def learn_import(self, serial: int, package: str) -> None:
        """Record that a worker imported `package`, so that the next worker of its kind
        is forked with this import.
        """
        worker = self._table.by_serial(serial)
        if worker is not None:
            self.warm(self._templates.learn(worker.kind, worker.spec.environment.preload | {package}))

    def _read(self, pipe: OutputPipe) -> None:
        if not pipe.read():
            self._loop.unwatch(pipe.fd)

    def _from_template(self, imports: Imports, frame: Frame) -> None:
        if not imports:
            self._mute_ends = 0
        match messages.unpacked(frame.body):
            case messages.ForkFailed(0, _):
                # a serial of 0 means the template itself, whose failure is also noticed by its closed
                # connection
                pass
            case messages.Forked(serial, pid):
                self._forked(self._starting.pop(serial).worker, pid)
            case messages.ForkFailed(serial, reason, True) if self._by_pid:
                self._refused.add(serial)
                self._wait_for_room(reason)
            case messages.ForkFailed(serial, reason):
                self._not_started(serial, reason)
            case messages.Exited(_, status, serial) if serial in self._starting:
                if os.WIFSIGNALED(status):  # the worker was killed before it could send `Forked`
                    self._ask_again(serial)
                else:
                    self._not_started(serial, "its process ended during its start")
            case messages.Exited(pid, status, _):
                self._ended(pid, status)
            case messages.Ready():
                self._templates.mark_ready(imports)
            case messages.Unusable(reason):
                self._templates.mark_unusable(imports, reason)
                text = f"workers now start more slowly, as modules can't be imported in advance: {reason}"
                self._clients.notify(records.DRIVER, messages.Waits(text))
            case message:
                raise TypeError(f"the node cannot handle {message!r}")

    def _forked(self, worker: records.WorkerRecord, pid: int) -> None:
        worker.pid = pid
        self._by_pid[pid] = worker
        for kind in ("out", "err"):  # the output that the worker printed before its pid was known
            self._output.keep(worker, kind, b"")
        if worker.ending or worker.interrupted:
            process.kill(pid, signal.SIGKILL if worker.ending else signal.SIGINT)

    def _not_started(self, serial: int, reason: str) -> None:
        worker = self._starting.pop(serial).worker
        self._exited(worker, worker.exit_as_ordered() if worker.ending else ExitRecord(reason=reason))

    def _template_gone(self, imports: Imports) -> None:
        """Have the plain template fork the pending workers of a template that has ended."""
        self._mute_ends += not imports
        for serial, starting in list(self._starting.items()):
            if starting.imports != imports or self._loop.stopping:  # a session that ends starts nothing
                continue
            if self._mute_ends <= _MOST_MUTE_ENDS:
                self._ask_again(serial)
            else:
                self._not_started(serial, "the templates that fork workers end during their start")
        self._loop.after(_SWEEP_S, self._find_lost)

    def _have_plain(self) -> None:
        """Start a new plain template if the plain template has ended. The new template may also end.

        Raises:
            OSError: the machine is out of memory, processes or descriptors.
        """
        if not self._templates.has_plain:
            sock, self._session.template_pid = self._session.new_template()
            self._templates.replace_plain(sock)

    def _find_lost(self) -> None:
        """Handle the ends of workers whose template ended before it could report them."""
        self.collect(ended_children())
        self._hear_templates()
        for pid in list(self._by_pid):
            if not os.path.exists(f"/proc/{pid}"):
                self._ended(pid, None)

    def _wait_for_room(self, reason: str) -> None:
        """Repeat the requests for workers that the machine refused, after 1 s or when a worker has ended."""
        if not self._told_refusal:
            self._told_refusal = True
            text = f"the machine refuses more processes ({reason}): new workers wait until others end"
            self._clients.notify(records.DRIVER, messages.Waits(text))
        self._loop.after(_AGAIN_S, self._ask_refused)

    def _ask_refused(self) -> None:
        refused, self._refused = self._refused & self._starting.keys(), set()
        for serial in refused:
            self._ask_again(serial, self._starting[serial].imports)
        templates, self._refused_templates = self._refused_templates, set()
        for imports in templates:
            self.warm(imports)

    def _ask_again(self, serial: int, imports: Imports = frozenset()) -> None:
        """Send the request for a worker again, to a template that suits `imports`."""
        starting = self._starting[serial]
        if starting.worker.ending:
            self._not_started(serial, "")
            return
        try:
            self._have_plain()
            imports, template = self._templates.for_worker(imports)
            spare = [handle.copy() for handle in starting.spare]
        except OSError as error:
            self._not_started(serial, str(error))
            return
        self._starting[serial] = starting._replace(imports=imports, spare=spare)
        fork = messages.packed(messages.ForkWorker(starting.worker.spec), starting.spare)
        try_send(template, NOTICE, 0, fork)

    def kill(self, worker: records.WorkerRecord) -> None:
        """Kill a worker's process; a worker that is being forked is killed when its pid is known."""
        if worker.pid is not None:
            process.kill(worker.pid)

    def cancel(self, worker: records.WorkerRecord, message: messages.Cancel) -> None:
        """Send a cancellation to the worker, and interrupt the worker so that it reads the message."""
        try_send(worker.control, NOTICE, 0, messages.packed(message))
        if worker.pid is not None:
            process.kill(worker.pid, signal.SIGINT)
        else:  # the worker may be running already, although its template has not reported the start yet
            worker.interrupted = True

    def cancel_early(self, message: messages.Cancel) -> None:
        """Keep a cancellation for a worker that has not started yet."""
        self._early.setdefault(message.worker_id, []).append(message)

    def forget_early(self, worker_id: int) -> None:
        """Drop the cancellations for a worker that will never be started."""
        self._early.pop(worker_id, None)

    def end(self, worker: records.WorkerRecord) -> None:
        """End a worker that is no longer needed, once it has run the calls that were sent to it."""
        try_send(worker.control, NOTICE, 0, messages.packed(messages.EndWorker()))

    def redirect(self, fd: int) -> None:
        """Redirect the output of all templates to the file `fd`."""
        for template in self._templates.connections():
            try_send(template, NOTICE, 0, messages.packed(messages.Redirect(), [Descriptor(os.dup(fd))]))

    def collect(self, ended: Iterable[tuple[int, int]]) -> None:
        """Handle ended children of the node, which are orphans and the workers of a killed template."""
        for pid, status in ended:
            if pid not in self._by_pid:
                self._hear_templates()
            self._ended(pid, status)

    def _hear_templates(self) -> None:
        """Read the messages of all templates, because a template may have forked a worker and then ended."""
        for template in self._templates.connections():
            template.try_read()

    def _ended(self, pid: int, status: int | None) -> None:
        worker = self._by_pid.pop(pid, None)
        if worker is None:
            return
        worker.control.read_all()  # the last message may be `Departing`, which announces a clean end
        worker.stdout.drain()
        worker.stderr.drain()
        self._output.finish(worker)
        exit_ = self.exit_record(worker, None if status is None else os.waitstatus_to_exitcode(status))
        if status is None and not worker.ending:
            exit_ = replace(exit_, reason="its exit code is unknown, as the process that forked it ended too")
        self._exited(worker, exit_)
        self._ask_refused()
        self._loop.after(_SWEEP_S, self._sweep)

    def exit_record(self, worker: records.WorkerRecord, code: int | None) -> ExitRecord:
        """Return the exit record of a worker whose process ended, or will end, with exit code `code`."""
        return ExitRecord(
            pid=worker.pid,
            code=code,
            requested=bool(worker.ending),
            reason=worker.ending,
            may_restart=worker.may_restart,
            stderr_tail="\n".join(worker.stderr.tail),
            log_files=self._output.files_of(worker),
            out_of_memory=code == -signal.SIGKILL and process.oom_kills() > worker.oom_kills_before,
        )

    def _exited(self, worker: records.WorkerRecord, exit_: ExitRecord) -> None:
        heir = self._table.heir(worker)
        self.warm(self._templates.learned(worker.kind))
        self._close(worker)  # the descriptors are closed first, because a restarted process needs descriptors
        self._publish(records.WorkerExited(worker, exit_, heir, worker.departs and not exit_.code))

    def _close(self, worker: records.WorkerRecord) -> None:
        """Close the node's pipes and connection to a worker's process."""
        for pipe in (worker.stdout, worker.stderr):
            self._loop.unwatch(pipe.fd)
            pipe.close()
        self._output.forget(worker)
        self._clients.drop(worker.serial)
        self._table.remove_process(worker.serial)

    def drain(self) -> None:
        """Read the last output of all workers."""
        self._hear_templates()  # the files are named after pids, which may not have been read yet
        for worker in self._table.all():
            worker.stdout.drain()
            worker.stderr.drain()

    def _sweep(self) -> None:
        """Kill the children of the node that ended workers have left behind."""
        children = process.children(os.getpid())
        self._hear_templates()
        left = [pid for pid in children if pid != self._session.template_pid and pid not in self._by_pid]
        for pid in left:
            process.kill(pid)
        if left:  # the children of the killed processes become children of the node, and must be killed next
            self._loop.after(_SWEEP_S, self._sweep)


def introduce(worker: records.WorkerRecord, conn: Descriptor) -> None:
    """Send a worker the connection of another process that wants to call it."""
    worker.introduced += 1
    try_send(worker.control, NOTICE, 0, messages.packed(messages.Connect(), [conn]))


def is_alive(worker: records.WorkerRecord) -> bool:
    """Return True if a worker is running and not about to end."""
    over = worker.pid is None or worker.ending or worker.departs or worker.control.closed
    return not over and not process.is_ending(worker.pid or 0)


def lost_connection(worker: records.WorkerRecord) -> ObjectLostError:
    """Return the error for a connection that closed although the worker at its other end is alive."""
    return ObjectLostError(
        f"{worker.name} (pid {worker.pid}) runs, but this connection was lost, as it had no file descriptor "
        "left. Release handles, references and large objects there, or raise ulimit -n, and get a new handle."
    )
