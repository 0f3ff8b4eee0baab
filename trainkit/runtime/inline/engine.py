"""Inline engine, for debuggers and fast tests, with its state listing."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import os
import secrets
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError, ObjectLostError, WorkerDiedError
from trainkit.resources import Bundle, require_feasible
from trainkit.runtime import specs
from trainkit.runtime.calls.results import drained, require_iterator, split_results
from trainkit.runtime.context import address_info
from trainkit.runtime.engine import PROMISES, Row, group_row, listing, node_row, worker_row
from trainkit.runtime.failures import ActorExit, pack_failure
from trainkit.runtime.inline.calls import CallFrame, InlineActor, Outcome, failed, run
from trainkit.runtime.inline.event_loop import PrivateLoop, running_frames
from trainkit.runtime.inline.placement import Gpus
from trainkit.runtime.inline.refs import InlineRef, InlineStream
from trainkit.runtime.labels import require_labels
from trainkit.runtime.local.system import devices
from trainkit.runtime.refs import DynamicObjectRefGenerator, ObjectRef
from trainkit.runtime.restart_policy import retries_on
from trainkit.runtime.scheduling import captured, require_one_node
from trainkit.runtime.serialize import Packed, pack, unpack

_logger = logging.getLogger(__name__)

_DEAD_KEPT = 1000
"""Maximum number of ended actors in the listing."""


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
        self._spec = spec
        self._visible_gpus = devices.visible_gpus()
        self._ids = itertools.count(1)
        self._node_id = secrets.token_hex(16)
        self._worker_id = f"{os.getpid():016x}"
        self._totals = dict(spec.totals)
        self._gpus = Gpus(spec.totals)
        self._groups: dict[int, Row] = {}
        self._program = CallFrame("the program", specs.Placement(), self._gpus.all, PrivateLoop())
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._actors: weakref.WeakValueDictionary[str, InlineActor] = weakref.WeakValueDictionary()
        self._detached: set[InlineActor] = set()
        self._dead: deque[Row] = deque(maxlen=_DEAD_KEPT)
        self._streams: weakref.WeakSet[InlineStream] = weakref.WeakSet()
        # If two threads request the same name, one makes the actor and the other finds it.
        self._naming = threading.RLock()
        self._kinds: dict[str, Callable[[], list[Row]]] = {
            "nodes": self._nodes,
            "actors": lambda: [*(actor.row() for actor in self._living()), *self._dead],
            "workers": self._workers,
            "logs": list,  # calls print to the program's own output, not to log files
            "placement_groups": lambda: list(self._groups.values()),
            "requests": list,  # nothing waits
        }

    def require_usable(self) -> None:
        return  # all values are in this process, and a fork has a copy of them

    def require_node(self) -> None:
        return  # this engine has no node

    def _here(self) -> CallFrame:
        """Return the frame of the call that runs this code, or of the program itself."""
        frames = running_frames()
        return frames[-1] if frames else self._program

    # calls

    def submit(self, spec: specs.TaskSpec) -> list[ObjectRef[Any]]:
        packed = _packed_arguments(spec.args, spec.kwargs, spec.name)
        placement, task_id = spec.placement, self._new_id()
        try:
            placement = self._placed(placement, spec.name)
            if self._is_removed(placement.group):
                raise WorkerDiedError(f"{spec.name} could not be started: its placement group was removed")
        except (InfeasibleError, WorkerDiedError) as refusal:
            _logger.warning("%s", refusal)
            frame = CallFrame(spec.name, placement, self._gpus.take({}), PrivateLoop())
            return self._results(frame, failed(refusal, spec.name), spec.num_returns)
        gpus = self._gpus.take(placement.resources)
        frame = CallFrame(spec.name, placement, gpus, PrivateLoop(), task_id, shown=spec.name)
        try:
            outcome = self._outcome(frame, lambda: spec.function, packed, spec, spec.max_retries)
        except BaseException:  # Ctrl-C
            frame.leave()
            raise
        return self._results(frame, outcome, spec.num_returns)

    def start_actor(self, spec: specs.ActorSpec) -> InlineActor:
        spec = replace(spec, placement=self._placed(spec.placement, spec.name))
        packed = _packed_arguments(spec.args, spec.kwargs, spec.name)
        with contextlib.ExitStack() as making:
            with self._naming:
                wanted = spec.registration
                found = wanted and self._named(wanted.name, wanted.namespace)
                if wanted and found and not wanted.get_if_exists:
                    raise ConfigError(specs.taken_message(wanted.name, found.namespace, found.name))
                if found:
                    return found
                actor = self._new_actor(spec)
                making.enter_context(actor.turn())  # other threads wait for the constructor
            if self._is_removed(spec.placement.group):
                actor.end("its placement group was removed")
            try:
                actor.make(functools.partial(_arguments, packed))
            except BaseException:  # Ctrl-C
                actor.end("its constructor was interrupted")
                raise
        return actor

    def _placed(self, placement: specs.Placement, name: str) -> specs.Placement:
        """Return the placement of a task or actor that the running code starts.

        A call of the program gets the session's environment. A placement group that captures child calls
        captures the call.
        """
        require_feasible([placement.resources], self._totals, what=name)
        if placement.labels:
            require_labels(placement.labels, self.state("nodes")[0], name)
        # Inner calls inherit the environment of outer calls, as workers started by a worker inherit its
        # environment.
        if not running_frames() and (self._spec.environment or self._spec.working_dir):
            env = {**self._spec.environment, **placement.env}
            placement = replace(placement, env=env, cwd=placement.cwd or self._spec.working_dir)
        return captured(placement, self.current_group())

    def _new_actor(self, spec: specs.ActorSpec) -> InlineActor:
        """Return a new actor, owned by the actor that runs this code."""
        namespace = (spec.registration and spec.registration.namespace) or self._spec.namespace
        gpus = self._gpus.take(spec.placement.resources)
        actor = InlineActor(self._new_id(), spec, namespace, gpus, self._actor_ended)
        self._actors[actor.actor_id] = actor
        if actor.detached:
            self._detached.add(actor)
        owner = self._here().actor
        if owner is not None:
            owner.owned.add(actor)
        return actor

    def _living(self) -> list[InlineActor]:
        return list(self._actors.values())

    def _named(self, name: str, namespace: str | None) -> InlineActor | None:
        """Return the living actor named `name`, or None."""
        where = (name, namespace or self._spec.namespace)
        return next((each for each in self._living() if (each.registered, each.namespace) == where), None)

    def find_actor(self, name: str, namespace: str | None) -> tuple[InlineActor, specs.Interface]:
        actor = self._named(name, namespace)
        if actor is None:
            where = namespace or self._spec.namespace
            raise ConfigError(
                f"there is no actor named {name!r} in the namespace {where!r}. It may have ended: an actor "
                "ends when its last handle is gone, unless lifetime='detached'"
            )
        return actor, actor.spec.interface

    def call(
        self,
        actor: InlineActor,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: specs.MethodSpec,
    ) -> list[ObjectRef[Any]]:
        where = f"{actor.name}.{method}"
        groups = sorted(actor.spec.concurrency.groups)
        if spec.concurrency_group is not None and spec.concurrency_group not in groups:
            raise ConfigError(
                f"{actor.name} has no concurrency group {spec.concurrency_group!r}; it declares {groups}"
            )
        packed = _packed_arguments(args, kwargs, where)
        shown = spec.name or f"{actor.spec.cls.__name__}.{method}"
        frame = actor.frame(where, self._new_id(), shown)
        retries = spec.max_task_retries
        if retries is None:
            retries = actor.spec.max_task_retries
        outcome = self._outcome(frame, lambda: actor.method(method), packed, spec, retries)
        return self._results(frame, outcome, spec.num_returns)

    def _outcome(
        self,
        frame: CallFrame,
        function: Callable[[], Callable[..., Any]],
        packed: Packed,
        spec: specs.TaskSpec | specs.MethodSpec,
        retries: int,
    ) -> Outcome:
        """Run a call until it succeeds or has no retries left.

        The value of the outcome is a list of references, or a generator for a streaming call.
        """

        def work() -> Any:
            args, kwargs = _arguments(packed)
            return self._returned(frame, function()(*args, **kwargs), spec.num_returns)

        outcome = run(frame, work)
        # A stream that fails later is not retried, because its reader has already received the first values.
        while retries != 0 and retries_on(outcome.error, spec.retry_exceptions):
            retries -= 1  # a negative number means no limit, as it never reaches 0
            outcome = run(frame, work)
        return outcome

    def _returned(self, frame: CallFrame, result: Any, num_returns: int) -> Any:
        """Return references to the results of a call, or the generator of a streaming call."""
        if inspect.isawaitable(result):
            result = frame.run(result)
        if num_returns == specs.STREAMING:
            return require_iterator(result, frame.name)
        if num_returns not in (0, 1) and hasattr(result, "__anext__"):
            result = frame.run(drained(result, num_returns))

        def failure(error: Exception) -> InlineRef:
            return self._ref(pack_failure(error, frame.name), True)

        if num_returns == specs.DYNAMIC:
            items = require_iterator(result, frame.name, "dynamic")
            result, num_returns = DynamicObjectRefGenerator.of(items, self.put, failure), 1
        refs: list[InlineRef] = []
        try:
            refs.extend(
                self._ref(pack(item, f"the result of {frame.name}").owned(), False)
                for item in split_results(result, num_returns, frame.name)
            )
        except Exception as error:
            if not refs:
                raise
            refs += [failure(error)] * (num_returns - len(refs))
        return refs

    def _results(self, frame: CallFrame, outcome: Outcome, num_returns: int) -> list[ObjectRef[Any]]:
        """Return the references of a call. The call's frame is left here, or when the call's stream ends."""
        if num_returns == specs.STREAMING:
            stream = InlineStream(frame, outcome, self._ref)
            self._streams.add(stream)
            # The protocol allows a generator of references in the place of a single reference.
            return [cast("ObjectRef[Any]", stream)]
        frame.leave()
        if num_returns == 0:
            return []
        if outcome.failure is not None:
            return [self._ref(outcome.failure, True) for _ in range(max(1, num_returns))]
        return list(outcome.value)

    def _new_id(self) -> str:
        return f"{next(self._ids):016x}"

    def _ref(self, packed: Packed, is_failure: bool) -> InlineRef:
        return InlineRef(next(self._ids), packed, is_failure)

    # ends of actors and calls

    def _actor_ended(self, actor: InlineActor) -> None:
        self._actors.pop(actor.actor_id, None)
        self._detached.discard(actor)
        self._dead.append(actor.row())

    def kill(self, actor: InlineActor, no_restart: bool) -> None:
        actor.end("it was killed by trainkit.kill()")

    def end_processes(self, placement: specs.Placement) -> None:
        """Do nothing, because this engine has no worker processes."""

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        (ref if isinstance(ref, InlineStream) else _own(ref)).cancel()

    def exit_actor(self) -> NoReturn:
        frame = self._here()
        if frame.actor is None:
            raise ArgumentTypeError("exit_actor() works only in a method of an actor")
        frame.actor.end(f"exit_actor() was called in {frame.name}")
        raise ActorExit

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
        require_one_node(bundles, strategy)
        if name and any(row["name"] == name for row in self._groups.values()):
            raise ConfigError(f"placement group {name!r} exists: get it with get_placement_group({name!r})")
        group = next(self._ids)
        self._groups[group] = group_row(f"{group:016x}", name, strategy, True, bundles)
        return group

    def find_group(self, name: str) -> tuple[int, list[Bundle]]:
        for group, row in self._groups.items():
            if name and row["name"] == name:
                return group, list(row["bundles"])
        raise ConfigError(f"there is no placement group named {name!r}")

    def _is_removed(self, group: specs.PlacementGroupId | None) -> bool:
        return group is not None and group.group not in self._groups

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        self._require_group(group)
        return True

    def _require_group(self, group: int) -> None:
        if group not in self._groups:
            raise ConfigError("this placement group was removed")

    def group_ref(self, group: int) -> ObjectRef[Any]:
        try:
            self._require_group(group)
        except ConfigError as error:
            return self._ref(pack_failure(error, "the placement group"), True)
        return self.put(None)

    def release(self, group: int) -> None:
        for actor in self._living():
            where = actor.spec.placement.group
            if where is not None and where.group == group:
                actor.end("its placement group was removed")
        self._groups.pop(group, None)

    def current_group(self) -> tuple[specs.PlacementGroupId, list[Bundle]] | None:
        group = self._here().placement.group
        if group is None or self._is_removed(group):
            return None
        return group, list(self._groups[group.group]["bundles"])

    # facts

    def where_am_i(self) -> specs.WhereAmI:
        frame = self._here()
        actor = frame.actor
        return specs.WhereAmI(
            node_id=self._node_id,
            worker_id=self._worker_id,
            namespace=self._spec.namespace,
            job_id=self._node_id,
            actor_id=None if actor is None else actor.actor_id,
            actor_name=None if actor is None else actor.registered or "",
            task_id=frame.task_id,
            task_name=frame.shown,
            resources=dict(frame.placement.resources),
        )

    def is_cancelled(self) -> bool:
        return False  # a call can't be cancelled, as it has ended before its reference exists

    def current_actor(self) -> tuple[InlineActor, specs.Interface] | None:
        actor = self._here().actor
        return None if actor is None else (actor, actor.spec.interface)

    def address_info(self) -> dict[str, Any]:
        return address_info(self._node_id, None)

    def cluster_resources(self) -> Bundle:
        return dict(self._totals)

    def available_resources(self) -> Bundle:
        return self.cluster_resources()  # nothing waits for resources that are in use

    def gpu_ids(self) -> list[int | str]:
        gpus = self._here().gpus.indices
        return devices.gpu_ids(devices.gpu_name(index, self._visible_gpus) for index in gpus)

    def state(self, kind: str) -> list[Row]:
        return listing(self._kinds, kind)

    def _nodes(self) -> list[Row]:
        return [node_row(self._node_id, self._spec.labels, self._totals, self._totals)]

    def _workers(self) -> list[Row]:
        return [worker_row(self._worker_id, "driver", "DRIVER", os.getpid(), self._node_id)]

    def scratch_dir(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="trainkit-inline-")
        return Path(self._scratch.name)

    def close(self) -> None:
        for stream in list(self._streams):
            stream.cancel(ObjectLostError("the session of this stream has been shut down"))
        for actor in reversed(self._living()):
            actor.end("its session was shut down")
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def _own(ref: Any) -> InlineRef:
    if not isinstance(ref, InlineRef):
        raise ObjectLostError(f"{ref!r} belongs to another engine or session")
    return ref


def _packed_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Packed:
    """Return a packed copy of the arguments in their current state."""
    return pack((args, dict(kwargs)), f"the arguments of {name}").owned()


def _arguments(packed: Packed) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments, with each reference replaced by its value."""
    args, kwargs = unpack(packed)
    return tuple(map(_resolved, args)), {name: _resolved(value) for name, value in kwargs.items()}


def _resolved(value: Any) -> Any:
    return _own(value).value() if isinstance(value, ObjectRef) else value
