"""Inline engine, for debuggers and fast tests, with its state listing."""

from __future__ import annotations

import inspect
import itertools
import logging
import os
import secrets
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError, ObjectLostError, WorkerDiedError
from trainkit.resources import Bundle, require_feasible
from trainkit.runtime import specs
from trainkit.runtime.calls.methods import method_of
from trainkit.runtime.calls.results import require_iterator, split_results
from trainkit.runtime.context import address_info
from trainkit.runtime.engine import PROMISES, Row, group_row, listing, node_row, task_row, worker_row
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.inline import calls
from trainkit.runtime.inline.event_loop import PrivateLoop
from trainkit.runtime.inline.refs import InlineRef, InlineStream, stepped
from trainkit.runtime.labels import require_labels
from trainkit.runtime.local.system import devices
from trainkit.runtime.observability.call_recorder import CallRecorder
from trainkit.runtime.placement import Allocation, Ledger
from trainkit.runtime.refs import DynamicObjectRefGenerator, ObjectRef
from trainkit.runtime.restart_policy import retries_on
from trainkit.runtime.scheduling import captured, require_one_node
from trainkit.runtime.serialize import Packed, pack
from trainkit.settings import records_calls

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InlinePlacementGroup:
    """Reserved list of bundles, with the resources of each bundle."""

    bundles: Sequence[Bundle]
    strategy: str
    name: str
    shares: Sequence[Allocation]


_LISTED_BYTES = 256 * 1024
"""Minimum size of the values in listings. Other engines keep values of this size in shared memory."""


