"""Parts of the node without a process: what would start one only notes what it was told."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.runtime.local.node import records
from trainkit.runtime.local.node.logs import SessionLogs
from trainkit.runtime.local.node.loop import Loop
from trainkit.runtime.local.node.node import Parts
from trainkit.runtime.local.node.state import StateListing
from trainkit.runtime.local.wire import messages
from trainkit.runtime.local.wire.channel import Connection, Descriptor
from trainkit.runtime.restart_policy import ExitRecord
from trainkit.runtime.serialize import Packed
from trainkit.runtime.specs import Placement, PlacementGroupId, SessionSpec

ENVIRONMENT = messages.WorkerEnvironment(inherited=b"", cwd="/", preload=frozenset())


class Silence:
    """Output of a process that prints nothing."""

    fd = -1
    tail: Any = ()

    def drain(self) -> None:
        """Take nothing."""

    def close(self) -> None:
        """Close nothing."""


@dataclass
class Processes:
    """What the parts of a node ask of processes, in place of them.

    Attributes:
        started: specs of the workers, in their order.
        killed, reused: ids of workers.
        full: there is no descriptor left.
        ends: of the workers' connections.
    """

    table: records.WorkerTable
    publish: Callable[[Any], None]
    started: list[messages.WorkerSpec] = field(default_factory=list)
    killed: list[int] = field(default_factory=list)
    reused: list[int] = field(default_factory=list)
    full: bool = False
    ends: list[Connection] = field(default_factory=list)

    def grant(self, event: records.RequestGranted) -> None:
        """Enter the worker that would be started, as if its template had forked it."""
        if event.idle is not None:
            self.reused.append(event.idle.worker_id)
            return
        if self.full:
            self.publish(records.StartFailed(event, "no descriptor left"))
            return
        message = event.request.start
        assert message is not None
        spec = messages.WorkerSpec(
            worker_id=message.worker_id,
            serial=self.table.next_serial(),
            name=message.name,
            is_actor=isinstance(message, messages.StartActor),
            cpus=0,
            gpus={},
            visible_gpus=[],
            totals={},
            group=None,
            group_bundles=(),
            env={},
            cwd="/",
            environment=ENVIRONMENT,
            placement=message.placement,
            namespace="default",
        )
        self.start(
            spec,
            event.request.first,
            owner=event.request.owner,
            allocation=event.allocation,
            ledger_group=event.where,
        )

    def start(self, spec: messages.WorkerSpec, first: Any, *, delay_s: float = 0.0, **more: Any) -> None:
        """Enter a worker, as if its template had forked it."""
        if self.full:
            raise OSError("no descriptor left")
        ours, theirs = socket.socketpair()
        self.ends.append(Connection(theirs))
        worker = records.WorkerRecord(
            worker_id=spec.worker_id,
            serial=spec.serial,
            name=spec.name,
            spec=spec,
            control=Connection(ours),
            stdout=Silence(),
            stderr=Silence(),
            is_actor=spec.is_actor,
            restarts=spec.restarts,
            **more,
        )
        self.table.add(worker)
        self.started.append(spec)
        self.publish(records.WorkerStarted(worker))

    def kill(self, worker: records.WorkerRecord) -> None:
        self.killed.append(worker.worker_id)

    def forget_early(self, worker_id: int) -> None:
        """Nothing is kept."""

    def end(self, worker: records.WorkerRecord) -> None:
        """Leave it idle."""

    def exit_record(self, worker: records.WorkerRecord, code: int) -> ExitRecord:
        """Return how a worker ended with that exit code."""
        return ExitRecord(
            pid=worker.pid,
            code=code,
            requested=bool(worker.ending),
            reason=worker.ending,
            may_restart=worker.may_restart,
        )


class Timers:
    """`Loop.after` by hand."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def after(self, seconds: float, action: Callable[[], None]) -> bool:
        """Keep an action for `run`, once."""
        if any(action == other for _, other in self.due):
            return False
        self.due.append((seconds, action))
        return True

    def run(self) -> None:
        """Do now what is due at any later time."""
        due, self.due = self.due, []
        for _, action in due:
            action()


