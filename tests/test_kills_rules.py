"""Rules of the campaign of kills: its plan, its checks with faults that they must find, its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kills import checks, plan, state
from benchmarks.kills.cycle import Record
from benchmarks.kills.findings import Findings
from benchmarks.kills.parts import ASKED, KILLED, PARTS

TARGETS = {name: PARTS[name].targets for name in KILLED}
PHASES = {name: PARTS[name].phases for name in ASKED}
SPANS = {name: part.span_s for name, part in PARTS.items()}


def cycles(seed: int, count: int) -> list[plan.Cycle]:
    return [plan.cycle(seed, number, TARGETS, SPANS) for number in range(count)]


# --- the plan ---------------------------------------------------------------------------------------


def test_every_target_and_every_fault_is_hit() -> None:
    hit = {(each.part, strike.target) for each in cycles(0, 1500) for strike in each.strikes}
    assert hit == {(name, target) for name, targets in TARGETS.items() for target in targets}
    assert {strike.fault for each in cycles(0, 100) for strike in each.strikes} == {*plan.FAULTS}


def test_requests_come_in_every_phase_to_the_program_and_to_all_of_its_processes() -> None:
    planned = [plan.cycle(5, number, PHASES, SPANS, PHASES) for number in range(400)]
    assert all(each.requests for each in planned) and not any(each.requests for each in cycles(5, 60))
    strikes = [(each.part, strike) for each in planned for strike in each.strikes]
    assert {(part, strike.phase) for part, strike in strikes} == {
        (part, phase) for part, phases in PHASES.items() for phase in phases
    }
    assert {(strike.target, strike.fault) for _, strike in strikes} == {
        (target, fault)
        for target in (plan.DRIVER, plan.JOB, plan.WORKER)
        for fault in ("term", "usr1", "usr2")
    }
    assert all(strike.asks == (strike.target != plan.WORKER) for _, strike in strikes)


# --- the checks -------------------------------------------------------------------------------------

HISTORY = {"a": [0.5, [[1, 2.0, "s1"], [2, 1.0, "s2"]]]}
REPORTS = [["report", "a", "s1"]]
CANDIDATES = {"candidates": [[1, 0.0, 0.5], [2, 0.0, 0.7]], "best": [{"max_depth": 2}, 0.7]}
EPOCHS = {"epoch": 2, "steps": 6, "weights": [1.5], "losses": {"1": 0.4, "2": 0.2}}
TRAINED = [["resumed", 0], ["epoch", 1, 0.4], ["resumed", 1], ["epoch", 2, 0.2]]
PLACED = [*TRAINED[:2], ["place", 5]]
CALL = ["1 0", "once", 3, 4]


def kinds(findings: Findings) -> set[str]:
    return {*findings.faults}


@pytest.mark.parametrize(
    ("acks", "ran", "expected"),
    [
        ([["value", *CALL, 304.0]], [["ran", *CALL]], set()),
        ([["value", *CALL, 304.0]], [], {"missing"}),
        ([["value", *CALL, 304.0]], [["ran", *CALL], ["ran", *CALL]], {"twice"}),
        ([], [["ran", "1 0", "sure", 3, 4], ["ran", "1 0", "sure", 3, 4]], set()),
        ([["value", *CALL, 303.0]], [["ran", *CALL]], {"differing"}),
    ],
)
def test_calls(acks: Any, ran: Any, expected: set[str]) -> None:
    assert kinds(checks.check_calls(acks, ran, None)) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([("new", 1), ("found", 0), ("value", 1), ("value", 2)], set()),
        ([("new", 1), ("value", 1), ("found", 2), ("value", 3)], set()),
        (
            [("new", 1), ("value", 1), ("value", 2), ("lost", 1), ("new", 1), ("found", 0), ("value", 1)],
            set(),
        ),
        ([("new", 1), ("value", 1), ("value", 2), ("found", 1)], {"missing"}),
        ([("new", 1), ("value", 1), ("value", 1)], {"twice"}),
        ([("new", 1), ("value", 1), ("value", 3)], {"differing"}),
    ],
)
def test_counts_of_a_detached_actor(values: Any, expected: set[str]) -> None:
    assert kinds(checks.check_detached(values, 60, 60)) == expected


@pytest.mark.parametrize(
    ("acks", "outcome", "expected"),
    [
        (REPORTS, HISTORY, set()),
        ([["report", "a", "s3"]], HISTORY, {"missing"}),
        (REPORTS, {"a": [0.5, [[1, 2.0, "s1"], [1, 2.0, "s1"]]]}, {"twice", "differing"}),
        (REPORTS, {"a": [0.5, [[1, 2.0, "s1"], [2, 1.5, "s2"]]]}, {"differing"}),
    ],
)
def test_reports_of_trials(acks: Any, outcome: Any, expected: set[str]) -> None:
    assert kinds(checks.check_reports(acks, outcome, HISTORY, exact=True)) == expected


@pytest.mark.parametrize(
    ("acks", "outcome", "expected"),
    [
        (TRAINED, EPOCHS, set()),
        ([*TRAINED[:2], ["resumed", 0], ["epoch", 1, 0.4], TRAINED[3]], EPOCHS, {"missing"}),
        ([*TRAINED[:2], TRAINED[1], TRAINED[3]], EPOCHS, {"twice"}),
        ([*TRAINED[:3], ["epoch", 2, 0.3]], EPOCHS, {"differing"}),
        (TRAINED, {**EPOCHS, "weights": [1.25]}, {"differing"}),
        (TRAINED, {**EPOCHS, "steps": 7}, {"differing"}),
        ([*PLACED, ["resumed", 1, 5], TRAINED[3]], EPOCHS, set()),
        ([*PLACED, ["resumed", 1, 3], TRAINED[3]], EPOCHS, {"missing"}),
        ([*TRAINED[:2], ["asked", 5], ["resumed", 1, 4], TRAINED[3]], EPOCHS, set()),
        ([*TRAINED[:2], ["asked", 5], ["resumed", 1, 3], TRAINED[3]], EPOCHS, {"missing"}),
        ([*TRAINED[:2], ["loss", 2, 0.2]], EPOCHS, set()),
        ([*TRAINED[:2], ["loss", 2, 0.3]], EPOCHS, {"differing"}),
    ],
)
def test_epochs(acks: Any, outcome: Any, expected: set[str]) -> None:
    assert kinds(checks.check_epochs(acks, outcome, EPOCHS)) == expected


def test_candidates() -> None:
    done = [["candidate", 1, 0.0, 0.5]]
    assert not checks.check_candidates(done, CANDIDATES, CANDIDATES).faults
    assert kinds(checks.check_candidates([["candidate", 3, 0.0, 0.5]], CANDIDATES, CANDIDATES)) == {"missing"}
    other = {**CANDIDATES, "best": [{"max_depth": 1}, 0.5]}
    assert kinds(checks.check_candidates(done, other, CANDIDATES)) == {"differing"}


# --- the files of a job and of a campaign -----------------------------------------------------------


def test_a_campaign_resumes_only_from_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    cycle = plan.cycle(1, 0, TARGETS, SPANS)
    findings = Findings(acknowledged=3, there=2, within=1, uncut=1, missing=["a"])
    record = Record(struck=[*cycle.strikes], codes=[-9, 0], findings=findings)
    state.append(path, state.line_of(cycle, record, 1, list(PARTS), took_s=2.0))
    (line,) = state.read(path, 1, list(PARTS))
    assert (line["cycle"], line["missing"], len(line["struck"])) == (0, ["a"], len(cycle.strikes))
    total = state.totals([line], PARTS)[cycle.part]
    assert (total.acknowledged, total.there, total.within) == (3, 2, 1)
    assert total.uncut == 1
    assert total.kills.total() == len(cycle.strikes)
    assert total.faults["missing"] == 1
    with pytest.raises(ValueError, match="give the same arguments"):
        state.read(path, 1, list(PARTS), signals=True)
    with pytest.raises(
        ValueError, match=r"belongs to a campaign with --seed 1 --parts calls .*: give the same"
    ):
        state.read(path, 2, list(PARTS))
    assert state.read(tmp_path / "new", 1, list(PARTS)) == []
    assert json.loads(path.read_text())["part"] == cycle.part
