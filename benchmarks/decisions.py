"""Differences between decisions on the same reports: `python -m benchmarks.decisions [--seeds 5] [--list]`.

Streams of reports go through our ASHAScheduler and through the classes of Ray, Optuna and Syne Tune. Each
receives a trial's reports until ours ends the trial. Every decision that differs is traced to its cause. For
this, the peer's own rule at the rung must give the peer's decision from the values that it recorded there,
and our rule must give ours. The values on both sides must be equal, except for entries that an earlier fault
has left. Ray's HyperBand and the median rules of Ray and Optuna are compared in the same way
(`decision_brackets.py`, `decision_medians.py`). A kind of stream for which a peer has no rule, such as NaN in
Syne Tune, is skipped.

Prints a table, and rows as one line of JSON. A difference without such a cause is printed, and the exit code
is then 1. `--list` prints all differences.

Peers are used if they are installed: ray, optuna, and syne-tune 0.16, which needs other versions of packages
and is best installed in a separate folder: `PYTHONPATH=where/it/is`. A missing peer is named and left out.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial

from benchmarks import decision_brackets, decision_medians
from benchmarks.decision_peers import Optuna, Ray, RungPeer, Rungs, SyneTune, named
from benchmarks.decision_streams import KINDS, MAX_T, Report, stream
from benchmarks.rows import Report as Rows
from benchmarks.rows import Row, parser
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import ASHAScheduler, Decision, Verdict

ETA = 4

# Faults that are more than a different rule at a rung.
NAN_GOES_ON = "NaN never stops"
NAN_IS_NO_ENTRY = "NaN is no entry, or ignored by the percentile"
INFINITY = "plus infinity is the best there is"
INFINITY_GOES_ON = "minus infinity goes on where it is first, or the percentile is no number"
JUMP_AGAIN = "after a jump judged again, at a lower rung, with a late value"
JUMP_ALL = "after a jump judged at every rung that was passed, with one late value"
LATE_ENTRIES = "the rung holds late values, of trials that had jumped over it"
STOPPED_ENTRIES = "the rung holds a report that came after the stop"
JUMP_BEFORE = "after a jump it had stopped the trial at a lower rung before"
LACKING = "the rung lacks trials that were stopped lower, after a jump"
AFTER_STOP = "a report after the stop is judged as any other"
NO_METRIC = "without the metric, not even max_t ends the trial"


@dataclass
class Case:
    """One report, and its outcome on both sides.

    Attributes:
        ours: our decision.
        stops: True if the peer stops the trial.
        before, after: values at the peer's rungs before and after the report.
        lay: values at our rungs before the report.
        skipped: levels that each trial has jumped over.
        ended: trials that our scheduler had ended before.
        lost: trials that only the peer had stopped before, at a rung that they had jumped over.
    """

    report: Report
    ours: Decision
    stops: bool
    before: Rungs
    after: Rungs
    lay: Rungs
    skipped: Mapping[str, set[int]]
    ended: Set[str]
    lost: Set[str]


@dataclass
class Tally:
    """Outcome of the streams of one kind for a peer."""

    reports: int = 0
    judged: int = 0
    lines: list[tuple[str | None, str]] = field(default_factory=list)

    @property
    def causes(self) -> Counter[str]:
        """Number of differing decisions by cause."""
        return Counter(cause or "UNEXPLAINED" for cause, _ in self.lines)


def drive(peer: RungPeer, kind: str, seed: int, tally: Tally) -> None:
    """Give both sides one stream; a trial continues as long as our scheduler lets it."""
    ours = ASHAScheduler(metric="u", mode="max", max_t=MAX_T, reduction_factor=ETA)
    ours.set_search_properties("u", "max", scheduler_generator(seed))
    lay: Rungs = {1: {}, 4: {}, 16: {}, 64: {}}
    skipped: dict[str, set[int]] = {}
    ended: set[str] = set()
    heard_late: set[str] = set()
    lost: set[str] = set()
    for report in stream(kind, seed):
        trial, t, value = report
        if trial in ended and (kind != "late" or trial in heard_late):
            continue
        if trial in ended:
            heard_late.add(trial)
        if trial not in skipped:
            skipped[trial] = set()
            ours.on_trial_add(trial)
            peer.add(trial)
        result = {"training_iteration": t} | ({} if value is None else {"u": value})
        decision = ours.on_result(trial, result)
        tally.reports += 1
        tally.judged += decision.reason.get("rule") == "rung"
        if decision.reason.get("rule") == "max_t" and isinstance(peer, Optuna):
            peer.ended(trial)  # in Optuna, the objective ends by itself
            ended.add(trial)
            continue
        before = peer.rungs()
        stops = peer.stops(trial, t, value)
        if stops != (decision.verdict is Verdict.STOP):
            case = Case(report, decision, stops, before, peer.rungs(), lay, skipped, ended, lost)
            cause = cause_of(peer, case)
            if cause == JUMP_ALL and stops:
                lost.add(trial)
            tally.lines.append((cause, _line(peer, kind, seed, case, cause)))
        if decision.reason.get("rule") == "rung":
            level = int(decision.reason["rung"])
            skipped[trial] |= {each for each in lay if each < level and trial not in lay[each]}
            assert value is not None
            lay[level][trial] = value
        if decision.verdict is Verdict.STOP and trial not in ended:
            ended.add(trial)
            peer.ended(trial)


def cause_of(peer: RungPeer, case: Case) -> str | None:
    """Return why the peer decides differently; None if its known rules do not explain it."""
    trial, _, value = case.report
    rule = case.ours.reason.get("rule")
    if value is None:
        return NO_METRIC if rule == "max_t" and not case.stops else None
    judged = [
        level
        for level in sorted(case.after)
        if trial in case.after[level] and trial not in named(case.before, level)
    ]
    if math.isnan(value) and not judged:  # Optuna stops the trial, as our rule would, but records nothing
        judged = [int(case.ours.reason["rung"])] if rule == "rung" else []
    predicted = any(peer.rule(list(named(case.before, level).values()), value) for level in judged)
    if predicted != case.stops:
        return None
    if rule == "late report":
        return AFTER_STOP
    if trial in case.lost:
        return JUMP_BEFORE
    if rule is None:
        return JUMP_AGAIN if judged and set(judged) <= case.skipped[trial] else None
    if rule != "rung":
        return None
    lay = case.lay[int(case.ours.reason["rung"])]
    if rule_of_ours(lay.values(), value) != (case.ours.verdict is Verdict.STOP):
        return None  # the fault is ours
    if math.isnan(value):
        return NAN_GOES_ON
    if math.isinf(value):
        return INFINITY if value > 0 else INFINITY_GOES_ON
    level = int(case.ours.reason["rung"])
    if judged != [level]:
        passed = {each for each in case.lay if each <= level}
        return JUMP_ALL if "skipped" in case.ours.reason and set(judged) <= passed else None
    return _cause_at(peer, case, level, value)


def rule_of_ours(before: Iterable[float], value: float) -> bool:
    """Return True if a trial stops at a rung with the values `before`, in their order, by our rule."""
    if not math.isfinite(value):
        return True
    before = list(before)
    ahead = sum(math.isfinite(each) and each >= value for each in before)
    return ahead >= max(1, (len(before) + 1) // ETA)


def _cause_at(peer: RungPeer, case: Case, level: int, value: float) -> str | None:
    """Return the cause of a difference at a rung where both have judged a finite value."""
    theirs, ours = named(case.before, level), case.lay[level]
    causes = set()
    for trial in theirs.keys() ^ ours.keys():
        if trial in ours and math.isnan(ours[trial]):
            causes.add(NAN_IS_NO_ENTRY)
        elif trial in theirs and level in case.skipped[trial]:
            causes.add(LATE_ENTRIES)
        elif trial in theirs and trial in case.ended:
            causes.add(STOPPED_ENTRIES)
        elif trial in ours and case.skipped[trial]:
            causes.add(LACKING)
        else:
            return None
    for trial in theirs.keys() & ours.keys():
        if theirs[trial] != ours[trial] and not math.isnan(ours[trial]):
            if not case.skipped[trial]:
                return None
            causes.add(LATE_ENTRIES)
    if causes:
        return "; ".join(sorted(causes))
    if any(math.isnan(each) for each in theirs.values()):
        return NAN_IS_NO_ENTRY
    if math.inf in theirs.values():
        return INFINITY
    if value in theirs.values():
        return peer.tie_words
    return peer.rule_words


def _line(peer: RungPeer, kind: str, seed: int, case: Case, cause: str | None) -> str:
    facts = " ".join(f"{name}={fact}" for name, fact in case.ours.reason.items())
    return (
        f"{peer.name}, {kind} {seed}: trial {case.report.trial} at {case.report.t} with {case.report.value}: "
        f"{'STOP' if case.stops else 'CONTINUE'}, ours {case.ours.verdict} ({facts or 'not judged'}): "
        f"{cause or 'UNEXPLAINED'}"
    )


def at_rungs(make: Callable[[int], RungPeer], seeds: int) -> dict[str, Tally]:
    """Return a peer's tally for each kind of stream."""
    tallies: dict[str, Tally] = {}
    for kind in KINDS:
        for seed in range(seeds):
            peer = make(ETA)
            if kind not in peer.kinds:
                break
            drive(peer, kind, seed, tallies.setdefault(kind, Tally()))
    return tallies


