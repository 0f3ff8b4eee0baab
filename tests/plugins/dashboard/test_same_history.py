"""One script of commands, given in each of the ways there are, leaves one history but for who gave it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.plugins.dashboard.conftest import served
from tests.plugins.dashboard.test_mcp import talk
from tests.tune.experiment.test_steered_from_outside import Driver
from trainkit.cli.main import main
from trainkit.client import Experiment
from trainkit.errors import TuneError
from trainkit.tune.store.commands import asker

pytestmark = [pytest.mark.external, pytest.mark.slow]

Command = tuple[str, dict[str, Any]]

HISTORY = [
    (
        True,
        "set",
        {"num_samples": 4, "max_concurrent_trials": 2},
        "from now on num_samples=4, max_concurrent_trials=2",
    ),
    (True, "add", {"config": {"x": 0.5}}, '{"x":0.5,"kind":"b","root":"ROOT"} is tried next'),
    (False, "add", {"config": {"x": 7}}, "x=7 is not in uniform(0.0, 1.0)"),
    (True, "pause", {"trial": "T0"}, "trial T0 pauses at its next report"),
    (True, "prioritise", {"trial": "T0"}, "trial T0 runs before the others once it is resumed"),
    (True, "resume", {"trial": "T0"}, "trial T0 goes on"),
    (False, "resume", {"trial": "T1"}, "trial T1 is not paused: RUNNING"),
    (True, "stop", {"trial": "T1"}, "trial T1 ends at its next report"),
    (
        True,
        "pause",
        {},
        "nothing starts until the experiment is resumed; of 2 running trials, those that can save a "
        "checkpoint pause at their next report, and the others continue",
    ),
    (False, "pause", {}, "the experiment was paused already by WHO"),
    (True, "resume", {}, "the experiment resumes"),
    (True, "stop", {}, "the experiment ends, and trials that run end at their next report"),
]


def script(driver: Driver) -> Iterator[Command]:
    """Yield the commands, each once the trials stand as the one before has left them."""

    def stand(**statuses: str) -> bool:
        found = driver.trials()
        return all(found[int(name[1:])].status == status for name, status in statuses.items())

    def run(*indexes: int) -> bool:
        return len(driver.trials()) > max(indexes) and stand(**{f"t{each}": "RUNNING" for each in indexes})

    ids = [trial.trial_id for trial in driver.trials()]
    yield "set", {"num_samples": 4, "max_concurrent_trials": 2}
    yield "add", {"config": {"x": 0.5}}
    yield "add", {"config": {"x": 7}}
    yield "pause", {"trial": ids[0]}
    assert eventually(lambda: stand(t0="PAUSED") and run(1, 2))
    yield "prioritise", {"trial": ids[0]}
    yield "resume", {"trial": ids[0]}
    yield "resume", {"trial": ids[1]}
    yield "stop", {"trial": ids[1]}
    assert eventually(lambda: stand(t1="TERMINATED") and run(0, 2))
    yield "pause", {}
    assert eventually(lambda: stand(t0="PAUSED", t2="PAUSED"))
    yield "pause", {}
    yield "resume", {}
    yield "stop", {}


def by_client(driver: Driver) -> None:
    experiment = Experiment(driver.folder)
    for verb, arguments in script(driver):
        with contextlib.suppress(TuneError):  # the history has what was refused
            getattr(experiment, verb)(**arguments)


def by_command_line(driver: Driver) -> None:
    for verb, arguments in script(driver):
        words = [{"prioritise": "first"}.get(verb, verb), str(driver.folder)]
        for name, value in arguments.items():
            if verb == "set":
                words += [f"--{name.replace('_', '-')}", str(value)]
            else:
                words.append(value if isinstance(value, str) else json.dumps(value))
        assert main([*words, "--json"]) in (0, 1)


def by_rest(driver: Driver) -> None:
    with served(driver.root) as ask:
        for verb, arguments in script(driver):
            reply = ask("POST", f"/api/experiments/e/{verb}", arguments)
            assert reply.status in (200, 409), reply.body


def by_agent(driver: Driver) -> None:
    async def to(client: Any, call: Callable[..., Any]) -> None:
        for verb, arguments in script(driver):
            await call(verb, experiment="e", **arguments)

    talk(driver.root, "--allow-steering", to=to)


@pytest.mark.parametrize(
    ("give", "who"),
    [
        (by_client, "{}"),
        (by_command_line, "{}"),
        (by_rest, "{}, by the dashboard"),
        (by_agent, "an agent of "),  # of another process
    ],
)
def test_a_script_of_commands_leaves_one_history_whoever_gives_it(
    give: Callable[[Driver], None], who: str, tmp_path: Path
) -> None:
    driver = Driver(tmp_path)
    driver.start()
    try:
        assert eventually(lambda: bool(driver.reports(0) and driver.reports(1)))
        give(driver)
        driver.finish()
    finally:
        driver.kill()
    commands = Experiment(driver.folder).commands()
    trials = driver.trials()

    def plain(text: str) -> str:
        for number, trial in enumerate(trials):
            text = text.replace(trial.trial_id, f"T{number}")
        return text.replace(str(tmp_path), "ROOT").replace(commands[0].by, "WHO")

    told = [
        (each.done, each.verb, json.loads(plain(json.dumps(each.arguments))), plain(each.outcome))
        for each in commands
    ]
    assert told == HISTORY
    assert {each.by.startswith(who.format(asker())) for each in commands} == {True}
    assert len({each.by for each in commands}) == 1
    assert (trials[1].status, plain(trials[1].reason)) == ("TERMINATED", "stopped by WHO")
    assert trials[2].config["x"] == 0.5
