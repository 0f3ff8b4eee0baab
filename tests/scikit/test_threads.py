"""Libraries that were loaded before a trial began compute with as many threads as it has CPUs."""

from __future__ import annotations

import threadpoolctl

import trainkit


def threads() -> dict[str, set[int]]:
    """By kind of library, how many threads those that are loaded have."""
    found: dict[str, set[int]] = {}
    for pool in threadpoolctl.threadpool_info():
        found.setdefault(pool["user_api"], set()).add(pool["num_threads"])
    return found


def test_libraries_that_were_loaded_before_take_the_cpus_of_the_trial(runtime: None) -> None:
    for cpus in (1, 2, 3):
        seen = trainkit.get(trainkit.remote(num_cpus=cpus)(threads).remote())
        assert seen["openmp"] == seen["blas"] == {cpus}
