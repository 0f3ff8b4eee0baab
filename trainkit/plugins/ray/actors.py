"""Actors on Ray, and a cache of wrapped functions and classes."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import ray
from ray.experimental import internal_kv

from trainkit.clock import SYSTEM
from trainkit.errors import ArgumentTypeError, ConfigError
from trainkit.plugins.ray.errors import RetriedFailure, refusal
from trainkit.plugins.ray.placement import ray_options
from trainkit.plugins.ray.values import Call, RayActor, handed_out, seal, split_arguments, with_options
from trainkit.plugins.ray.worker import Join, host_class, task_body
from trainkit.runtime.failures import ActorExit
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.specs import DYNAMIC, STREAMING, ActorSpec, Interface, MethodSpec, TaskSpec


class Definitions:
    """Cache of Ray's remote functions and actor classes, keyed by the user's functions and classes.

    Args:
        join: function that makes trainkit's functions available in a worker's process.
    """

    def __init__(self, join: Join) -> None:
        self._join = join
        # The lock is reentrant, as a weak reference's callback may run in this thread while the lock is held.
        self._lock = threading.RLock()
        self._known: dict[Any, tuple[Any, Any]] = {}

    def task(self, spec: TaskSpec) -> Any:
        """Return Ray's remote function for the function of `spec`. Raise SerializationError on failure."""
        streaming = spec.num_returns in (STREAMING, DYNAMIC)
        key = ("task", id(spec.function), spec.name, spec.retry_exceptions, spec.max_calls, streaming)

        def make() -> Any:
            function, retries = seal(spec.function, spec.name), seal(spec.retry_exceptions)
            body = task_body(function, retries, spec.name, streaming, self._join)
            again = [RetriedFailure] if spec.retry_exceptions else False
            return ray.remote(max_calls=spec.max_calls, retry_exceptions=again)(body)

        return self._once(key, spec.function, make)

    def host(self, spec: ActorSpec) -> Any:
        """Return Ray's actor class that hosts the class of `spec`."""
        groups = dict(spec.concurrency.groups)
        key = ("actor", id(spec.cls), spec.interface.is_async, *sorted(groups.items()))

        def make() -> Any:
            host = host_class(spec.cls.__name__, spec.interface.is_async, self._join)
            return ray.remote(concurrency_groups=groups)(host) if groups else ray.remote(host)

        return self._once(key, spec.cls, make)

    def clear(self) -> None:
        """Empty the cache, because Ray forgets the entries when its session ends."""
        with self._lock:
            self._known.clear()

    def _once(self, key: Any, source: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            found = self._known.get(key)
        if found is not None and found[0]() is source:
            # Python reuses ids, so the id in the key alone does not identify the user's function or class.
            return found[1]
        made = make()
        try:
            known = weakref.ref(source, lambda _: self._known.pop(key, None))
        except TypeError:  # a callable that does not support weak references is wrapped again for each use
            return made
        with self._lock:
            self._known[key] = (known, made)
        return made


_INTERFACE_WAIT_S = 2.0


def start(definitions: Definitions, spec: ActorSpec, namespace: str) -> RayActor:
    """Implement `Engine.start_actor`."""
    arguments, refs = split_arguments(spec.args, spec.kwargs, spec.name)
    cls = seal(spec.cls, spec.name)
    options = ray_options(spec.placement)
    options |= {"max_restarts": spec.max_restarts, "max_task_retries": spec.max_task_retries}
    if spec.concurrency.max_concurrency is not None:
        options["max_concurrency"] = spec.concurrency.max_concurrency
    registration = spec.registration
    if registration is not None:
        options["lifetime"] = "detached" if registration.detached else None
        options["name"] = registration.name
        options["namespace"] = registration.namespace or namespace
        options["get_if_exists"] = registration.get_if_exists
    call = Call(where=spec.name, arguments=arguments, num_returns=1, folder=spec.placement.cwd)
    try:
        handle = definitions.host(spec).options(**options).remote(call, cls, refs, *_to_wait_for(refs))
    except ValueError as error:
        raise refusal(error, f"the actor {spec.name}") from error
    if registration is not None:
        internal_kv._internal_kv_put(_key(handle), pickle.dumps(spec.interface))
    return RayActor(handle, spec.name)


def _to_wait_for(refs: list[Any]) -> list[Any]:
    """Return a list with a reference that is done when all of `refs` exist; an empty list if all exist
    already.

    Ray waits for the returned reference before it starts the actor. If Ray waited for the arguments
    themselves and an argument failed, callers would get only the text of the argument's error.
    """
    awaited = list(dict.fromkeys(refs))
    late = awaited and ray.wait(awaited, num_returns=len(awaited), timeout=0, fetch_local=False)[1]
    return [_arrival.remote(late)] if late else []


def _await_all(refs: list[Any]) -> None:
    ray.wait(refs, num_returns=len(refs), fetch_local=False)


_arrival: Any = ray.remote(num_cpus=0, max_retries=-1)(_await_all)


def find(name: str, namespace: str) -> tuple[RayActor, Interface]:
    """Implement `Engine.find_actor`."""
    missing = ConfigError(
        f"there is no actor named {name!r} in the namespace {namespace!r}; see trainkit.list_actors()"
    )
    try:
        handle = ray.get_actor(name, namespace)
    except ValueError as error:
        raise missing from error
    # If an actor has ended itself, Ray keeps its name for a while, and so may still find the actor.
    if ray._private.state.actors(handle._actor_id.hex()).get("State") == "DEAD":
        raise missing
    deadline = SYSTEM.monotonic() + _INTERFACE_WAIT_S
    while True:  # the actor's creator may be about to write the interface
        interface = internal_kv._internal_kv_get(_key(handle))
        if interface is not None:
            known: Interface = pickle.loads(interface)
            return RayActor(handle, known.name), known
        if SYSTEM.monotonic() > deadline:
            raise ConfigError(f"the actor named {name!r} was not created by trainkit: use it through Ray")
        SYSTEM.sleep(0.01)


def call(
    actor: RayActor, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], spec: MethodSpec
) -> list[ObjectRef[Any]]:
    """Implement `Engine.call`."""
    where = f"{actor.name}.{method}"
    arguments, refs = split_arguments(args, kwargs, where)
    options: dict[str, Any] = {"name": spec.name or where}
    if spec.concurrency_group is not None:
        options["concurrency_group"] = spec.concurrency_group
    if spec.max_task_retries is not None:
        options["max_task_retries"] = spec.max_task_retries
    kinds = spec.retry_exceptions
    if kinds:
        options["retry_exceptions"] = [RetriedFailure]
    sent = Call(
        where=where,
        arguments=arguments,
        num_returns=spec.num_returns,
        method=method,
        retries=seal(kinds) if kinds else None,
    )
    body = actor.handle.stream if spec.num_returns in (STREAMING, DYNAMIC) else actor.handle.call
    return handed_out(with_options(body, spec.num_returns, options).remote(sent, *refs))


def kill(actor: RayActor, no_restart: bool) -> None:
    """Implement `Engine.kill`."""
    ray.kill(actor.handle, no_restart=no_restart)
    if no_restart:
        internal_kv._internal_kv_del(_key(actor.handle))


def leave() -> NoReturn:
    """Implement `Engine.exit_actor`."""
    if ray.get_runtime_context().get_actor_id() is None:
        raise ArgumentTypeError("exit_actor() works only in a method of an actor")
    raise ActorExit


def _key(handle: Any) -> bytes:
    """Return the key of an actor's interface in Ray's key-value store."""
    return b"trainkit:interface:" + bytes(handle._actor_id.binary())
