"""Ray engine, a thin layer over Ray.

Ray places, runs and restarts calls and actors, and stores objects. The engine adds the following to plain
Ray: the errors of the other engines; the names of parts that can't be pickled; immediate refusal of requests
that can never be met; and actors that use no CPU unless they request CPUs.

Like plain Ray, this engine differs from the local engine in the following points:

- An interrupt by `cancel` waits until a call into C returns.
- A running method of an actor continues after `cancel`, but its result is lost. If a method is cancelled
  before it begins, the actor's next call may fail after half a minute.
- A cancel within microseconds of the end of its task may abort the driver, because of a bug in Ray.
- `ObjectRefGenerator.completed` reports the end of a stream, but not its error.
- `list_tasks` and `list_objects` need Ray's dashboard.
- A scratch folder stays behind when the driver is killed; Ray's own folder on several machines does not.
"""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from trainkit.errors import ActorDiedError, ConfigError, ObjectLostError, WorkerDiedError
from trainkit.plugins.ray import actors, errors, groups, machines
from trainkit.plugins.ray import state as ray_state
from trainkit.plugins.ray.actors import Definitions
from trainkit.plugins.ray.placement import placed, ray_options
from trainkit.plugins.ray.values import (
    Call,
    RayActor,
    RayRef,
    RayStream,
    attach_rays_own,
    handed_out,
    next_session,
    seal,
    split_arguments,
    unseal,
    with_options,
)
from trainkit.plugins.ray.worker import ActorHost
from trainkit.resources import Bundle
from trainkit.runtime import session, specs
from trainkit.runtime.calls.options import interface_of
from trainkit.runtime.context import address_info
from trainkit.runtime.engine import PROMISES
from trainkit.runtime.local.system import devices, process
from trainkit.runtime.refs import ObjectRef
from trainkit.settings import runtime_dir


def join(scratch: Path) -> None:
    """Make this worker process of Ray a worker of the session, unless it belongs to the session already.

    If the program called `ray.init` itself, Ray's worker processes outlive trainkit's sessions, so this
    process may belong to an earlier session.

    Args:
        scratch: scratch folder of the session, which identifies the session.
    """
    found = session.running()
    if found is None or (isinstance(found, RayEngine) and found.is_worker and found.scratch != scratch):
        session.adopt(RayEngine(is_worker=True, scratch=scratch))


