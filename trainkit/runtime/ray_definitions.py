"""What Ray was given once and need not be sent again: the wrappers of users' functions and classes."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import ray

from trainkit.runtime.ray_bodies import Join, host_class, task_body
from trainkit.runtime.ray_errors import RetriedFailure
from trainkit.runtime.ray_values import seal
from trainkit.runtime.specs import DYNAMIC, STREAMING, ActorSpec, TaskSpec


class Definitions:
    """Remote functions and classes of Ray's, by what they were made from.

    Args:
        join: gives a worker's process the verbs.
    """

    def __init__(self, join: Join) -> None:
        self._join = join
        self._lock = threading.RLock()  # a weak reference may end while it is held
        self._known: dict[Any, tuple[Any, Any]] = {}

    def task(self, spec: TaskSpec) -> Any:
        """Ray's remote function for the function of `spec`; raises SerializationError."""
        streaming = spec.num_returns in (STREAMING, DYNAMIC)
        key = ("task", id(spec.function), spec.name, spec.retry_exceptions, spec.max_calls, streaming)

        def make() -> Any:
            function, retries = seal(spec.function, spec.name), seal(spec.retry_exceptions)
            body = task_body(function, retries, spec.name, streaming, self._join)
            again = [RetriedFailure] if spec.retry_exceptions else False
            return ray.remote(max_calls=spec.max_calls, retry_exceptions=again)(body)

        return self._once(key, spec.function, make)

    def host(self, spec: ActorSpec) -> Any:
        """Ray's actor class around the class of `spec`."""
        groups = dict(spec.concurrency.groups)
        key = ("actor", id(spec.cls), spec.interface.is_async, *sorted(groups.items()))

        def make() -> Any:
            host = host_class(spec.cls.__name__, spec.interface.is_async, self._join)
            return ray.remote(concurrency_groups=groups)(host) if groups else ray.remote(host)

        return self._once(key, spec.cls, make)

    def clear(self) -> None:
        """Forget all: another session knows none of it."""
        with self._lock:
            self._known.clear()

    def _once(self, key: Any, source: Any, make: Callable[[], Any]) -> Any:
        with self._lock:
            found = self._known.get(key)
        if found is not None and found[0]() is source:  # an id may be used again
            return found[1]
        made = make()
        try:
            known = weakref.ref(source, lambda _: self._known.pop(key, None))
        except TypeError:  # some callables can't be referred to weakly: those are sent each time
            return made
        with self._lock:
            self._known[key] = (known, made)
        return made
