"""Command `trainkit check-resume`: kill a training script, run it again, and compare."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainkit.cli import HELP, Command
from trainkit.plugins.check_resume import comparison
from trainkit.plugins.check_resume.attempts import WORKERS, Outcome, Run, Script, signal_named
from trainkit.plugins.check_resume.comparison import ADVICE, Finding
from trainkit.plugins.check_resume.records import CheckError, Ranks, steps_by_weights

_EXACT, _DIFFERS, _FAILED = 0, 1, 2


class CheckResume(Command):
    """Command `trainkit check-resume`."""

    help = HELP["check-resume"]

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "trainkit check-resume [flags] train.py [arguments]"
        parser.allow_abbrev = False
        parser.add_argument("script", help="script, or program such as torchrun; with -m a module")
        parser.add_argument("arguments", nargs=argparse.REMAINDER, help="{run} in them is the run's folder")
        parser.add_argument("-m", "--module", action="store_true", help="run a module, as python -m does")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        for name, kind, default, metavar, text in (
            ("steps", int, 20, "N", "optimizer steps to compare (default: 20)"),
            ("kills", int, 2, "N", "number of kills, after random steps (default: 2)"),
            ("kill-at", _numbers, None, "N,N", "kill after these steps instead"),
            ("seed", int, 0, "N", "seed of the random steps (default: 0)"),
            ("signal", signal_named, "SIGKILL", "NAME", "signal of the kills (default: KILL)"),
            ("grace", float, 30.0, "S", "seconds after a different signal to a kill (default: 30)"),
            ("workers", _numbers, None, "N,N", "values of {workers}: the first, then others to resume on"),
            ("tolerance", float, 1e-3, "X", "relative, on other numbers of workers (default: 0.001)"),
            ("timeout", float, 600.0, "S", "seconds for each run of the command (default: 600)"),
        ):
            parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)
        text = "file or folder of the current folder that the script reads"
        parser.add_argument("--link", action="append", default=[], metavar="PATH", help=text)

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            with tempfile.TemporaryDirectory(prefix="check-", ignore_cleanup_errors=True) as scratch:
                report = Check(arguments, Path(scratch)).run()
        except CheckError as error:
            sys.stderr.write(f"trainkit check-resume: {error}\n")
            return _FAILED
        sys.stdout.write(f"{report.as_json() if arguments.json else report}\n")
        return _DIFFERS if report.findings else _EXACT


def _numbers(text: str) -> list[int]:
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(f"the numbers must be 1 or more, not {text}")
    return numbers


@dataclass(frozen=True)
class Kill:
    """A kill, and the resume after it.

    Attributes:
        step: last step before the kill.
        resumed_at: last step that the checkpoint contains; 0: the script began again.
        workers: number of ranks after the resume.
    """

    step: int
    resumed_at: int
    workers: int


@dataclass
class Report:
    """Result of a check.

    Attributes:
        steps: number of undisturbed steps.
        workers: number of ranks of the undisturbed run.
        kills: the kills in order.
        findings: differences at the first step that differs; empty if the script resumes exactly.
        notes: facts that are no differences.
    """

    steps: int
    workers: int
    kills: list[Kill] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """Return the report as a JSON object, with the advice for each finding."""
        found = [dataclasses.asdict(each) | {"advice": ADVICE[each.kind]} for each in self.findings]
        return json.dumps({"exact": not found, **dataclasses.asdict(self), "findings": found})

    def __str__(self) -> str:
        lines = [
            f"killed after step {kill.step}, resumed after step {kill.resumed_at}"
            + (f" on {kill.workers} workers" if kill.workers != self.workers else "")
            for kill in self.kills
        ]
        lines += [f"note: {note}" for note in self.notes]
        if not self.findings:
            return "\n".join([*lines, f"exact: all {self.steps} steps are those of the undisturbed run"])
        first, *others = self.findings
        return "\n".join([*lines, f"DIFFERENT: {first}", *(f"  also: {each.what}" for each in others)])


class Check:
    """A check of a script: the undisturbed run, and the runs that are killed.

    Args:
        arguments: arguments of the command.
        scratch: empty folder.
    """

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        words = [arguments.script, *arguments.arguments]
        if bool(arguments.workers) != any(WORKERS in word for word in words):
            raise CheckError(
                f"--workers 2,3 and {WORKERS} in the command, such as --nproc-per-node {WORKERS}, go together"
            )
        self._workers = [str(number) for number in arguments.workers or (1,)]
        self._arguments = arguments
        self._script = Script(
            words=["-m", *words] if arguments.module else words,
            links=arguments.link,
            signal=arguments.signal,
            grace_s=arguments.grace,
            timeout_s=arguments.timeout,
            scratch=scratch,
        )

    def run(self) -> Report:
        """Run the script undisturbed, kill it, and return the comparison.

        Raises:
            CheckError: the script failed undisturbed, made no optimizer step, or took too long.
        """
        first, *others = self._workers
        steps = self._arguments.steps
        run = Run(self._script, "undisturbed")
        self._undisturbed = _usable(run.attempt(stop=steps, workers=first, kill=True, weights={}))
        total = sum(bool(step.result) for step in self._undisturbed[0])
        self._report = report = Report(total, len(self._undisturbed))
        kills = self._kills(total)
        self._chain("killed", kills, [first] * len(kills))
        for number in others:
            self._chain(f"on-{number}", kills[:1], [number])
        if not report.findings and not any(kill.resumed_at for kill in report.kills):
            what = (
                f"the script began again from the first step after every kill, at last after step {kills[-1]}"
            )
            report.findings = [Finding("began again", kills[-1], 0, what)]
        return report

    def _kills(self, total: int) -> list[int]:
        chosen = self._arguments.kill_at
        if total < 2 or (chosen and max(chosen) >= total):
            raise CheckError(f"the run has {total} optimizer steps; kills must come before the last one")
        later = range(max(1, total // 4), total)
        count = min(max(1, self._arguments.kills), len(later))
        return sorted(chosen or random.Random(self._arguments.seed).sample(later, count))

    def _chain(self, name: str, kills: Sequence[int], workers: Sequence[str]) -> None:
        """Run the script in one folder, kill it after each step of `kills`, and resume it each time."""
        if self._report.findings:
            return
        run = Run(self._script, name)
        again = _usable(run.attempt(stop=kills[0], workers=self._workers[0], weights={}))
        self._undisturbed = comparison.with_seeded_generators(self._undisturbed, again)
        for each in comparison.compare(self._undisturbed, again, 0)[:1]:
            what = f"two runs from the first step differ, without a resume: {each.what}"
            self._report.findings = [Finding("not reproducible", each.step, each.rank, what)]
        known = steps_by_weights(self._undisturbed)
        stops = [*kills[1:], self._report.steps]
        for kill, stop, count in zip(kills, stops, workers, strict=True):
            if not self._report.findings:
                is_last = stop == stops[-1]
                outcome = run.attempt(stop=stop, workers=count, kill=is_last, weights=known)
                self._judge(outcome, kill, stop)

    def _judge(self, outcome: Outcome, kill: int, stop: int) -> None:
        """Compare a resumed attempt with the undisturbed run."""
        report, ranks, expected = self._report, outcome.ranks, self._undisturbed
        if not ranks:
            report.findings = [_ended(outcome, kill, 0)]
            return
        first = comparison.align(expected[0], ranks[0][0])
        report.kills.append(Kill(kill, first, len(ranks)))
        done = first + sum(bool(step.result) for step in ranks[0])
        if len(ranks) != len(expected):
            tolerance = self._arguments.tolerance
            report.findings = comparison.compare_on_others(expected, ranks, first, tolerance)
        else:
            report.findings = comparison.compare(expected, ranks, first)
            silent = comparison.silent_generators(expected, ranks, first)
            if silent and not report.findings:
                report.notes = [
                    f"the generator's state ({', '.join(silent)}) differs at the end, without effect on "
                    "these steps; a later epoch that draws from it would differ"
                ]
        if not report.findings and done < stop:
            report.findings = [_ended(outcome, kill, done)]


def _usable(outcome: Outcome) -> Ranks:
    if outcome.code and not outcome.stopped:
        raise CheckError(f"the script failed without a kill, exit code {outcome.code}:\n{outcome.output}")
    if not outcome.ranks:
        raise CheckError(
            "no optimizer step was recorded: the script must make its steps by torch.optim, and start Python "
            f"without -I, -E and -S. Its last lines:\n{outcome.output}"
        )
    return outcome.ranks


def _ended(outcome: Outcome, kill: int, done: int) -> Finding:
    after = f"after step {done}" if done else "before its first step"
    when = f"{after} when it was run again after a kill at step {kill}"
    if outcome.code:
        what = (
            f"the command failed {when}, exit code {outcome.code}, with these last lines\n{outcome.output}\n"
        )
        return Finding("failed", done, 0, what)
    return Finding("ended", done, 0, f"the command ended {when}, as if the training were finished")