class RayEngine:
    """Engine on a Ray cluster; implements `trainkit.runtime.engine.Engine`.

    Args:
        is_worker: True if Ray started this process.
        ending: what ends the Ray that this engine has started or joined; None: Ray continues.
        scratch: scratch folder of the session, which is created on first use; None in the process that begins
            the session.
    """

    name = "ray"
    promises = PROMISES["ray"]
    # The following methods are functions of other modules in this package, because they do not need the
    # engine's state.
    call, kill, exit_actor = staticmethod(actors.call), staticmethod(actors.kill), staticmethod(actors.leave)
    reserve, release = staticmethod(groups.reserve), staticmethod(groups.release)
    find_group, current_group = staticmethod(groups.find), staticmethod(groups.current)
    cluster_resources, state = staticmethod(groups.totals), staticmethod(ray_state.state)

    def __init__(
        self, *, is_worker: bool, ending: ExitStack | None = None, scratch: Path | None = None
    ) -> None:
        self.is_worker = is_worker
        self.pid = os.getpid()
        self.session = next_session()
        attach_rays_own()
        self._ending = ending or ExitStack()
        self._namespace: str = ray.get_runtime_context().namespace
        self.scratch = scratch or runtime_dir() / f"trainkit-ray-{uuid.uuid4().hex}"
        self._definitions = Definitions(functools.partial(join, self.scratch))
        self._placeable: set[frozenset[tuple[str, float]]] = set()

    @classmethod
    def start(cls, spec: specs.SessionSpec) -> RayEngine:
        """Join the cluster at `spec.address`, or start Ray, on this machine or on several machines.

        If Ray is running already, use the running Ray unchanged.

        Raises:
            ConfigError: the cluster does not exist, Ray rejects an argument, or a machine has not joined.
        """
        if ray.is_initialized():
            return cls(is_worker=False)
        asked = {"env_vars": dict(spec.environment), "working_dir": spec.working_dir}
        environment = {name: value for name, value in asked.items() if value}
        arguments = {"_memory" if name == "memory" else name: value for name, value in spec.extra.items()}
        if spec.object_store_bytes is not None:
            arguments["object_store_memory"] = spec.object_store_bytes
        if spec.object_spilling_directory is False:
            config = arguments.get("_system_config", {})
            arguments["_system_config"] = {**config, "automatic_object_spilling_enabled": False}
        elif spec.object_spilling_directory is not None:
            arguments["object_spilling_directory"] = spec.object_spilling_directory
        # Without the address "local", Ray would first look for a cluster on this machine and join it.
        address = spec.address or "local"
        with ExitStack() as ending:
            if (spread := machines.found(spec.address, arguments)) is not None:
                ending.enter_context(spread)
                address, arguments = "local", {**arguments, **spread.of_head()}
            ending.callback(ray.shutdown)
            try:
                context = ray.init(
                    address=address,
                    namespace=spec.namespace,
                    log_to_driver=spec.log_to_driver,
                    runtime_env=environment or None,
                    **arguments,
                )
            except (ConnectionError, ValueError, TypeError, ray.exceptions.RayError) as error:
                raise errors.of_start(error, address) from error
            if spread is not None:
                ending.enter_context(spread.join(context.address_info["gcs_address"]))
            return cls(is_worker=False, ending=ending.pop_all())

    @property
    def alive(self) -> bool:
        return bool(ray.is_initialized())

    def require_usable(self) -> None:
        if self.pid != os.getpid():
            raise ObjectLostError(
                "this process was forked from a process that uses Ray, and cannot use its session: start "
                "processes with subprocess, or with the spawn method of multiprocessing"
            )

    def require_node(self) -> None:
        return  # a cluster survives the loss of machines, and Ray does not report it

    def submit(self, spec: specs.TaskSpec) -> list[ObjectRef[Any]]:
        placement = self._placed(spec.placement, spec.name, WorkerDiedError)
        arguments, refs = split_arguments(spec.args, spec.kwargs, spec.name)
        call = Call(where=spec.name, arguments=arguments, num_returns=spec.num_returns, folder=placement.cwd)
        options = {"max_retries": spec.max_retries, "name": spec.name, **ray_options(placement)}
        started = with_options(self._definitions.task(spec), spec.num_returns, options)
        return handed_out(started.remote(call, *refs))

    def start_actor(self, spec: specs.ActorSpec) -> RayActor:
        placement = self._placed(spec.placement, spec.name, ActorDiedError)
        return actors.start(self._definitions, replace(spec, placement=placement), self._namespace)

    def find_actor(self, name: str, namespace: str | None) -> tuple[RayActor, specs.Interface]:
        return actors.find(name, namespace or self._namespace)

    def _placed(
        self, placement: specs.Placement, name: str, refusal: type[WorkerDiedError]
    ) -> specs.Placement:
        """Return the placement to request from Ray.

        Raise an error if Ray can never provide the placement. Amounts that Ray can provide are not checked
        again.
        """
        if placement.group is not None and groups.is_removed(placement.group.group):
            raise refusal(f"{name} cannot start: its placement group was removed")
        amounts = frozenset(placement.resources.items())
        if amounts not in self._placeable:
            groups.require_placeable([placement.resources], "PACK", name)
            self._placeable.add(amounts)
        return placed(placement)

    def cancel(self, ref: Any, force: bool, recursive: bool) -> None:
        if isinstance(ref, RayStream):
            wanted, result = ref.generator, ref.generator.completed()
        else:
            wanted = result = self._own([ref])[0]
        # A result is visible some microseconds before Ray's own record of the task is complete. A cancel
        # within these microseconds makes Ray abort this process ("Tried to complete task that was not
        # pending").
        if ray.wait([result], timeout=0, fetch_local=False)[0]:
            return
        try:
            ray.cancel(wanted, force=force, recursive=recursive)
        except (ValueError, TypeError) as error:
            raise errors.refusal(error, "cancel()") from error

    def end_processes(self, placement: specs.Placement) -> None:
        """Do nothing, because Ray ends idle processes itself."""

    def where_am_i(self) -> specs.WhereAmI:
        context = ray.get_runtime_context()
        actor_id = context.get_actor_id()
        inside = context.worker.mode == ray.WORKER_MODE
        return specs.WhereAmI(
            node_id=context.get_node_id(),
            worker_id=context.get_worker_id(),
            namespace=context.namespace,
            job_id=context.get_job_id(),
            actor_id=actor_id,
            actor_name=None if actor_id is None else context.get_actor_name() or "",
            task_id=context.get_task_id() if inside else None,
            task_name=context.get_task_name() if inside else None,
            was_restarted=actor_id is not None and ray._private.state.actors(actor_id)["NumRestarts"] > 0,
            resources=groups.plain(context.get_assigned_resources()) if inside else {},
        )

    def is_cancelled(self) -> bool:
        return bool(ray.get_runtime_context().is_canceled())

    def current_actor(self) -> tuple[RayActor, specs.Interface] | None:
        if ActorHost.made_of is None:
            return None
        cls, name = ActorHost.made_of
        return RayActor(ray.get_runtime_context().current_actor, name), interface_of(cls, name)

    def address_info(self) -> dict[str, Any]:
        facts = address_info(ray.get_runtime_context().get_node_id(), None)
        node = ray._private.worker._global_node
        if node is not None:  # a client of a remote cluster has no node of its own
            facts.update(node.address_info)
        return {**facts, "ray_version": ray.__version__}

    def put(self, value: Any) -> ObjectRef[Any]:
        parcel = seal(value)
        try:
            return RayRef(ray.put(parcel))
        except ray.exceptions.RayError as error:
            raise errors.translate(error) from error

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        wanted = self._own(refs)
        try:
            found = ray.get(wanted, timeout=timeout_s)
        except ray.exceptions.RayError as error:
            failure = errors.translate(error)
        else:
            return [unseal(value) for value in found]
        raise failure

    def lending(self) -> AbstractContextManager[None]:
        return nullcontext()

    def wait(
        self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout_s: float | None
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        wanted = self._own(refs)
        done, left = ray.wait(wanted, num_returns=num_returns, timeout=timeout_s)
        if left and len(done) >= num_returns:
            # Further references may be done by now, and earlier references in the list must come first.
            done, _ = ray.wait(wanted, num_returns=len(wanted), timeout=0)
        finished = set(done)
        ready: list[ObjectRef[Any]] = []
        rest: list[ObjectRef[Any]] = []
        for ref, own in zip(refs, wanted, strict=True):
            (ready if own in finished and len(ready) < num_returns else rest).append(ref)
        return ready, rest

    def _own(self, refs: Sequence[ObjectRef[Any]]) -> list[Any]:
        found = []
        for ref in refs:
            if not isinstance(ref, RayRef) or ref.session != self.session:
                raise ObjectLostError(f"{ref!r} belongs to another engine or session")
            found.append(ref.ref)
        return found

    def await_group(self, group: int, timeout_s: float | None) -> bool:
        return bool(ray.wait([groups.group_of(group).ready()], timeout=timeout_s)[0])

    def group_ref(self, group: int) -> ObjectRef[Any]:
        if groups.is_removed(group):
            raise ConfigError("ready() was called on a removed placement group: create a new one")
        return self.submit(
            specs.TaskSpec(
                function=_nothing,
                name="placement group",
                args=(),
                kwargs={},
                num_returns=1,
                placement=specs.Placement(group=specs.PlacementGroupId(group=group)),
                max_retries=-1,
            )
        )[0]

    def available_resources(self) -> Bundle:
        return dict.fromkeys(groups.totals(), 0.0) | groups.plain(ray.available_resources())

    def gpu_ids(self) -> list[int | str]:
        if not self.is_worker:
            return list(range(int(groups.totals().get("GPU", 0))))
        return devices.gpu_ids(str(name) for name in ray.get_gpu_ids())

    def scratch_dir(self) -> Path:
        self.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.scratch

    def close(self) -> None:
        if self.is_worker or self.pid != os.getpid():
            return  # the engine of a worker ends together with the worker's process
        self._definitions.clear()
        process.remove_folder(self.scratch)
        self._ending.close()
        attach_rays_own(False)
        next_session()


def _nothing() -> None:
    return
