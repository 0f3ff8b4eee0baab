"""The state listing, from records alone."""

from __future__ import annotations

from typing import Any

from tests.runtime.local.node.parts import NodeParts
from trainkit.errors import ConfigError
from trainkit.runtime.local.node.state import CallCounts


def rows(node: NodeParts, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind."""
    found = node.listing.rows(kind)
    assert not isinstance(found, ConfigError)
    return found


def test_a_driver_that_never_says_what_is_in_flight_is_asked_again_later() -> None:
    node = NodeParts(CPU=1)
    counts = CallCounts(node.session, node.timers.after, lambda _, message: asked.append(message))
    asked: list[Any] = []
    answers: list[Any] = []
    counts.ask(answers.append)
    counts.ask(answers.append)
    assert len(asked) == 1, "one that is stopped finds one question"
    node.timers.run()
    assert answers == [[], []]
    counts.ask(answers.append)
    counts.counted({11: 3})
    assert len(asked) == 2 and [each["calls"] for each in answers[-1]] == [3]


def test_an_actor_that_is_being_restarted_is_listed_as_such() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, max_restarts=1)
    node.exits(11)
    (row,) = rows(node, "actors")
    assert (row["state"], row["restarts"]) == ("RESTARTING", 1)
