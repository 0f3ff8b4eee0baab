"""`trainkit why`: why something waits, or how it ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from trainkit.cli.experiments import not_found
from trainkit.cli.status import duration, request_line
from trainkit.cli.survey import Survey, sessions, survey
from trainkit.errors import ConfigError
from trainkit.resources import describe

_ID_OF = {
    "requests": ("id", "what"),
    "actors": ("actor_id", "name", "class_name"),
    "placement_groups": ("placement_group_id", "name"),
    "tasks": ("name",),
}
"""By which entries of each list something is known: the first by its beginning, the rest as a whole."""


def why(wanted: str) -> int:
    """Say of all that `wanted` names why it waits, or how it ended.

    Raises:
        ConfigError: it names nothing.
    """
    lines: list[str] = []
    surveys = [survey(session) for session in sessions()]
    for found in surveys:
        for kind, item in _matching(found, wanted):
            lines.extend(line for line in _explain(found, kind, item) if line not in lines)
    if not lines:
        problems = "".join(f"; {found.problem}" for found in surveys if found.problem)
        raise ConfigError(
            f"{not_found(wanted)}; and nothing in your {len(surveys)} sessions has that name, or an id that "
            "starts so. A trial is found by its experiment: `trainkit why EXPERIMENT TRIAL`. "
            f"`trainkit ls DIR` shows which are in DIR, `trainkit status` what is in your sessions{problems}"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _matching(found: Survey, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, (first, *others) in _ID_OF.items():
        for item in found.lists[kind]:
            if str(item[first]).startswith(wanted) or wanted in [item[key] for key in others]:
                yield kind, item


def _explain(found: Survey, kind: str, item: dict[str, Any]) -> Iterator[str]:
    if kind == "requests":
        yield from _explain_request(item)
        free = {name: amount for node in found.lists["nodes"] for name, amount in node["available"].items()}
        yield f"  free: {describe({name: amount for name, amount in free.items() if amount > 0})}"
        return
    name = item.get("name") or item.get("class_name") or item.get("placement_group_id")
    state = item["state"]
    if state == "DEAD":
        yield f"{name} ({item['actor_id']}) ended: {item['death_cause'] or 'it is not known how'}"
    elif state == "PENDING":
        request = _request_of(found, item)
        yield from [f"{name} waits to be started"] if request is None else _explain_request(request)
    else:
        process = f" (pid {item['pid']})" if item.get("pid") else ""
        yield (
            f"{name}{process} waits for nothing: it is {state.lower()}, in session {found.session.id}, which "
            f"was started {duration(found.age_s)} ago"
        )


def _explain_request(request: dict[str, Any]) -> Iterator[str]:
    yield request_line(request)
    yield from (f"  {reason}" for reason in request["reasons"])


def _request_of(found: Survey, item: dict[str, Any]) -> dict[str, Any] | None:
    own_id = item.get("actor_id") or item.get("placement_group_id")
    return next((request for request in found.lists["requests"] if request["id"] == own_id), None)
