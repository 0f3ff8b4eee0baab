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
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError, ObjectLostError, WorkerDiedError
from trainkit.resources import Bundle, require_feasible
from trainkit.runtime import specs
from trainkit.runtime.calls.methods import method_of
from trainkit.runtime.calls.results import require_iterator, split_results
from trainkit.runtime.context import address_info
from trainkit.runtime.engine import PROMISES, Row, listing, node_row, task_row, worker_row
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.inline import calls
from trainkit.runtime.inline.calls import current_actor
from trainkit.runtime.inline.event_loop import PrivateLoop
from trainkit.runtime.inline.placement import Places, ResourceShare
from trainkit.runtime.inline.refs import InlineRef, InlineStream, stepped
from trainkit.runtime.labels import require_labels
from trainkit.runtime.local.system import devices
from trainkit.runtime.observability.call_recorder import CallRecorder
from trainkit.runtime.refs import DynamicObjectRefGenerator, ObjectRef
from trainkit.runtime.scheduling import captured
from trainkit.runtime.serialize import Packed, pack
from trainkit.settings import records_calls

_logger = logging.getLogger(__name__)


def _task(frame: calls.CallFrame) -> Row:
    pid = os.getpid()
    return task_row(
        frame.name,
        frame.placement.resources,
        is_running=True,
        worker_id=f"{pid:016x}",
        pid=pid,
        owner_pid=pid,
        task_id=None if frame.number is None else f"{frame.number:016x}",
    )


def _object(ref: InlineRef) -> Row:
    return {"object_id": f"{ref.id:016x}", "size_bytes": ref.packed.size_bytes, "pids": [os.getpid()]}


