"""joblib backend that runs calls as tasks of the runtime, for `joblib.Parallel` and scikit-learn's `n_jobs`.

Large arrays that several calls use are stored in shared memory only once, whereas joblib's own backend writes
them to files.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from trainkit.errors import ConfigError, MissingDependencyError, ObjectLostError
from trainkit.plugins.pools.executor import Executor, Sharing
from trainkit.runtime.api import cluster_resources, get
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import engine

try:
    import joblib
    from joblib.parallel import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend
except ImportError as error:
    raise MissingDependencyError.of("the joblib backend needs joblib", "sklearn", error) from error

NAME = "trainkit"
_OF_WORKERS = ("initializer", "initargs")
"""Settings of `joblib.Parallel` that concern its workers.

Other settings of `joblib.Parallel` concern joblib's files for large arrays.
"""


class TrainkitBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Backend of joblib whose batches of calls run as tasks of the runtime.

    Args:
        nesting_level: depth of nested `Parallel` calls, set by joblib.
        inner_max_num_threads: number of threads that BLAS, OpenMP and similar libraries use in a worker; None
            means the number of the worker's CPUs, unless the program's environment sets a number.
        ray_remote_args: further options of `Executor`, under the name that Ray's backend uses.
        **options: options of `Executor` for each batch, such as `num_cpus=2` or `num_gpus=1`.
    """

    supports_inner_max_num_threads = True
    supports_retrieve_callback = True
    supports_sharedmem = False
    uses_threads = False

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._given = self._options = {**(ray_remote_args or {}), **options}
        self._workers: Executor | None = None
        self._sharing = Sharing()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of concurrent calls; 1 in a process forked from the session's program."""
        if n_jobs == 0:
            raise ConfigError("n_jobs == 0 in Parallel has no meaning: give 1 or more, or -1 for all CPUs")
        if n_jobs in (None, 1):
            return 1
        try:
            engine()
        except ObjectLostError as error:
            warnings.warn(
                f"trainkit-backed parallel loops cannot run here, so n_jobs=1: {error}", stacklevel=3
            )
            return 1
        cpus = max(1, int(cluster_resources().get("CPU", 1)))
        return n_jobs if n_jobs > 0 else max(1, cpus + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        self.parallel = parallel
        count = self.effective_n_jobs(n_jobs)
        if count == 1 or engine().is_worker:
            # A worker that waits in joblib lends no CPUs. So calls of this worker might wait forever for the
            # worker's own CPUs.
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        given = {name: settings[name] for name in _OF_WORKERS if settings.get(name) is not None}
        threads = self.inner_max_num_threads
        if threads is not None:
            limits = dict.fromkeys(self.MAX_NUM_THREADS_VARS, str(threads))
            given["env"] = {**limits, **(self._given.get("env") or {})}
        self._options = {**self._given, **given}
        self._workers = Executor(count, **self._options)
        return count

    def start_call(self) -> None:
        self._sharing = Sharing()

    def stop_call(self) -> None:
        self._sharing = Sharing()

    def submit(self, func: Any, callback: Callable[[Future[Any]], object] | None = None) -> Future[Any]:
        batch = copy.copy(func)
        batch.items = [
            (
                call,
                [*map(self._sharing.of, args)],
                {name: self._sharing.of(value) for name, value in kwargs.items()},
            )
            for call, args, kwargs in func.items
        ]
        future = self._current().submit(_run_batch, batch)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        pool = self._current()
        pool.terminate_workers()
        pool.shutdown(wait=True)  # if a callback came after the end of this run, it would abort the next run
        if ensure_ready:
            self._workers = Executor(pool.workers, **self._options)

    def terminate(self) -> None:
        if self._workers is not None:
            self._workers.shutdown(wait=False)
            self._workers = None
        self.reset_batch_stats()

    def _current(self) -> Executor:
        if self._workers is None:
            self._workers = Executor(**self._options)
        return self._workers


def register_trainkit(name: str = NAME) -> None:
    """Register the backend under `name`, for `with joblib.parallel_config(backend="trainkit"): ...`."""
    joblib.register_parallel_backend(name, TrainkitBackend)


def _run_batch(batch: Any) -> Any:
    batch.items = [
        (call, [*map(_value, args)], {name: _value(value) for name, value in kwargs.items()})
        for call, args, kwargs in batch.items
    ]
    return batch()


def _value(given: Any) -> Any:
    return get(given) if isinstance(given, ObjectRef) else given