class NodeParts:
    """The parts of a node, connected as in `Node`, with nothing that starts a process.

    Args:
        actors: ids of actors that are asked for at once.
    """

    def __init__(self, *actors: int, **totals: float) -> None:
        self.timers = Timers()
        self.notices: list[tuple[int, Any]] = []
        loop = Loop()
        loop.after = self.timers.after  # type: ignore[method-assign]
        spec = SessionSpec(totals=totals, namespace="default")
        template: Any = None  # nothing is forked
        session = records.SessionRecord(
            spec,
            Path("/tmp/session-abc"),
            account_fd=-1,
            gpus=[],
            template=template,
            template_pid=0,
            driver_pid=4321,
            program="{}",
            new_template=template,
        )
        made: Any = Processes
        parts = Parts(session, loop, self._notify, made, lambda _: None)
        self.queue, self.table, self.machine = parts.queue, parts.table, parts.machine
        self.scheduler, self.groups, self.reclaimer = parts.scheduler, parts.groups, parts.reclaimer
        self.supervisor, self.restarts = parts.supervisor, parts.restarts
        processes: Any = parts.processes
        self.processes: Processes = processes
        self.publish = parts.events.publish
        self.session = session
        self.listing = StateListing(
            session, parts.table, parts.queue, parts.groups, parts.explainer, SessionLogs("00000000")
        )
        for worker_id in actors:
            self.ask_actor(worker_id)

    def _notify(self, serial: int, message: Any) -> None:
        self.notices.append((serial, message))

    def ask_actor(self, worker_id: int, client: int = records.DRIVER, **more: Any) -> None:
        """Ask for an actor's process, and grant what can be granted."""
        message = actor(worker_id, **more)
        self.restarts.remember(client, message, Packed(b"", (), [first()]))
        self.scheduler.enqueue(client, message, first())
        self.scheduler.serve()

    def ask_lease(self, worker_id: int, client: int = records.DRIVER, **resources: float) -> list[Any]:
        """Ask for a process for tasks, and grant what can be granted; returns the answers to come."""
        answers: list[Any] = []
        message = messages.RequestLease(
            worker_id, "task", Placement(resources=resources or {"CPU": 1}), ENVIRONMENT
        )
        self.scheduler.enqueue(client, message, first(), answers.append)
        self.scheduler.serve()
        return answers

    def ask_group(self, group_id: int, bundles: list[Mapping[str, float]]) -> list[Any]:
        """Ask for a placement group; returns the answers to come."""
        answers: list[Any] = []
        message = messages.Reserve(group_id, bundles, strategy="PACK", name="", detached=False)
        self.groups.reserve(records.DRIVER, message, lambda _: None)
        self.groups.await_group(group_id, answers.append)
        self.scheduler.serve()
        return answers

    def worker(self, worker_id: int) -> records.WorkerRecord:
        """Return the living worker of that id."""
        worker = self.table.get(worker_id)
        assert worker is not None
        return worker

    def exits(self, worker_id: int, code: int = -9) -> None:
        """Have the process of a worker end, and grant what can be granted then."""
        worker = self.worker(worker_id)
        heir = self.table.heir(worker)
        self.table.remove_process(worker.serial)
        exit_ = self.processes.exit_record(worker, code)
        self.publish(records.WorkerExited(worker, exit_, heir, worker.departs and code == 0))
        self.scheduler.serve()

    def living(self) -> list[int]:
        """Return the ids of the living workers."""
        return [worker.worker_id for worker in self.table.all()]


def first() -> Descriptor:
    """Return a worker's first connection."""
    return Descriptor(socket.socket().detach())


def actor(
    worker_id: int,
    *,
    cpus: float = 1,
    group: int | None = None,
    max_restarts: int = 0,
) -> messages.StartActor:
    """Return a request for an actor's process."""
    return messages.StartActor(
        worker_id,
        f"Actor{worker_id}",
        Placement(
            resources={"CPU": cpus} if cpus else {},
            group=None if group is None else PlacementGroupId(group=group, bundle=None, capture=False),
        ),
        ENVIRONMENT,
        constructor_call=messages.ConstructorCall(max_restarts, b"", False, ()) if max_restarts else None,
    )
