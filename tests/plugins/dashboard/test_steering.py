"""Steering by the REST API: what runs in another process is held, gone on with, added to and set."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.plugins.dashboard.browser import commanded
from tests.plugins.dashboard.conftest import Asker, asker_of, served
from tests.tune.experiment.steered import Driver
from trainkit.client import Experiment

pytestmark = pytest.mark.external

ONE = "/experiments/e"


class Program:
    """A program that runs an experiment, and a dashboard over it."""

    def __init__(self, driver: Driver, ask: Asker) -> None:
        self.driver, self.ask = driver, ask

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask.get(f"{ONE}/trials")["rows"]
        return found

    def tell(self, verb: str, status: int = 200, **body: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.ask.checked("POST", f"{ONE}/{verb}", status, body)
        return found

    def finish(self) -> list[str]:
        return [status for status, _ in self.driver.finish()]


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    made.start()
    try:
        assert eventually(lambda: made.has_begun)
        yield made
    finally:
        made.kill()


@pytest.fixture
def program(driver: Driver) -> Iterator[Program]:
    with served(driver.root) as ask:
        yield Program(driver, ask)


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"x": found}
    return found


REFUSED: list[tuple[str, int, Any]] = [
    ("add", 400, {}),
    ("add", 400, {"config": [1]}),
    ("add", 409, {"config": {"x": 7}}),
    ("add", 409, {"config": {"x": 10**400}}),
    ("add", 409, {"config": {"y": 1}}),
    ("add", 409, {"config": {"kind": "c" * 50_000}}),
    ("add", 409, {"config": {"__class__": "os.system", "x": {"__type__": "pickle"}}}),
    ("add", 409, {"config": deep(900)}),
    ("set", 409, {}),
    ("set", 400, {"num_samples": "9"}),
    ("set", 400, {"samples": 9}),
    ("set", 409, {"num_samples": 1}),
    ("set", 409, {"time_budget_s": 10**400}),
    ("pause", 404, {"trial": "none"}),
    ("prioritise", 400, {"trial": None}),
]


def test_what_makes_no_sense_is_refused_and_changes_nothing(program: Program) -> None:
    before = program.ask.get(ONE)
    for verb, status, body in REFUSED:
        words = program.tell(verb, status, **body)["error"]
        assert len(words) > 10, (verb, body)
    one = program.ask.get(ONE)
    assert (one["total"], one["settings"]) == (before["total"], before["settings"])
    answers = Experiment(program.driver.folder).commands()
    assert not any(each.done for each in answers)
    told = [
        each["detail"] for each in program.ask.get(f"{ONE}/events")["events"] if each["kind"] == "command"
    ]
    assert len(told) == len(answers) and max(map(len, told)) < 10_000, "a text is cut, and says so"
    (cut,) = [each for each in map(json.loads, told) if "ccc" in each["arguments"]]
    assert cut["verb"] == "add" and cut["arguments"].endswith("c...")
    assert program.finish() == ["TERMINATED"] * 3, "whoever runs it has taken no harm"


# --- the server is killed ------------------------------------------------------------------------------


def test_a_command_under_way_when_the_server_is_killed_is_in_the_history_or_was_never_taken(
    driver: Driver,
) -> None:
    """The program that runs the experiment goes on, and what it took up is told to the next server."""
    told: list[dict[str, Any]] = []
    for number in range(5):
        told += killed_while_steering(driver.root, wait_s=0.15 * number)
    commands = driver.folder / "commands"
    left = sorted(path.name for path in commands.glob("*.json"))
    with served(driver.root) as ask:
        # What a dead asker has left is taken up: nobody else can say that it was taken back.
        assert eventually(lambda: not list(commands.glob("*.json"))), left
        history = Experiment(driver.folder).commands()
        assert len({each.id for each in history}) == len(history), "none twice"
        assert {each["id"] for each in told} <= {each.id for each in history}, "what was told holds"
        program = Program(driver, ask)
        events = ask.get(f"{ONE}/events")["events"]
        assert sum(each["kind"] == "command" for each in events) == len(history)
        samples = [each.arguments["num_samples"] for each in history if each.done]
        assert samples and ask.get(ONE)["total"] == samples[-1]
        program.tell("set", num_samples=3)
        assert program.finish() == ["TERMINATED"] * 3


def killed_while_steering(root: Path, wait_s: float) -> list[dict[str, Any]]:
    """Kill a server while it carries out commands; return the answers that had come by then."""
    with commanded(root) as (server, address):
        ask = asker_of(address)
        told: list[dict[str, Any]] = []

        def steer(samples: int) -> None:
            with suppress(OSError, http.client.HTTPException):  # it was killed first
                reply = ask("POST", f"/api{ONE}/set", {"num_samples": samples})
                if reply.status == 200:
                    told.append(reply.json)

        threads = [threading.Thread(target=steer, args=(number,)) for number in range(4, 10)]
        for each in threads:
            each.start()
        commands = root / "e" / "commands"
        assert eventually(lambda: bool(told) or any(commands.glob("*.json")))
        time.sleep(wait_s)
        server.kill()
        server.wait()
        for each in threads:
            each.join()
        return told
