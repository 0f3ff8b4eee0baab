"""`trainkit why`: reasons for the state of a trial, an experiment, an actor or a request."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from trainkit.cli import HELP, Command
from trainkit.cli.experiments import (
    TRIAL,
    experiment_folder,
    find_trial,
    is_experiment,
    near_experiment,
    not_found,
)
from trainkit.cli.sessions import request_line, sessions
from trainkit.client import Answer
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.registry import added, loaded
from trainkit.resources import describe
from trainkit.runtime.local.wire.sessions import SessionState, state_of
from trainkit.tune.controller import events
from trainkit.tune.core.metrics import encode
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.display import count_words, duration, pairs_text
from trainkit.tune.results.overview import LogEvent, LogReader, Overview, reasons_of
from trainkit.tune.schedulers import load_words
from trainkit.tune.space.serialization import decode_config
from trainkit.tune.trial.messages import NO_PROCESS

_ID_OF = {
    "requests": ("id", "what"),
    "actors": ("actor_id", "name", "class_name"),
    "placement_groups": ("placement_group_id", "name"),
    "tasks": ("name",),
}
"""Fields by which a user can name an item of each list. The first field may be abbreviated."""


class Why(Command):
    """`trainkit why`."""

    help = HELP["why"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "id",
            metavar="EXPERIMENT|ID",
            help="an experiment; or the name, or the beginning of the id, of an actor, request or group",
        )
        parser.add_argument("trial", metavar="TRIAL", nargs="?", help=f"a trial of the experiment: {TRIAL}")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.trial is not None or is_experiment(arguments.id):
            lines = experiment_lines(experiment_folder(arguments.id), arguments.trial)
            sys.stdout.write("\n".join(lines) + "\n")
            return 0
        return why(arguments.id)


def why(wanted: str) -> int:
    """Print why the actors, groups, tasks and requests named `wanted` wait, or how they ended.

    Raises:
        ConfigError: nothing in the sessions has that name or id.
    """
    lines: list[str] = []
    states = [state_of(session) for session in sessions()]
    for found in states:
        for kind, item in _matching(found, wanted):
            lines.extend(line for line in _explain(found, kind, item) if line not in lines)
    if not lines:
        for name in added("trainkit.explanations"):
            lines += loaded("trainkit.explanations", name)(wanted)
    if not lines:
        problems = "".join(f"; {found.problem}" for found in states if found.problem)
        raise ConfigError(
            f"{not_found(wanted)}. Nothing in your sessions has that name, or an id that starts with it. "
            "For a trial, name its experiment: `trainkit why EXPERIMENT TRIAL`. "
            "`trainkit ls DIR` lists the experiments in DIR, `trainkit status` what is in your sessions"
            f"{problems}{(near := near_experiment(wanted)) and f'.{near}'}"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _matching(found: SessionState, wanted: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, (first, *others) in _ID_OF.items():
        for item in found.lists[kind]:
            if str(item[first]).startswith(wanted) or wanted in [item[key] for key in others]:
                yield kind, item


def _explain(found: SessionState, kind: str, item: dict[str, Any]) -> Iterator[str]:
    if kind == "requests":
        yield from _explain_request(item)
        free = {name: amount for node in found.lists["nodes"] for name, amount in node["available"].items()}
        yield f"  free: {describe({name: amount for name, amount in free.items() if amount > 0})}"
        return
    name = item.get("name") or item.get("class_name") or item.get("placement_group_id")
    state = item["state"]
    if state == "DEAD":
        yield f"{name} ({item['actor_id']}) ended: {item['death_cause'] or 'the cause is unknown'}"
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


def _request_of(found: SessionState, item: dict[str, Any]) -> dict[str, Any] | None:
    own_id = item.get("actor_id") or item.get("placement_group_id")
    return next((request for request in found.lists["requests"] if request["id"] == own_id), None)


def experiment_lines(folder: Path, trial: str | None) -> list[str]:
    """Return lines about the decisions and events behind the state of a trial, or of the experiment.

    Args:
        folder: folder of the experiment.
        trial: id, name or number of the trial; None means the experiment.

    Raises:
        ConfigError: the trial does not exist.
        StoreError: `folder` has no experiment.
    """
    overview = Overview.of(folder, SYSTEM.now())
    with LogReader(folder) as reader:
        load_words(reader.facts()["tune_config"]["scheduler"])
        if trial is None:
            names = {trial.trial_id: trial.name for trial in overview.trials}
            of_all, commands = reader.events(), reader.commands()
            # All commands of users are added, because `events()` returns no commands about single trials.
            events_of = {event.seq: event for event in [*of_all, *commands]}
            return [
                f"{folder}: {overview.state}",
                *(_event_line(events_of[seq], names) for seq in sorted(events_of)),
            ]
        return list(_of_trial(overview, reader, find_trial(overview.trials, trial)))


def _of_trial(overview: Overview, reader: LogReader, trial: Trial) -> Iterator[str]:
    reason = f": {trial.reason}" if trial.reason else ""
    yield f"{trial.name}: {trial.state}{reason}"
    if trial.status is TrialStatus.PENDING:
        running = [other for other in overview.trials if other.status is TrialStatus.RUNNING]
        if overview.owner is None:
            yield "  no process runs the experiment; tune.Tuner.restore(...).fit() resumes it"
        elif by := reader.steering().who_holds(trial.trial_id):
            yield f"  it was paused by {by}; `trainkit resume` resumes it"
        elif trial.alone:
            yield "  it waits to run alone, as it ran out of memory"
        else:
            yield f"  it waits to be started: {len(running)} trials are running"
    yield f"  configuration: {pairs_text(trial.config)}"
    for attempt in reader.attempts(trial.trial_id):
        own = f", with {pairs_text(attempt.config)}" if attempt.config != trial.config else ""
        reports = count_words(attempt.reports, "report")
        yield (
            f"  attempt {attempt.number}: started {_when(attempt.started)}{_process(attempt.pid)} on "
            f"{attempt.hostname} at iteration {attempt.iteration}, {reports}{own}"
        )
    told = set()
    for decision in reader.decisions(trial.trial_id):
        _, words = reasons_of(decision)
        told.add(words)
        yield f"  report {decision['iteration']}: {decision['verdict']}{words and f', {words}'}"
    for event in reader.events(trial.trial_id):
        # An event such as 'paused by PBT: ...' may repeat the text of a decision that is already shown. If it
        # does, only the event's text before the colon is shown.
        who, _, words = event.detail.partition(": ")
        yield f"  {_event_line(replace(event, detail=who) if words in told else event)}"
    if trial.failure is not None:
        yield from (f"  {line}" for line in trial.failure.traceback.splitlines())


def _rearranged(detail: str) -> str:
    """Return text about the changes in a trial's state, configuration or resources in a log entry."""
    change = decode_config(detail)
    words = []
    if (donor := change.get("donor")) is not None:  # the line about the decision shows the other data
        words.append(f"continues from {donor} after {count_words(change['donor_iteration'], 'report')}")
    elif change["config"] is not None:
        words.append(f"continues with {pairs_text(change['config'])}")
    if change["alone"]:
        words.append("runs alone, as it ran out of memory")
    if change.get("before") is not None:
        now, before = (
            describe(PlacementGroupFactory(*change[key]).required_resources) for key in ("granted", "before")
        )
        words.append(f"reserves {now} instead of {before}")
    return ", ".join(words)


def _event_line(event: LogEvent, names: Mapping[str, str] | None = None) -> str:
    """Return a line about a log entry; `names` maps trial ids to names, for an entry about the experiment."""
    detail = _detail(event, names or {})
    return f"{_when(event.time)} {event.kind}" + (f": {detail}" if detail else "")


def _detail(event: LogEvent, names: Mapping[str, str]) -> str:
    match event.kind:
        case events.REARRANGED:
            return _rearranged(event.detail)
        case events.COMMAND:
            return _told(Answer.of(event), names)
        case events.LEFT_OUT:
            return str(json.loads(event.detail)["words"])
    return event.detail


def _told(answer: Answer, names: Mapping[str, str]) -> str:
    given = " ".join(f"{name}={encode(value)}" for name, value in answer.arguments.items() if name != "trial")
    refused = "" if answer.done else "refused, "
    trial = names.get(answer.arguments.get("trial") or "")
    verb = f"{answer.verb} {trial}" if trial else answer.verb
    return f"{verb}{given and f' {given}'} by {answer.by}: {refused}{answer.outcome}"


def _when(time: float) -> str:
    return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"


def _process(pid: int) -> str:
    return f" in process {pid}" if pid != NO_PROCESS else ""
