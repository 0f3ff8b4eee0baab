"""Sessions of the user as plain data, and `trainkit status`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.resources import describe, describe_bytes
from trainkit.runtime.local.system import process
from trainkit.runtime.local.wire import sessions as doors
from trainkit.runtime.local.wire.messages import State
from trainkit.runtime.local.wire.sessions import Session

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


KINDS = ("nodes", "actors", "tasks", "placement_groups", "requests")


@dataclass(frozen=True, kw_only=True)
class SessionState:
    """What one session says of itself.

    Attributes:
        age_s: seconds since it was started.
        driver: pid of the program that started it; None if that has ended.
        lists: dicts by kind, see KINDS.
        problem: why the lists are empty; "" if the node answered.
    """

    session: Session
    age_s: float
    driver: int | None
    lists: dict[str, list[dict[str, Any]]]
    problem: str = ""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "session_id": self.session.id,
            "node_pid": self.session.node,
            "driver_pid": self.driver,
            "age_s": round(self.age_s, 3),
            "problem": self.problem,
            **self.lists,
        }


def sessions() -> list[Session]:
    """The user's sessions whose nodes run, newest first."""
    return doors.sessions(doors.home())


def chosen(found: Sequence[Session], prefix: str) -> list[Session]:
    """Those whose id starts with `prefix`; raises ConfigError if it is none, or more than one."""
    matching = [session for session in found if session.id.startswith(prefix)]
    if len(matching) != 1:
        there = ", ".join(session.id for session in found) or "none"
        raise ConfigError(
            f"{'several sessions' if matching else 'no session'} of yours in {doors.home()} with an id that "
            f"starts with {prefix!r}; there are: {there}"
        )
    return matching


def survey(session: Session) -> SessionState:
    """Ask a session's node for all it has to tell."""
    lists: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    problem = ""
    try:
        with doors.connect(session.folder) as node:
            for kind in KINDS:
                lists[kind] = node.ask(State(kind))
    except TrainkitError as error:
        problem = str(error)
    gone = session.driver_gone or not process.exists(session.driver)
    return SessionState(
        session=session,
        age_s=max(0.0, SYSTEM.now() - session.started),
        driver=None if gone else session.driver,
        lists=lists,
        problem=problem,
    )


_WIDTH = 4_000
"""Of lines, in characters: more than any table is wide, as a number that is folded is two numbers."""


def status(*, as_json: bool) -> int:
    """Show all sessions of this user."""
    surveys = [survey(session) for session in sessions()]
    if as_json:
        sys.stdout.write(json.dumps([found.plain() for found in surveys], indent=2) + "\n")
        return 0
    console = wide_console()
    if not surveys:
        console.print("no session is running")
    for found in surveys:
        _show(console, found)
    return 0


def wide_console() -> Console:
    """Where tables are printed: never folded or cut, so a line may be longer than the terminal is wide."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, markup=False, width=_WIDTH)


def duration(seconds: float) -> str:
    """Text for people: '45 s', '12 min', '3.5 h', '2.1 d'."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            count = seconds / size
            return f"{count:.2g} {unit}" if count < 10 else f"{count:.0f} {unit}"
    return f"{seconds:.0f} s"


def _show(console: Console, found: SessionState) -> None:
    driver = "gone" if found.driver is None else f"pid {found.driver}"
    console.print(
        f"session {found.session.id}: driver {driver}, node pid {found.session.node}, "
        f"started {duration(found.age_s)} ago",
        style="bold",
    )
    if found.problem:
        console.print(f"  {found.problem}", soft_wrap=True)
        return
    for node in found.lists["nodes"]:
        console.print(f"  resources: {_resources(node)}", soft_wrap=True)
        console.print(f"  objects: {_objects(node['object_store'])}", soft_wrap=True)
    _show_actors(console, found.lists["actors"])
    _show_tasks(console, found.lists["tasks"])
    for group in found.lists["placement_groups"]:
        bundles = ", ".join(f"[{describe(bundle)}]" for bundle in group["bundles"])
        name = f" {group['name']!r}" if group["name"] else ""
        console.print(
            f"  group {group['placement_group_id']}{name}: {group['state'].lower()}, {bundles}",
            soft_wrap=True,
        )
    for request in found.lists["requests"]:
        console.print(f"  waits: {request_line(request)}: {'; '.join(request['reasons'])}", soft_wrap=True)


def request_line(request: dict[str, Any]) -> str:
    """One line on a request that waits."""
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


def _show_actors(console: Console, actors: list[dict[str, Any]]) -> None:
    living = [actor for actor in actors if actor["state"] != "DEAD"]
    if not living:
        return
    table = _table("actor", "class", "name", "state", "pid", "holds")
    for actor in living:
        name = actor["name"] or ""
        if actor["detached"]:
            name += " (detached)"
        table.add_row(
            actor["actor_id"],
            actor["class_name"],
            name,
            actor["state"].lower(),
            str(actor["pid"] or ""),
            describe(actor["resources"]),
        )
    console.print(table)


def _show_tasks(console: Console, tasks: list[dict[str, Any]]) -> None:
    if not tasks:
        return
    table = _table("task", "state", "pid", "holds")
    for task in tasks:
        table.add_row(
            task["name"], task["state"].lower(), str(task["pid"] or ""), describe(task["resources"])
        )
    console.print(table)


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=True, header_style="dim")
    for column in columns:
        table.add_column(column)
    return table
