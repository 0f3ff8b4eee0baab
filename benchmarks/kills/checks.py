"""Checks of each program: pure functions of what it has acknowledged and of what is there in the end.

A check receives the acknowledged results, the outcome, and the outcome of an undisturbed run, as `Check` in
`findings` says.
"""

from __future__ import annotations

from typing import Any

from benchmarks.kills.findings import Acks, Findings, of_kind


def check_calls(acks: Acks, outcome: Any, expected: Any) -> Findings:
    """Check that acknowledged calls have run, and calls without retries at most once."""
    findings = Findings()
    values = of_kind(acks, "value")
    ran = of_kind(outcome, "ran")
    retried = {each for each in ran if each[1] in ("sure", "lasting")}
    findings.compare(
        [each[:-1] for each in values], [*retried, *(each for each in ran if each[1] in ("once", "mortal"))]
    )
    for session, name, wave, index, value in values:
        findings.equal(f"{name} {session} {wave}", value, wave * 100 + index)
    return findings


def check_detached(acks: Acks, outcome: Any, expected: Any) -> Findings:
    """Check that no count of a living actor was lost, or made twice.

    A program that was killed may have left one call that counted, but was not acknowledged.
    """
    findings = Findings()
    findings.equal("count", outcome, expected)
    last = 0
    for kind, value in acks:
        if kind == "new":
            last = 0
        elif kind in ("found", "value"):
            findings.acknowledged += kind == "value"
            if value < last:
                findings.missing.append(f"count {last}, but then {value}")
            elif kind == "value" and value == last:
                findings.twice.append(f"count {value}")
            elif value > last + 1:
                findings.differing.append(f"count {last}, and then {value}")
            last = value
    findings.there = findings.acknowledged - len(findings.missing)
    return findings


def check_reports(acks: Acks, outcome: Any, expected: Any, *, exact: bool) -> Findings:
    """Check that each acknowledged report is in the history of its trial, and each iteration once.

    Args:
        acks: acknowledged reports.
        outcome: configuration and history by trial.
        expected: outcome of an undisturbed run.
        exact: True if the outcome must equal that of an undisturbed run.
    """
    findings = Findings()
    states = [(trial, row[2]) for trial, (_, rows) in outcome.items() for row in rows]
    findings.compare(of_kind(acks, "report"), states)
    for trial, (_, rows) in outcome.items():
        iterations = [row[0] for row in rows]
        findings.equal(f"iterations of {trial}", iterations, [*range(1, len(rows) + 1)])
    if exact:
        findings.equal("trials", len(outcome), len(expected))
        for (trial, found), wanted in zip(outcome.items(), expected.values(), strict=False):
            findings.equal(f"trial {trial}", found, wanted)
    return findings


def check_epochs(acks: Acks, outcome: Any, expected: Any) -> Findings:
    """Check that no acknowledged epoch or step was trained again.

    All numbers must equal those of an undisturbed run. A request to end may cost the step in hand at most.
    """
    findings = Findings()
    last = place = asked = 0
    for kind, *values in acks:
        if kind == "resumed":
            epoch, step = (*values, place)[:2]
            findings.missing += [f"epoch {each}" for each in range(epoch + 1, last + 1)]
            if step < place:
                findings.missing.append(f"step {place}: resumed after step {step}")
            if step < asked:
                findings.lost += asked - step
            if step < asked - 1:
                findings.missing.append(f"steps after {step}: finished before a request in step {asked}")
            last, place, asked = epoch, step, 0
        elif kind == "asked":
            (asked,) = values
        elif kind == "loss":
            epoch, loss = values
            findings.equal(f"loss of epoch {epoch}", loss, expected["losses"][str(epoch)])
        elif kind == "place":
            (place,) = values
            findings.acknowledged += 1
            findings.within += place % (expected["steps"] // expected["epoch"]) > 0
        elif kind == "epoch":
            epoch, loss = values
            findings.acknowledged += 1
            findings.equal(f"loss of epoch {epoch}", loss, expected["losses"][str(epoch)])
            if epoch <= last:
                findings.twice.append(f"epoch {epoch}")
            last = epoch
    findings.there = findings.acknowledged - len(findings.missing)
    for name in ("epoch", "steps", "weights"):
        findings.equal(name, outcome.get(name), expected.get(name))
    return findings


def check_candidates(acks: Acks, outcome: Any, expected: Any) -> Findings:
    """Check that each acknowledged candidate has its score, and that all scores are equal."""
    findings = Findings()
    findings.compare(of_kind(acks, "candidate"), map(tuple, outcome["candidates"]))
    findings.equal("candidates", outcome["candidates"], expected["candidates"])
    findings.equal("best", outcome["best"], expected["best"])
    return findings
