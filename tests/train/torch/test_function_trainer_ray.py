"""The trainer of functions on a Ray cluster of two nodes, both on this machine."""

from __future__ import annotations

import pytest

from tests.suites.function_trainer import FunctionTrainerSuite


@pytest.mark.usefixtures("ray_cluster")
class TestRayEngine(FunctionTrainerSuite):
    """The trainer of functions with each worker on a node of its own."""
