"""Fixtures of the tuner's tests, for plugins of the tuner."""

from tests.tune.conftest import fit, inline, restore, results

__all__ = ["fit", "inline", "restore", "results"]
