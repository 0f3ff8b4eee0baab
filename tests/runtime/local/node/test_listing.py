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


def test_actors_are_listed_from_the_request_to_the_end() -> None:
    node = NodeParts(CPU=1)
    node.ask_actor(11, name="clerk")
    node.worker(11).pid = 4711
    node.ask_actor(12)
    assert [(row["actor_id"][-1], row["state"]) for row in rows(node, "actors")] == [
        ("b", "ALIVE"),
        ("c", "PENDING"),
    ]
    node.exits(11)
    states = {row["name"]: (row["state"], row["death_cause"] is None) for row in rows(node, "actors")}
    assert states["clerk"] == ("DEAD", False)


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


def test_tasks_are_listed_with_the_process_that_asked_for_them() -> None:
    node = NodeParts(CPU=1)
    node.ask_lease(21)
    node.ask_lease(22)
    assert [(row["worker_id"][-2:], row["state"], row["owner_pid"]) for row in rows(node, "tasks")] == [
        ("15", "PENDING", 4321),
        ("16", "PENDING", 4321),
    ]
    node.scheduler.return_lease(21, retire=False)
    assert len(rows(node, "tasks")) == 1


def test_requests_are_listed_with_the_reasons_of_their_wait() -> None:
    node = NodeParts(11, 12, CPU=1)
    node.ask_actor(13, ready=False)
    waits = {row["what"]: row["reasons"] for row in rows(node, "requests")}
    assert "Actor11" in "; ".join(waits["Actor12"])
    assert waits["Actor13"] == ["an argument of its constructor has not arrived yet"]


def test_groups_are_listed_with_their_state() -> None:
    node = NodeParts(CPU=1)
    node.ask_group(31, [{"CPU": 1}], name="one")
    node.ask_group(32, [{"CPU": 1}], name="two")
    assert [(row["name"], row["state"]) for row in rows(node, "placement_groups")] == [
        ("one", "CREATED"),
        ("two", "PENDING"),
    ]