def by_medians(make: Callable[[], decision_medians.MedianPeer], seeds: int) -> dict[str, Tally]:
    """Return a tally for each kind of stream for a median rule, which judges every report."""
    tallies: dict[str, Tally] = {}
    for kind in KINDS:
        for seed in range(seeds):
            peer = make()
            if kind not in peer.kinds:
                break
            reports, lines = decision_medians.drive(peer, kind, seed)
            tally = tallies.setdefault(kind, Tally())
            tally.reports, tally.judged = tally.reports + reports, tally.judged + reports
            tally.lines += lines
    return tallies


def in_brackets(seeds: int) -> dict[str, Tally]:
    """Return a tally for each kind of stream for Ray's brackets, which judge all their trials at once."""
    tallies: dict[str, Tally] = {}
    for kind in decision_brackets.KINDS:
        tally = tallies.setdefault(kind, Tally())
        for seed in range(seeds):
            reports, lines = decision_brackets.drive(kind, seed)
            tally.reports, tally.judged = tally.reports + reports, tally.judged + reports
            tally.lines += lines
    return tallies


def show(name: str, tallies: Mapping[str, Tally], *, every: bool) -> None:
    """Print a peer's tallies."""
    print(name)
    for kind, tally in tallies.items():
        print(
            f"  {kind}: {tally.reports} reports, {tally.judged} judged, {len(tally.lines)} decided otherwise"
        )
        for cause, count in tally.causes.most_common():
            print(f"    {count:5d}  {cause}")
        if every:
            print("".join(f"      {line}\n" for _, line in tally.lines), end="")
    left_out = [kind for kind in KINDS if kind not in tallies]
    if left_out:
        print(f"  not driven: {', '.join(left_out)}")
    print()


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--seeds", type=int, default=5, help="streams of each kind")
    arguments.add_argument("--list", action="store_true", help="print every difference")
    given = arguments.parse_args()
    if given.small:
        given.seeds = 1
    warnings.filterwarnings("ignore", module="optuna")
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # Ray's percentile of NaN and infinities
    print(f"{given.seeds} streams of each kind; rungs 1 4 16 64 of {MAX_T}, eta {ETA}\n")
    found: list[Row] = []
    unexplained: list[str] = []
    sides: list[tuple[str, Callable[[], dict[str, Tally]]]] = [
        *((peer.name, partial(at_rungs, peer, given.seeds)) for peer in (Ray, Optuna, SyneTune)),
        (decision_brackets.NAME, partial(in_brackets, given.seeds)),
        *((peer.name, partial(by_medians, peer, given.seeds)) for peer in decision_medians.PEERS),
    ]
    for name, run in sides:
        try:
            tallies = run()
        except ImportError as error:
            print(f"{name}: left out, as it is not installed ({error})\n")
            continue
        show(name, tallies, every=given.list)
        for tally in tallies.values():
            unexplained += [line for cause, line in tally.lines if cause is None]
        otherwise = sum(len(tally.lines) for tally in tallies.values())
        found.append(Row(f"{name}: decided otherwise", better="", exact=True).measured([otherwise]))
    print("".join(f"{line}\n" for line in unexplained), end="")
    found.append(Row("differences without a known cause", exact=True).measured([len(unexplained)]))
    with Rows("decisions", small=given.small) as report:
        for row in found:
            report.add(row)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
