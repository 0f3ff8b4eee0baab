"""Conformance suites (tests for pytest) for your own engine, strategy, scheduler or searcher."""

import pytest

pytest.register_assert_rewrite(
    *(f"trainkit.plugins.testing.{suite}" for suite in ("engine", "scheduler", "searcher", "strategy"))
)