_LISTED_BYTES = 256 * 1024
"""Minimum size of the values in the listing of objects.

Other engines keep values of at least this size in shared memory.
"""


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
        self._visible_gpus = devices.visible_gpus()
        self._ids = itertools.count(1)
        self._node_id = secrets.token_hex(16)
        self._places = Places(spec.totals)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        recorder = (
            CallRecorder.if_wanted(self.scratch_dir(), f"{os.getpid():016x}") if records_calls() else None
        )
        self._caller = calls.InlineCallRunner(spec, recorder)
        self._actors = calls.Actors(spec.namespace)
        self._streams: weakref.WeakSet[InlineStream] = weakref.WeakSet()
        self._large: weakref.WeakSet[InlineRef] = weakref.WeakSet()
        # The lock ensures that if two threads request the same name, one thread makes the actor and the other
        # thread finds the actor.
        self._naming = threading.RLock()
        self._owned_groups: dict[int, int] = {}
        self._kinds: dict[str, Callable[[], list[Row]]] = {
            "nodes": self._nodes,
            "actors": self._actors.rows,
            "tasks": lambda: [_task(frame) for frame in self._caller.running if frame.life is None],
            "workers": self._workers,
            "logs": list,  # calls print to the program's own output, not to log files
            "objects": lambda: [_object(ref) for ref in list(self._large)],
            "placement_groups": self._places.rows,
            "requests": list,  # calls of this engine run at once, so no request ever waits
        }

    def require_usable(self) -> None:
        return  # all values are in this process, and a forked child has copies of the values

    def require_node(self) -> None:
        return  # the inline engine has no node process

    # calls

    def submit(self, spec: specs.TaskSpec) -> list[ObjectRef[Any]]:
        number = next(self._ids)
        try:
            spec = replace(spec, placement=self._placed(spec.placement, spec.name))
        except InfeasibleError as refusal:
            _logger.warning("%s", refusal)
            frame = calls.CallFrame(spec.name, spec.placement, ResourceShare(), PrivateLoop(), number)
            return self._results(frame, calls.failed(refusal, spec.name), spec.num_returns)
        packed = calls.packed_arguments(spec.args, spec.kwargs, spec.name)
        if not self._places.has_group_of(spec.placement):
            error = WorkerDiedError(f"{spec.name} could not be started: its placement group was removed")
            frame = calls.CallFrame(spec.name, spec.placement, ResourceShare(), PrivateLoop(), number)
            return self._results(frame, calls.failed(error, spec.name), spec.num_returns)
        retries = spec.max_retries
        while True:
            frame = calls.CallFrame(
                spec.name, spec.placement, self._places.take(spec.placement), PrivateLoop(), number
            )
            try:
                outcome = self._outcome(frame, spec.function, packed, spec.num_returns)
            except BaseException:  # Ctrl-C interrupted the call
                frame.leave()
                raise
            # A stream that fails later is not retried, because its reader has already
            # received the first values.
            if retries == 0 or not calls.is_retried(outcome, spec):
                break
            frame.leave()
            retries -= 1  # a negative number means no limit, as it never reaches 0
        calls.leave_if_over()
        return self._results(frame, outcome, spec.num_returns)

    def start_actor(self, spec: specs.ActorSpec) -> calls.InlineActor:
        spec = replace(spec, placement=self._placed(spec.placement, spec.name))
        packed = calls.packed_arguments(spec.args, spec.kwargs, spec.name)
        can_start = self._places.has_group_of(spec.placement)
        with self._naming:
            found = self._actors.existing(spec.registration)
            if found is not None:
                return found
            actor = self._new_actor(spec, packed, can_start)
        if can_start:
            try:
                actor.make()
            except BaseException:  # Ctrl-C interrupted the constructor
                actor.end("its constructor was interrupted")
                raise
        else:
            actor.end("its placement group was removed")
        calls.leave_if_over()
        return actor

    def _placed(self, placement: specs.Placement, name: str) -> specs.Placement:
        """Return `placement`, moved into the caller's placement group if this group captures child calls."""
        require_feasible([placement.resources], self._places.totals, what=name)
        if placement.labels:
            require_labels(placement.labels, self.state("nodes")[0], name)
        return captured(placement, self.current_group())

    def _new_actor(self, spec: specs.ActorSpec, packed: Packed, can_start: bool) -> calls.InlineActor:
        actor = calls.InlineActor(
            next(self._ids),
            replace(spec, args=(), kwargs={}),
            packed,
            namespace=self._actors.namespace_of(spec.registration),
            place=self._places.take(spec.placement) if can_start else ResourceShare(),
            caller=self._caller,
            resolve=self._resolve,
            ended=self._actor_ended,
        )
        self._actors.add(actor)
        return actor

    def find_actor(self, name: str, namespace: str | None) -> tuple[calls.InlineActor, specs.Interface]:
        actor = self._actors.find(name, namespace)
        return actor, actor.interface

    def call(
        self,
        actor: calls.InlineActor,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: specs.MethodSpec,
    ) -> list[ObjectRef[Any]]:
        where = f"{actor.name}.{method}"
        packed = calls.packed_arguments(args, kwargs, where)
        with actor.busy(spec.concurrency_group) as life:
            frame = actor.frame(where, next(self._ids), life, spec.name)
            if life.over is not None:
                outcome = calls.died(frame)
            elif life.failure is not None:
                outcome = calls.Outcome(failure=life.failure)
            elif not life.made.is_set():
                error = ConfigError(f"{where}() was called in its actor's constructor, which must end first")
                outcome = calls.failed(error, where)
            else:
                asked = spec.max_task_retries
                retries = actor.max_task_retries if asked is None else asked
                while True:
                    function = method_of(life.instance, method)
                    outcome = self._outcome(frame, function, packed, spec.num_returns)
                    if retries == 0 or not calls.is_retried(outcome, spec):
                        break
                    retries -= 1  # a negative number means no limit, as it never reaches 0
        calls.leave_if_over()
        return self._results(frame, outcome, spec.num_returns, spec.concurrency_group)

    def _outcome(
        self, frame: calls.CallFrame, function: Callable[..., Any], packed: Packed, num_returns: int
    ) -> calls.Outcome:
        """Run `function`.

        Return the outcome of a call, whose value is a list of packed results, or a generator for a streaming
        call.
        """

        def work() -> Any:
            args, kwargs = calls.arguments(packed, self._resolve)
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = frame.run(result)
            if num_returns == specs.STREAMING:
                return require_iterator(result, frame.name)
            if num_returns != 1 and hasattr(result, "__anext__"):
                result = stepped(result, frame)
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

        return self._caller.outcome(frame, work)

    def _results(
        self, frame: calls.CallFrame, outcome: calls.Outcome, num_returns: int, group: str | None = None
    ) -> list[ObjectRef[Any]]:
        """Return the references of a call.

        Release the call's frame now, or for a streaming call when its stream ends.
        """
        of_actor = frame.life is not None

        def new_ref(packed: Packed, is_failure: bool) -> InlineRef:
            return self._ref(packed, is_failure, of_actor)

        if num_returns == specs.STREAMING:
            stream = InlineStream(self._caller, frame, outcome, new_ref, group)
            self._streams.add(stream)
            # The protocol of engines allows a generator of references in place of a single reference.
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

    # ends of actors and calls

    def _actor_ended(self, actor: calls.InlineActor) -> None:
        self._actors.ended(actor)
        for group in [group for group, owner in self._owned_groups.items() if owner == actor.number]:
            self.release(group)

    def kill(self, actor: calls.InlineActor, no_restart: bool) -> None:
        if no_restart or not actor.restart():
            actor.end("it was killed by trainkit.kill()")
        calls.leave_if_over()

    def end_processes(self, placement: specs.Placement) -> None:
        """Do nothing, because this engine has no worker processes."""

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        call = ref if isinstance(ref, InlineStream) else _own(ref)
        if force and call.of_actor:
            raise ConfigError("cancel(force=True) is only for tasks: kill() ends an actor with all its calls")
        call.cancel()
        calls.leave_if_over()

    def exit_actor(self) -> NoReturn:
        frame = calls.current_frame()
        if frame is None or frame.actor is None or frame.life is None:
            raise ArgumentTypeError("exit_actor() works only in a method of an actor")
        frame.actor.end(f"exit_actor() was called in {frame.name}", frame.life)
        raise calls.InlineActorExit(frame.life)

    # objects

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

    # placement groups

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        group = next(self._ids)
        self._places.reserve(group, bundles, strategy, name)
        owner = current_actor()
        if owner is not None and not detached:
            self._owned_groups[group] = owner.number
        return group

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        return self._places.find(name)

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        self._places.bundles(group)
        return True

    def group_ref(self, group: int) -> ObjectRef[Any]:
        try:
            self._places.bundles(group)
        except ConfigError as error:
            return self._ref(pack_failure(error, "the placement group"), True)
        return self.put(None)

    def release(self, group: int) -> None:
        self._owned_groups.pop(group, None)
        for actor in self._actors:
            if actor.placement.group is not None and actor.placement.group.group == group:
                actor.end("its placement group was removed")
        self._places.release(group)
        calls.leave_if_over()

    def current_group(self) -> tuple[specs.PlacementGroupId, list[Bundle]] | None:
        frame = calls.current_frame()
        placement = None if frame is None else frame.placement
        if placement is None or placement.group is None or not self._places.has_group_of(placement):
            return None
        return placement.group, self._places.bundles(placement.group.group)

    # facts

    def where_am_i(self) -> specs.WhereAmI:
        frame, actor = calls.current_frame(), current_actor()
        return specs.WhereAmI(
            node_id=self._node_id,
            worker_id=f"{os.getpid():016x}",
            namespace=self._namespace,
            job_id=self._node_id,
            actor_id=f"{actor.number:016x}" if actor is not None else None,
            actor_name=(actor.registered or "") if actor is not None else None,
            task_id=f"{frame.number:016x}" if frame is not None and frame.number is not None else None,
            task_name=frame.shown if frame is not None and frame.number is not None else None,
            was_restarted=actor is not None and actor.restarts > 0,
            resources=dict(frame.placement.resources) if frame is not None else {},
        )

    def is_cancelled(self) -> bool:
        return False  # a call can't be cancelled, as it has ended before its reference exists

    def current_actor(self) -> tuple[calls.InlineActor, specs.Interface] | None:
        actor = current_actor()
        return None if actor is None else (actor, actor.interface)

    def address_info(self) -> dict[str, Any]:
        return address_info(self._node_id, None)

    def cluster_resources(self) -> Bundle:
        return dict(self._places.totals)

    def available_resources(self) -> Bundle:
        return self._places.available()

    def gpu_ids(self) -> list[int | str]:
        frame = calls.current_frame()
        gpus = frame.place.gpus if frame is not None else range(int(self.cluster_resources().get("GPU", 0)))
        return devices.gpu_ids(devices.gpu_name(index, self._visible_gpus) for index in gpus)

    def state(self, kind: str) -> list[Row]:
        return listing(self._kinds, kind)

    def _nodes(self) -> list[Row]:
        places = self._places
        return [node_row(self._node_id, self._labels, places.totals, places.available())]

    def _workers(self) -> list[Row]:
        pid = os.getpid()
        return [worker_row(f"{pid:016x}", "driver", "DRIVER", pid, self._node_id)]

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
