"""Conformance suites, to run with pytest on an engine, strategy, scheduler or searcher of one's own."""

import pytest

pytest.register_assert_rewrite(
    *(f"trainkit.testing.{suite}" for suite in ("engine", "scheduler", "searcher", "strategy"))
)
