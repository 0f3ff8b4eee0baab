"""`trainkit why EXPERIMENT [TRIAL]`: what was decided on a trial, or how an experiment ended, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainkit.cli.experiments import chosen_trial, experiment_folder
from trainkit.clock import SYSTEM
from trainkit.resources import describe
from trainkit.tune.control.events import REARRANGED
from trainkit.tune.placement import PlacementGroupFactory
from trainkit.tune.running.protocol import NO_PROCESS
from trainkit.tune.schedulers.words import in_words
from trainkit.tune.storing.chronicle import ChronicleReader, Event
from trainkit.tune.storing.overview import Overview
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import decode_config

_SAID_ELSEWHERE = ("trial_id", "attempt", "iteration", "verdict")


def why_experiment(word: str, trial: str | None) -> int:
    """Say why a trial stands where it does, from its decisions and events, or the same of the experiment.

    Raises:
        ConfigError: there is no such experiment or trial.
    """
    folder = experiment_folder(word)
    overview = Overview.of(folder, SYSTEM.now())
    with ChronicleReader(folder) as reader:
        if trial is None:
            lines = [f"{folder}: {overview.state}", *map(_event_line, reader.events())]
        else:
            lines = list(_of_trial(overview, reader, chosen_trial(overview.trials, trial)))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _of_trial(overview: Overview, reader: ChronicleReader, trial: Trial) -> Iterator[str]:
    reason = f": {trial.reason}" if trial.reason else ""
    yield f"{trial.name} is {trial.status}{reason}"
    if trial.status is TrialStatus.PENDING:
        running = [other for other in overview.trials if other.status is TrialStatus.RUNNING]
        if overview.owner is None:
            yield "  nobody runs the experiment; tune.Tuner.restore(...).fit() goes on with it"
        elif trial.alone:
            yield "  it runs when nothing else does, since its memory was not enough"
        else:
            yield f"  it waits for a place: {len(running)} trials run"
    yield f"  configuration: {_facts(trial.config)}"
    for attempt in reader.attempts(trial.trial_id):
        own = f", with {_facts(attempt.config)}" if attempt.config != trial.config else ""
        yield (
            f"  attempt {attempt.number}: from {_when(attempt.started)}{_process(attempt.pid)} on "
            f"{attempt.hostname}, from iteration {attempt.iteration} on, {_reports(attempt.reports)}{own}"
        )
    told = set()
    for decision in reader.decisions(trial.trial_id):
        facts = {name: value for name, value in decision.items() if name not in _SAID_ELSEWHERE}
        words = str(facts["stop"]) if "stop" in facts else in_words(facts)
        told.add(words)
        yield f"  report {decision['iteration']}: {decision['verdict']}{words and f', {words}'}"
    for event in reader.events(trial.trial_id):
        detail = _rearranged(event.detail) if event.kind == REARRANGED else event.detail
        who, _, words = detail.partition(": ")  # such as 'paused by PBT', and what its decision has said
        yield f"  {_event_line(replace(event, detail=who if words in told else detail))}"
    if trial.failure is not None:
        yield from (f"  {line}" for line in trial.failure.traceback.splitlines())


def _rearranged(detail: str) -> str:
    """In words what a trial goes on with: whose state, which configuration, what it reserves."""
    change = decode_config(detail)
    words = []
    if change.get("donor") is not None:  # what changes with it is told by the decision
        words.append(f"goes on from {change['donor']} after {_reports(change['donor_iteration'])}")
    elif change["config"] is not None:
        words.append(f"goes on with {_facts(change['config'])}")
    if change["alone"]:
        words.append("runs alone, as its memory was not enough")
    if change.get("before") is not None:
        now, before = (
            describe(PlacementGroupFactory(*change[key]).required_resources) for key in ("granted", "before")
        )
        words.append(f"reserves {now}, {before} before")
    return ", ".join(words)


def _reports(count: int) -> str:
    return f"{count} report" if count == 1 else f"{count} reports"


def _event_line(event: Event) -> str:
    return f"{_when(event.time)} {event.kind}" + (f": {event.detail}" if event.detail else "")


def _when(time: float) -> str:
    return f"{datetime.fromtimestamp(time):%Y-%m-%d %H:%M:%S}"


def _process(pid: int) -> str:
    return f" in process {pid}" if pid != NO_PROCESS else ""


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in facts.items()
    )
