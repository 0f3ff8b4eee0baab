"""Rules of the campaign of kills: its plan, its checks with faults that they must find, its state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kills import checks, plan, processes, state
from benchmarks.kills.cycle import Record, may_leave_files
from benchmarks.kills.findings import Findings
from benchmarks.kills.job import Job
from benchmarks.kills.parts import ASKED, KILLED, PARTS

TARGETS = {name: PARTS[name].targets for name in KILLED}
PHASES = {name: PARTS[name].phases for name in ASKED}
SPANS = {name: part.span_s for name, part in PARTS.items()}


def cycles(seed: int, count: int) -> list[plan.Cycle]:
    return [plan.cycle(seed, number, TARGETS, SPANS) for number in range(count)]


# --- the plan ---------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_cycles_and_another_seed_others() -> None:
    assert cycles(1, 60) == cycles(1, 60)
    assert cycles(1, 60) != cycles(2, 60)


def test_every_round_has_each_part_once() -> None:
    count = len(KILLED)
    for first in range(0, 3 * count, count):
        assert {each.part for each in cycles(4, 3 * count)[first : first + count]} == {*KILLED}


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


@pytest.mark.parametrize(
    ("target", "code", "is_complete", "may"),
    [
        (plan.JOB, -9, True, True),  # the program had completed, but not ended its session
        (plan.JOB, 143, True, False),
        (plan.NODE, 0, True, False),
        (plan.NODE, 1, False, True),
        (plan.DRIVER, -9, True, False),
        (plan.DRIVER, -9, False, False),
    ],
)
def test_files_may_stay_only_if_no_process_could_remove_them(
    target: str, code: int, is_complete: bool, may: bool
) -> None:
    strike = plan.Strike(target, "kill", True, 0.1, 0.1, 0.5)
    assert may_leave_files([strike], code, {} if is_complete else None) is may


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


def test_populations_need_not_repeat_an_undisturbed_run() -> None:
    other = {"b": [0.25, [[1, 9.0, "s1"]]]}
    assert not checks.check_reports([["report", "b", "s1"]], other, HISTORY, exact=False).faults


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


def test_places_within_an_epoch_are_counted() -> None:
    acks = [["resumed", 0, 0], ["place", 2], ["resumed", 0, 2], ["place", 3], ["resumed", 1, 3]]
    findings = checks.check_epochs(acks, EPOCHS, EPOCHS)
    assert (findings.acknowledged, findings.there, findings.within) == (2, 2, 1)


def test_steps_that_a_request_has_cost_are_counted() -> None:
    acks = [["resumed", 0, 0], ["asked", 3], ["resumed", 0, 2], ["asked", 5], ["resumed", 1, 5]]
    assert checks.check_epochs(acks, EPOCHS, EPOCHS).lost == 1


def test_candidates() -> None:
    done = [["candidate", 1, 0.0, 0.5]]
    assert not checks.check_candidates(done, CANDIDATES, CANDIDATES).faults
    assert kinds(checks.check_candidates([["candidate", 3, 0.0, 0.5]], CANDIDATES, CANDIDATES)) == {"missing"}
    other = {**CANDIDATES, "best": [{"max_depth": 1}, 0.5]}
    assert kinds(checks.check_candidates(done, other, CANDIDATES)) == {"differing"}


# --- processes --------------------------------------------------------------------------------------


def test_targets_are_chosen_by_name_and_parent() -> None:
    there = {
        pid: processes.Process(pid, name, parent)
        for pid, name, parent in [
            (10, "python", 1),
            (11, "trainkit-node", 10),
            (12, "trainkit-tmpl", 11),
            (13, "tk-worker", 12),
            (14, "tk-worker", 13),
            (15, "tk-checkpoint-writer"[:15], 12),
        ]
    }
    targets = (*TARGETS["ddp"][:6], plan.LOADER, plan.WRITER)
    found = {target: processes.candidates(target, 10, there) for target in targets}
    assert found == {
        "driver": [10],
        "node": [11],
        "template": [12],
        "worker": [13, 15],
        "group": [10],
        "job": [10, 11, 12, 13, 14, 15],
        "loader": [14],
        "writer": [15],
    }


# --- the files of a job and of a campaign -----------------------------------------------------------


def test_a_job_keeps_lines_and_its_outcome(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert (job.lines(), job.outcome()) == ([], None)
    job.ack("epoch", 1, 0.25)
    job.finish({"epoch": 1})
    assert (job.lines(), job.outcome()) == ([["epoch", 1, 0.25]], {"epoch": 1})


def test_only_files_that_trainkit_checks_are_cut(tmp_path: Path) -> None:
    job = Job(tmp_path / "checkpoint" / "own")
    names = [
        "saved/state.pt",
        "run/own",
        "run/checkpoint.ckpt",
        "run/checkpoint/model",
        "run/log",
        "run/empty",
    ]
    for name in names:
        path = job.kept / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name == "run/empty" else name)
    assert job.checked_files() == [job.kept / "run/log", job.kept / "saved/state.pt"]


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
