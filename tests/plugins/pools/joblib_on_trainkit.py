"""joblib's own tests of `Parallel`, with our backend in place of loky's.

    python -m pytest -p tests.pools.joblib_on_trainkit --pyargs joblib.test.test_parallel

Nothing of them is copied. What does not apply is listed with its reason; tests of joblib's other backends are
left out.
"""

from __future__ import annotations

import joblib._parallel_backends
import joblib.parallel
import pytest

import trainkit
from trainkit.plugins.pools.joblib_backend import TrainkitBackend

MEMMAP = "expects large arrays in files, where ours are in shared memory"
NOT_APPLICABLE = {
    "test_auto_memmap_on_arrays_from_generator": MEMMAP,
    "test_initializer_not_reused": "expects new processes; each initializer runs in those that are there",
    "test_memmapping_leaks": MEMMAP,
    "test_multiple_generator_call_separated_gc": "expects one executor for all calls, where each has its own",
    "test_nested_parallel_warnings[loky-multiprocessing": "expects that loky's workers can't fork; ours can",
    "test_nested_parallel_warnings[threading-loky": "expects that threads can't use loky; they can use ours",
    "test_parallel_config_no_backend": MEMMAP,
    "test_parallel_pickling": "expects PicklingError; here it is what the argument raised, with a note",
}
"""By the beginning of a test's name."""


class LokyBackend(TrainkitBackend):
    """Our backend by the name that the tests know."""


joblib._parallel_backends.LokyBackend = LokyBackend
joblib.parallel.BACKENDS["loky"] = LokyBackend


def pytest_sessionstart() -> None:
    trainkit.init(num_cpus=2)


def pytest_sessionfinish() -> None:
    trainkit.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    items[:] = [item for item in items if _is_ours(item)]
    for item in items:
        for name, reason in NOT_APPLICABLE.items():
            if item.name.startswith(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def _is_ours(item: pytest.Function) -> bool:
    """Return False if a test is of other backends alone."""
    given = getattr(item, "callspec", None)
    backends = [value for name, value in given.params.items() if "backend" in name] if given else []
    backends = [each for each in backends if not isinstance(each, (int, list))]
    return not backends or any(each in (None, "loky") or type(each) is LokyBackend for each in backends)
