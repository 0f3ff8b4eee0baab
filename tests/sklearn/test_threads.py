"""Libraries that were loaded before a trial began compute with as many threads as it has CPUs."""

from __future__ import annotations

import threadpoolctl

import trainkit
from tests.conftest import eventually


class Process:
    """A process of its own, forked from what was loaded beforehand."""

    def threads(self) -> dict[str, set[int]]:
        """Return by kind of library how many threads those that are loaded have."""
        found: dict[str, set[int]] = {}
        for pool in threadpoolctl.threadpool_info():
            found.setdefault(pool["user_api"], set()).add(pool["num_threads"])
        return found


def test_libraries_that_were_loaded_before_take_the_cpus_of_the_trial(runtime: None) -> None:
    for cpus in (1, 2, 3):
        seen: dict[str, set[int]] = {}

        def is_loaded(cpus: int = cpus, seen: dict[str, set[int]] = seen) -> bool:
            """Look into a new process: the first ones don't wait until all imports are made."""
            one = trainkit.remote(num_cpus=cpus)(Process).remote()
            seen.update(trainkit.get(one.threads.remote()))
            trainkit.kill(one)
            return "openmp" in seen

        assert eventually(is_loaded)
        assert seen["openmp"] == seen["blas"] == {cpus}
