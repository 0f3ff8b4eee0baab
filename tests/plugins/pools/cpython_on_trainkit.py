"""Python's own tests of its pools, with our classes in place of those that they test.

    python -m unittest tests.pools.cpython_on_trainkit

Nothing of them is copied. What does not apply is listed with its reason. Some Pythons are installed without
their tests: then PYTHONPATH may have the `Lib/test` folder of another one.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import unittest
from types import ModuleType
from typing import Any

import trainkit
from trainkit.plugins.pools import Executor, Pool

PRIVATE = "looks at private attributes of the standard class"
BETTER = "expects the whole pool to break, where ours fails one call by its own error"
NAMED = "runs a program that names the standard class"

NOT_APPLICABLE = {
    "TestPool.test_make_pool": PRIVATE,
    "TestPool.test_resource_warning": PRIVATE,
    "TestPoolWorkerErrors.test_unpickleable_result": "expects that a lambda can't be sent, which ours can",
    "TestPoolWorkerLifetime.test_pool_worker_lifetime": PRIVATE,
    "FailingInitializerMixin.test_initializer": "sends a multiprocessing.Queue, which only a child can take",
    "ProcessPoolExecutorTest.test_idle_process_reuse_multiple": PRIVATE,
    "ProcessPoolExecutorTest.test_idle_process_reuse_one": PRIVATE,
    "ProcessPoolExecutorTest.test_killed_child": PRIVATE,
    "ProcessPoolExecutorTest.test_saturation": PRIVATE,
    "ProcessPoolExecutorTest.test_traceback": PRIVATE,
    "ProcessPoolShutdownTest.test_processes_terminate": PRIVATE,
    "ProcessPoolShutdownTest.test_hang_gh83386": NAMED,
    "ProcessPoolShutdownTest.test_interpreter_shutdown": NAMED,
    "ProcessPoolShutdownTest.test_submit_after_interpreter_shutdown": NAMED,
    "ExecutorDeadlockTest.test_error_at_task_unpickle": BETTER,
    "ExecutorDeadlockTest.test_error_during_result_unpickle_in_result_handler": BETTER,
    "ExecutorDeadlockTest.test_exit_during_result_unpickle_in_result_handler": BETTER,
    "ExecutorDeadlockTest.test_exit_during_result_pickle_on_worker": (
        "expects an exit while a result is pickled to be the call's error; it ends the worker here"
    ),
    "ExecutorDeadlockTest.test_shutdown_deadlock_pickle": PRIVATE,
}


def setUpModule() -> None:
    trainkit.init(num_cpus=5)


def tearDownModule() -> None:
    trainkit.shutdown()


def original(name: str) -> ModuleType | None:
    """Return a module of Python's tests; None if there is none."""
    for path in (f"test.{name}", name):
        with contextlib.suppress(ImportError):
            return importlib.import_module(path)
    return None


def tested(base: Any, *mixins: Any, **attributes: Any) -> type[unittest.TestCase]:
    """Return the test case of `base`, without the tests that do not apply."""
    name = base.__name__.lstrip("_")
    for test in dir(base):
        reason = NOT_APPLICABLE.get(f"{name}.{test}")
        if reason is not None:
            attributes[test] = unittest.skip(reason)(getattr(base, test))
    attributes |= {"__module__": __name__, "__qualname__": name}
    return type(name, (base, *mixins, unittest.TestCase), attributes)


class PoolsInstead(ModuleType):
    """`multiprocessing`, with our pool."""

    Pool = Pool

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)


POOL = original("_test_multiprocessing")
if POOL is not None:
    POOL.multiprocessing = PoolsInstead("multiprocessing")  # type: ignore[attr-defined]
    for each in (POOL._TestPool, POOL._TestPoolWorkerErrors, POOL._TestPoolWorkerLifetime):
        globals()[each.__name__.lstrip("_")] = tested(each, TYPE="processes", Pool=Pool)

FUTURES = original("test_concurrent_futures")
if FUTURES is not None and hasattr(FUTURES, "ExecutorMixin"):  # from Python 3.12 on a package of another form

    class OnTrainkit(FUTURES.ExecutorMixin):  # type: ignore[name-defined, misc]
        """Executor of a test: ours, with the arguments of `ProcessPoolExecutor`."""

        executor_type = Executor
        ctx = "fork"

    for each in (
        FUTURES.InitializerMixin,
        FUTURES.FailingInitializerMixin,
        FUTURES.ProcessPoolShutdownTest,
        FUTURES.WaitTests,
        FUTURES.AsCompletedTests,
        FUTURES.ProcessPoolExecutorTest,
        FUTURES.ExecutorDeadlockTest,
    ):
        globals()[each.__name__] = tested(each, OnTrainkit)
