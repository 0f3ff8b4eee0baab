"""A trial that asks for memory is held to it, with real processes."""

from __future__ import annotations

import time

import pytest

from trainkit import tune

pytestmark = pytest.mark.usefixtures("runtime")

MIB = 2**20


def test_a_trial_above_its_memory_ends_and_its_neighbours_finish(fit):  # row 1.21
    def trainable(config):
        held = bytearray(config["mib"] * MIB)
        held[:: 2**12] = b"x" * len(held[:: 2**12])
        time.sleep(
            600 if config["mib"] > 512 else 0.1
        )  # what holds too much is ended, on however busy a machine
        for _ in range(4):
            tune.report({"held": len(held)})

    limited = tune.with_resources(trainable, {"cpu": 1, "memory": 512 * MIB})
    grid = fit(limited, {"mib": tune.grid_search([8, 1024, 8, 8])})
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert "memory limit exceeded" in str(grid[1].error)
    assert "memory limit exceeded" in grid[1].reason
