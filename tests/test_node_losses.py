"""The node is killed under all kinds of work, which ends as if nothing had happened; see `node_losses`."""

from __future__ import annotations

import pytest

from tests import node_losses


@pytest.mark.parametrize("scenario", node_losses.SCENARIOS)
def test_killed_at_any_moment_it_ends_as_if_undisturbed(scenario: str) -> None:
    """The same results, suggestions, decisions and best; no failure is counted, nothing is left."""
    assert node_losses.check(scenario, moments=2)
