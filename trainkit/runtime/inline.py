"""The inline engine: every call runs at once in the calling process, for debuggers and fast tests.

Arguments and results are copied as between processes, so code that relies on sharing fails here too.
Requests are refused when the declared machine could never meet them; nothing ever waits.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.errors import ActorDiedError, ConfigError, ObjectLostError
from trainkit.resources import Bundle, require_feasible
from trainkit.runtime.failures import pack_failure, raisable, unpack_failure
from trainkit.runtime.results import split_results
from trainkit.runtime.serialize import Packed, pack, unpack
from trainkit.runtime.specs import (
    ActorSpec,
    MethodSpec,
    ObjectRef,
    Placement,
    PlacementGroupId,
    SessionSpec,
    TaskSpec,
)


class InlineRef(ObjectRef[Any]):
    """A value that is there already, or the failure in its place."""

    __slots__ = ("failed", "packed")

    def __init__(self, ref_id: int, packed: Packed, failed: bool) -> None:
        self.id = ref_id
        self.packed = packed
        self.failed = failed

    def __reduce__(self) -> Any:
        return InlineRef, (
            self.id,
            Packed(bytes(self.packed.payload), [bytes(b) for b in self.packed.buffers]),
            self.failed,
        )


class InlineActor:
    """An object of this process behind an actor's handle."""

    def __init__(self, name: str, placement: Placement) -> None:
        self.name = name
        self.placement = placement
        self.instance: Any = None
        self.failure: Packed | None = None
        self.killed = False

    def __reduce__(self) -> Any:
        raise TypeError("the inline engine keeps actors in one process: their handles cannot be pickled")


class InlineEngine:
    """See the module; implements `trainkit.runtime.engine.Engine`."""

    name = "inline"
    alive = True
    is_worker = False

    def __init__(self, spec: SessionSpec) -> None:
        self._totals = dict(spec.totals)
        self._ids = itertools.count(1)
        self._groups: dict[int, list[Bundle]] = {}
        self._running: list[Placement] = []
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def require_usable(self) -> None:
        return  # all it has is in this process, and a forked one has a copy

    def submit(self, spec: TaskSpec) -> list[ObjectRef[Any]]:
        self._check(spec.placement, spec.name)
        return self._run(spec.function, spec.name, spec.args, spec.kwargs, spec.num_returns, spec.placement)

    def start_actor(self, spec: ActorSpec) -> InlineActor:
        self._check(spec.placement, spec.name)
        actor = InlineActor(spec.name, spec.placement)
        made = self._run(spec.cls, spec.name, spec.args, spec.kwargs, 1, spec.placement, keep=actor)
        ref = made[0]
        if isinstance(ref, InlineRef) and ref.failed:
            actor.failure = ref.packed
        return actor

    def call(
        self,
        actor: InlineActor,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: MethodSpec,
    ) -> list[ObjectRef[Any]]:
        num_returns = spec.num_returns
        where = f"{actor.name}.{method}"
        if actor.killed:
            died = ActorDiedError(f"{actor.name} was killed before {method}() was called")
            return [InlineRef(next(self._ids), pack_failure(died, where), True) for _ in range(num_returns)]
        if actor.failure is not None:
            return [InlineRef(next(self._ids), actor.failure, True) for _ in range(num_returns)]
        bound = getattr(actor.instance, method)
        return self._run(bound, where, args, kwargs, num_returns, actor.placement)

    def _run(
        self,
        function: Any,
        where: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        num_returns: int,
        placement: Placement,
        keep: InlineActor | None = None,
    ) -> list[ObjectRef[Any]]:
        packed_args = pack((args, dict(kwargs)), f"the arguments of {where}").owned()
        self._running.append(placement)
        try:
            args, kwargs = unpack(packed_args)
            args = tuple(self._resolve(item) for item in args)
            kwargs = {key: self._resolve(item) for key, item in kwargs.items()}
            result = function(*args, **kwargs)
            if keep is not None:
                keep.instance, result = result, None
            results = split_results(result, num_returns, where)
            return [
                InlineRef(next(self._ids), pack(item, f"the result of {where}").owned(), False)
                for item in results
            ]
        except Exception as error:
            failure = pack_failure(error, where)
            return [InlineRef(next(self._ids), failure, True) for _ in range(num_returns)]
        finally:
            self._running.pop()

    def _resolve(self, value: Any) -> Any:
        return self.get([value], None)[0] if isinstance(value, ObjectRef) else value

    def kill(self, actor: InlineActor, no_restart: bool) -> None:
        actor.killed = True
        actor.instance = None

    def put(self, value: Any) -> ObjectRef[Any]:
        return InlineRef(next(self._ids), pack(value).owned(), False)

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        values = []
        for ref in refs:
            if not isinstance(ref, InlineRef):
                raise ObjectLostError(f"{ref!r} belongs to another engine or session")
            if ref.failed:
                raise raisable(unpack_failure(ref.packed))
            values.append(unpack(ref.packed))
        return values

    def wait(
        self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        return list(refs[:num_returns]), list(refs[num_returns:])

    def _check(self, placement: Placement, name: str) -> None:
        if placement.group is not None and placement.group.group not in self._groups:
            raise ConfigError(f"{name}: its placement group was removed")
        require_feasible([placement.resources], self._totals, what=name)

    def reserve(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> int:
        group = next(self._ids)
        self._groups[group] = list(bundles)
        return group

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        return True

    def group_ref(self, group: int) -> ObjectRef[Any]:
        return self.put(None)

    def release(self, group: int) -> None:
        self._groups.pop(group, None)

    def current_group(self) -> tuple[PlacementGroupId, list[Bundle]] | None:
        for placement in reversed(self._running):
            if placement.group is not None and placement.group.group in self._groups:
                return placement.group, self._groups[placement.group.group]
        return None

    def cluster_resources(self) -> Bundle:
        return dict(self._totals)

    def available_resources(self) -> Bundle:
        return dict(self._totals)

    def gpu_ids(self) -> list[int]:
        return list(range(int(self._totals.get("GPU", 0))))

    def scratch_dir(self) -> Path:
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="trainkit-inline-")
        return Path(self._scratch.name)

    def ensure_serializable(self, value: Any, what: str) -> None:
        pack(value, what)

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None
        self._groups.clear()
