"""Lookup of the user's sessions, and `trainkit status`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from trainkit.cli import HELP, Command
from trainkit.errors import ConfigError
from trainkit.resources import describe, describe_bytes
from trainkit.runtime.local.system import boot
from trainkit.runtime.local.wire import sessions as local_sessions
from trainkit.runtime.local.wire.sessions import Session, SessionState, state_of
from trainkit.tune.display import Table, duration, wide_console


def sessions() -> list[Session]:
    """Return the user's sessions with a running node, newest first."""
    return local_sessions.sessions(boot.home())


def find_session(found: Sequence[Session], prefix: str) -> Session:
    """Return the session whose id starts with `prefix`.

    Raises:
        ConfigError: no session or more than one session matches.
    """
    matching = [session for session in found if session.id.startswith(prefix)]
    if len(matching) != 1:
        there = ", ".join(f"{session.id} ({session.program})" for session in found) or "none"
        raise ConfigError(
            f"{'several sessions have' if matching else 'no session has'} an id that starts with {prefix!r}; "
            f"your sessions in {boot.home()} are: {there}"
        )
    return matching[0]


class Status(Command):
    """`trainkit status`."""

    help = HELP["status"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON document, for other programs")

    def run(self, arguments: argparse.Namespace) -> int:
        states = [state_of(session) for session in sessions()]
        if arguments.json:
            sys.stdout.write(json.dumps([state.plain() for state in states], indent=2) + "\n")
            return 0
        console = wide_console()
        for table in [table for state in states for table in _tables(state)] or [Table(lines=[NO_SESSION])]:
            console.print(table)
        return 0


NO_SESSION = "no session is running"


def _tables(state: SessionState) -> Iterator[Table]:
    """Yield tables that together describe a session."""
    driver = "gone" if state.driver is None else f"pid {state.driver}"
    head = (
        f"{state.session.program}, session {state.session.id}: driver {driver}, "
        f"node pid {state.session.node}, started {duration(state.age_s)} ago"
    )
    if state.problem:
        yield Table(lines=[head, f"  {state.problem}"], strong=0)
        return
    lines = [head]
    for node in state.lists["nodes"]:
        lines += [f"  resources: {_resources(node)}", f"  objects: {_objects(node['object_store'])}"]
    living = [actor for actor in state.lists["actors"] if actor["state"] != "DEAD"]
    columns = ["  actor", "class", "name", "state", "pid", "holds"]
    yield Table(columns, [_actor_cells(actor) for actor in living], lines, strong=0)
    tasks = [
        [f"  {task['name']}", task["state"].lower(), str(task["pid"] or ""), describe(task["resources"])]
        for task in state.lists["tasks"]
    ]
    if tasks:
        yield Table(["  task", "state", "pid", "holds"], tasks)
    lines = []
    for group in state.lists["placement_groups"]:
        bundles = ", ".join(f"[{describe(bundle)}]" for bundle in group["bundles"])
        name = f" {group['name']!r}" if group["name"] else ""
        lines.append(f"  group {group['placement_group_id']}{name}: {group['state'].lower()}, {bundles}")
    for request in state.lists["requests"]:
        lines.append(f"  waits: {request_line(request)}: {'; '.join(request['reasons'])}")
    if lines:
        yield Table(lines=lines)


def _actor_cells(actor: dict[str, Any]) -> list[str]:
    return [
        f"  {actor['actor_id']}",
        actor["class_name"],
        f"{actor['name'] or ''}{' (detached)' if actor['detached'] else ''}",
        actor["state"].lower(),
        str(actor["pid"] or ""),
        describe(actor["resources"]),
    ]


def request_line(request: dict[str, Any]) -> str:
    """Return a line that describes a waiting request for resources."""
    return (
        f"{request['what']} ({request['id']}) has been waiting {duration(request['since_s'])} for "
        f"{describe(request['asked'])}"
    )


def _resources(node: dict[str, Any]) -> str:
    total, free = node["resources"], node["available"]
    return ", ".join(
        f"{_amount(name, free.get(name, 0))} of {_amount(name, total[name])} {name} free"
        for name in sorted(total)
    )


def _objects(store: dict[str, int]) -> str:
    text = f"{describe_bytes(store['used_bytes'])} of {describe_bytes(store['limit_bytes'])} memory"
    if store["spilled_objects"]:
        text += (
            f", {describe_bytes(store['on_disk_bytes'])} on disk "
            f"({store['spilled_objects']} spilled so far, {describe_bytes(store['spilled_bytes'])})"
        )
    return text


def _amount(name: str, amount: float) -> str:
    return describe_bytes(amount) if name == "memory" else f"{amount:g}"