class InlineEngine:
    """Engine that runs in the calling process; implements `trainkit.runtime.engine.Engine`."""

    name = "inline"
    promises = PROMISES["inline"]
    alive = True
    is_worker = False

    @classmethod
    def start(cls, spec: specs.SessionSpec) -> Self:
        """Start a session in this process."""
        return cls(spec)

    def __init__(self, spec: specs.SessionSpec) -> None:
        self._namespace, self._labels = spec.namespace, spec.labels
        self._totals = dict(spec.totals)
        self._visible_gpus = devices.visible_gpus()
        self._ids = itertools.count(1)
        self._node_id = secrets.token_hex(16)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        recorder = (
            CallRecorder.if_wanted(self.scratch_dir(), f"{os.getpid():016x}") if records_calls() else None
        )
        self._caller = calls.InlineCallRunner(spec, recorder)
        self._actors = calls.Actors()
        self._groups: dict[int, InlinePlacementGroup] = {}
        self._streams: weakref.WeakSet[InlineStream] = weakref.WeakSet()
        self._large: weakref.WeakSet[InlineRef] = weakref.WeakSet()
        self._naming = threading.RLock()  # a thread may look up an actor while another makes it
        self._kinds: dict[str, Callable[[], list[Row]]] = {
            "nodes": self._nodes,
            "actors": self._actors.rows,
            "tasks": self._tasks,
            "workers": self._workers,
            "logs": list,  # the program's output goes to its own streams, so no logs exist
            "objects": self._objects,
            "placement_groups": self._group_rows,
            "requests": list,  # requests never wait in this engine
        }

    def require_usable(self) -> None:
        return  # a fork has a copy of all state, as the state is in this process

    def require_node(self) -> None:
        return  # this engine has no node that could have ended

    def submit(self, spec: specs.TaskSpec) -> list[ObjectRef[Any]]:
        frame = calls.CallFrame(spec.name, spec.name, spec.placement, PrivateLoop(), next(self._ids))
        packed = calls.packed_arguments(spec.args, spec.kwargs, spec.name)
        try:
            frame = replace(frame, placement=self._placed(spec.placement, spec.name))
        except InfeasibleError as refusal:
            _logger.warning("%s", refusal)
            outcome = calls.failed(refusal, spec.name)
        else:
            if self._has_group_of(frame.placement):
                outcome = self._outcome(frame, lambda: spec.function, packed, spec, spec.max_retries)
            else:
                error = WorkerDiedError(f"{spec.name} could not be started: its placement group was removed")
                outcome = calls.failed(error, spec.name)
        return self._results(frame, outcome, spec.num_returns)

    def start_actor(self, spec: specs.ActorSpec) -> calls.InlineActor:
        spec = replace(spec, placement=self._placed(spec.placement, spec.name))
        packed = calls.packed_arguments(spec.args, spec.kwargs, spec.name)
        with self._naming:
            found = self._existing(spec.registration)
            if found is not None:
                return found
            asked = spec.registration
            actor = calls.InlineActor(
                next(self._ids),
                replace(spec, args=(), kwargs={}),
                namespace=(asked.namespace if asked is not None else None) or self._namespace,
                caller=self._caller,
                ended=self._actors.ended,
            )
            actor.lock.acquire()  # the lock makes calls of other threads wait for the constructor
            self._actors.add(actor)
        try:
            if self._has_group_of(spec.placement):
                actor.make(packed, self._resolve)
            else:
                actor.end("its placement group was removed")
        except BaseException:  # Ctrl-C, for example, interrupts the constructor
            actor.end("its constructor was interrupted")
            raise
        finally:
            actor.lock.release()
        return actor

    def _existing(self, asked: specs.Registration | None) -> calls.InlineActor | None:
        """Return the existing actor with that name, or None. Raise ConfigError if the name is taken."""
        found = None if asked is None else self._actors.named(asked.name, asked.namespace or self._namespace)
        if asked is None or found is None or asked.get_if_exists:
            return found
        raise ConfigError(
            f"name={asked.name!r}: there is an actor of that name in the namespace "
            f"{found.namespace!r}; get_actor() finds it, and get_if_exists=True uses it"
        )

    def _placed(self, placement: specs.Placement, name: str) -> specs.Placement:
        """Return the final placement, in the caller's group if that group captures its children."""
        require_feasible([placement.resources], self._totals, what=name)
        if placement.labels:
            require_labels(placement.labels, self.state("nodes")[0], name)
        return captured(placement, self.current_group())

    def find_actor(self, name: str, namespace: str | None) -> tuple[calls.InlineActor, specs.Interface]:
        where = namespace or self._namespace
        actor = self._actors.named(name, where)
        if actor is None:
            raise ConfigError(
                f"there is no actor of the name {name!r} in the namespace {where!r}; it may have ended, "
                "as an actor does when its last handle is gone, unless lifetime='detached'"
            )
        return actor, actor.spec.interface

    def call(
        self,
        actor: calls.InlineActor,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: specs.MethodSpec,
    ) -> list[ObjectRef[Any]]:
        where, group = f"{actor.name}.{method}", spec.concurrency_group
        declared = actor.spec.concurrency.groups
        if group is not None and group not in declared:
            raise ConfigError(
                f"concurrency_group={group!r}: {actor.name} declares the groups {sorted(declared)}"
            )
        packed = calls.packed_arguments(args, kwargs, where)
        shown = spec.name or f"{actor.spec.cls.__name__}.{method}"
        frame = actor.frame(where, shown, next(self._ids))
        with actor.busy():
            if actor.over is not None:
                outcome = calls.died(frame)
            elif actor.failure is not None:
                outcome = calls.Outcome(failure=actor.failure)
            elif not actor.made:
                error = ConfigError(
                    f"{where}() was called by the constructor of its own actor, which comes first"
                )
                outcome = calls.failed(error, where)
            else:
                asked = spec.max_task_retries
                retries = actor.spec.max_task_retries if asked is None else asked
                outcome = self._outcome(
                    frame, lambda: method_of(actor.instance, method), packed, spec, retries
                )
        return self._results(frame, outcome, spec.num_returns)

    def _outcome(
        self,
        frame: calls.CallFrame,
        find: Callable[[], Callable[..., Any]],
        packed: Packed,
        spec: specs.TaskSpec | specs.MethodSpec,
        retries: int,
    ) -> calls.Outcome:
        """Call the function that `find` returns. The value is a list of packed results, or a generator."""
        num_returns = spec.num_returns

        def work() -> Any:
            args, kwargs = calls.arguments(packed, self._resolve)
            result = find()(*args, **kwargs)
            if inspect.isawaitable(result):
                result = frame.run(result)
            if num_returns != 1 and hasattr(result, "__anext__"):
                result = stepped(result, frame)
            if num_returns == specs.STREAMING:
                return require_iterator(result, frame.name)
            if num_returns == specs.DYNAMIC:
                items = require_iterator(result, frame.name, "dynamic")
                return [pack(DynamicObjectRefGenerator.of(items, self.put, failure), frame.name).owned()]
            refs: list[Packed | InlineRef] = []
            try:
                refs.extend(
                    pack(item, f"the result of {frame.name}").owned()
                    for item in split_results(result, num_returns, frame.name)
                )
            except Exception as error:
                if not refs:
                    raise
                refs += [failure(error)] * (num_returns - len(refs))
            return refs

        def failure(error: Exception) -> InlineRef:
            return self._ref(pack_failure(error, frame.name), True)

        while True:
            outcome = self._caller.outcome(frame, work)
            # A streaming call that fails later is not retried, because its reader already has the first
            # values.
            if retries == 0 or not (outcome.exited or retries_on(outcome.error, spec.retry_exceptions)):
                return outcome
            retries -= 1  # a negative number means no limit, and never reaches 0

    def _results(
        self, frame: calls.CallFrame, outcome: calls.Outcome, num_returns: int
    ) -> list[ObjectRef[Any]]:
        """Return the references of a call. The call's frame is closed here, or at the end of its stream."""
        actor = frame.actor

        def new_ref(packed: Packed, is_failure: bool) -> InlineRef:
            return self._ref(packed, is_failure, actor is not None)

        def step(work: Callable[[], Any]) -> calls.Outcome:
            if actor is None:
                return self._caller.outcome(frame, work)
            with actor.busy():
                return calls.died(frame) if actor.over is not None else self._caller.outcome(frame, work)

        if num_returns == specs.STREAMING:
            stream = InlineStream(next(self._ids), frame, outcome, step, new_ref)
            self._streams.add(stream)
            # The protocol allows a generator of references in place of a single reference, so the type is
            # cast.
            return [cast("ObjectRef[Any]", stream)]
        frame.leave()
        if num_returns == 0:
            return []
        if outcome.failure is not None:
            return [new_ref(outcome.failure, True) for _ in range(max(1, num_returns))]
        return [item if isinstance(item, InlineRef) else new_ref(item, False) for item in outcome.value]

    def _ref(self, packed: Packed, is_failure: bool, of_actor: bool = False) -> InlineRef:
        ref = InlineRef(next(self._ids), packed, is_failure, of_actor)
        if packed.size_bytes >= _LISTED_BYTES:
            self._large.add(ref)
        return ref

    def _resolve(self, value: Any) -> Any:
        return _own(value).value() if isinstance(value, ObjectRef) else value

    def kill(self, actor: calls.InlineActor, no_restart: bool) -> None:
        actor.end("it was killed by trainkit.kill()")
        if calls.current_actor() is actor:
            raise calls.InlineActorExit

    def end_processes(self, placement: specs.Placement) -> None:
        """Do nothing, because this engine has no worker processes."""

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        of_actor = ref.of_actor if isinstance(ref, InlineStream) else _own(ref).of_actor
        if force and of_actor:
            raise ConfigError(
                "cancel(force=True) ends a process, and an actor is not to end for a call: use kill()"
            )
        if isinstance(ref, InlineStream):  # calls without a stream have ended already, so they need no cancel
            ref.cancel()

    def exit_actor(self) -> NoReturn:
        frame = calls.current_frame()
        if frame is None or frame.actor is None:
            raise ArgumentTypeError(
                "exit_actor() ends the actor whose method calls it, and this runs in no actor"
            )
        frame.actor.end(f"exit_actor() was called in {frame.name}")
        raise calls.InlineActorExit

    def put(self, value: Any) -> ObjectRef[Any]:
        return self._ref(pack(value).owned(), False)

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        return [_own(ref).value() for ref in refs]

    def lending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait(
        self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        own: list[ObjectRef[Any]] = [_own(ref) for ref in refs]
        return own[:num_returns], own[num_returns:]

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        require_one_node(bundles, strategy)
        if name and any(group.name == name for group in self._groups.values()):
            raise ConfigError(
                f"name={name!r}: there is a placement group of that name; get_placement_group({name!r}) "
                "finds it"
            )
        shares = Ledger.of_machine(self._totals).take_all(bundles)
        if shares is None:
            raise InfeasibleError(f"the bundles {list(bundles)} cannot be placed together")
        number = next(self._ids)
        self._groups[number] = InlinePlacementGroup(list(bundles), strategy, name, shares)
        return number

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        for number, group in self._groups.items():
            if group.name == name and name:
                return number, list(group.bundles)
        raise ConfigError(f"there is no placement group of the name {name!r}")

    def _group(self, number: int) -> InlinePlacementGroup:
        if number not in self._groups:
            raise ConfigError("this placement group was removed")
        return self._groups[number]

    def _has_group_of(self, placement: specs.Placement) -> bool:
        return placement.group is None or placement.group.group in self._groups

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        self._group(group)
        return True

    def group_ref(self, group: int) -> ObjectRef[Any]:
        if group in self._groups:
            return self.put(None)
        error = ConfigError("this placement group was removed")
        return self._ref(pack_failure(error, "the placement group"), True)

    def release(self, group: int) -> None:
        for actor in self._actors:
            placed = actor.spec.placement.group
            if placed is not None and placed.group == group:
                actor.end("its placement group was removed")
        self._groups.pop(group, None)

    def current_group(self) -> tuple[specs.PlacementGroupId, list[Bundle]] | None:
        frame = calls.current_frame()
        group = None if frame is None else frame.placement.group
        if group is None or group.group not in self._groups:
            return None
        return group, list(self._groups[group.group].bundles)

    def where_am_i(self) -> specs.WhereAmI:
        frame, actor = calls.current_frame(), calls.current_actor()
        return specs.WhereAmI(
            node_id=self._node_id,
            worker_id=f"{os.getpid():016x}",
            namespace=self._namespace,
            job_id=self._node_id,
            actor_id=actor.actor_id if actor is not None else None,
            actor_name=(actor.registered or "") if actor is not None else None,
            task_id=frame.task_id if frame is not None else None,
            task_name=frame.shown if frame is not None and frame.number is not None else None,
            resources=dict(frame.placement.resources) if frame is not None else {},
        )

    def is_cancelled(self) -> bool:
        return False  # every call has ended before its reference exists, so none can be cancelled

    def current_actor(self) -> tuple[calls.InlineActor, specs.Interface] | None:
        actor = calls.current_actor()
        return None if actor is None else (actor, actor.spec.interface)

    def address_info(self) -> dict[str, Any]:
        return address_info(self._node_id, None)

    def cluster_resources(self) -> Bundle:
        return dict(self._totals)

    def available_resources(self) -> Bundle:
        return dict(self._totals)  # calls run one at a time, so each call can use all resources

    def gpu_ids(self) -> list[int | str]:
        frame = calls.current_frame()
        if frame is None:
            gpus = list(range(int(self._totals.get("GPU", 0))))
        else:
            gpus = self._gpus(frame.placement)
        return devices.gpu_ids(devices.gpu_name(index, self._visible_gpus) for index in gpus)

    def _gpus(self, placement: specs.Placement) -> list[int]:
        """Return the first GPUs of the machine, or of the request's bundle, that meet the request."""
        if placement.group is None:
            ledgers = [Ledger.of_machine(self._totals)]
        else:
            shares, index = self._group(placement.group.group).shares, placement.group.bundle
            ledgers = [Ledger.of_bundle(share) for share in (shares if index is None else [shares[index]])]
        taken = (ledger.take(placement.resources) for ledger in ledgers)
        return next((sorted(share.gpus) for share in taken if share is not None), [])

    def state(self, kind: str) -> list[Row]:
        return listing(self._kinds, kind)

    def _nodes(self) -> list[Row]:
        return [node_row(self._node_id, self._labels, self._totals, self._totals)]

    def _workers(self) -> list[Row]:
        pid = os.getpid()
        return [worker_row(f"{pid:016x}", "driver", "DRIVER", pid, self._node_id)]

    def _tasks(self) -> list[Row]:
        pid = os.getpid()
        return [
            task_row(
                frame.name,
                frame.placement.resources,
                is_running=True,
                worker_id=f"{pid:016x}",
                pid=pid,
                owner_pid=pid,
                task_id=frame.task_id,
            )
            for frame in self._caller.running
            if frame.actor is None
        ]

    def _objects(self) -> list[Row]:
        return [
            {"object_id": f"{ref.id:016x}", "size_bytes": ref.packed.size_bytes, "pids": [os.getpid()]}
            for ref in list(self._large)
        ]

    def _group_rows(self) -> list[Row]:
        return [
            group_row(f"{number:016x}", group.name, group.strategy, True, group.bundles)
            for number, group in self._groups.items()
        ]

    def scratch_dir(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="trainkit-inline-")
        return Path(self._scratch.name)

    def close(self) -> None:
        for stream in list(self._streams):
            stream.cancel(ObjectLostError("the session of this stream has been shut down"))
        for actor in reversed(list(self._actors)):
            actor.end("its session was shut down")
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def _own(ref: Any) -> InlineRef:
    if not isinstance(ref, InlineRef):
        raise ObjectLostError(f"{ref!r} belongs to another engine or session")
    return ref
