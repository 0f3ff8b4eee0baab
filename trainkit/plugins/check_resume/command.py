"""Command `trainkit check-resume`: kill a training script, run it again, and compare."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from trainkit.cli import HELP, Command
from trainkit.errors import TrainkitError
from trainkit.plugins.check_resume import comparison
from trainkit.plugins.check_resume.attempts import Outcome, Script
from trainkit.plugins.check_resume.comparison import ADVICE, Finding
from trainkit.plugins.check_resume.records import CheckError, Ranks

_EXACT, _DIFFERS, _FAILED, _TERMINATED = 0, 1, 2, 143
_HOLD_S = 5.0
"""Seconds to wait after the last step before the kill, if earlier kills came before the first checkpoint."""
_SIGNALS = ("KILL", "TERM", "INT", "HUP", "USR1", "USR2")
_BROKEN = """the script failed without a kill, exit code {}:
{}
Each run has an empty working folder: pass --link for the files that the script reads there. Two runs take
place at the same time: pass --jobs 1 if they disturb each other"""
_NO_STEP = """no optimizer step was recorded: the script must make its steps by torch.optim, and start Python
without -I, -E and -S. Its last lines:
{}"""
_SILENT = (
    "the generator's state ({}) differs at the end, without effect on these steps; a later epoch that draws "
    "from it would differ"
)


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
        parser.add_argument("--signal", choices=_SIGNALS, default="KILL", help="of the kills (default: KILL)")
        text = "file or folder of the current folder that the script reads"
        parser.add_argument("--link", action="append", default=[], metavar="PATH", help=text)
        for name, kind, default, metavar, text in (
            ("steps", int, 20, "N", "optimizer steps to compare (default: 20)"),
            ("kills", int, 2, "N", "kills after random steps, on the first number of workers (default: 2)"),
            ("kill-at", _numbers, None, "N,N", "kill after these steps instead"),
            ("seed", int, 0, "N", "seed of the random steps (default: 0)"),
            (
                "workers",
                _numbers,
                None,
                "N,N",
                "values of {workers}: the first, then others that resume after the first kill",
            ),
            ("tolerance", float, 1e-3, "X", "relative, on other numbers of workers (default: 0.001)"),
            ("timeout", float, 600.0, "S", "seconds for each run of the command (default: 600)"),
            ("jobs", int, 2, "N", "runs of the command at the same time (default: 2)"),
        ):
            parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            with tempfile.TemporaryDirectory(prefix="check-", ignore_cleanup_errors=True) as scratch:
                report = asyncio.run(_report(arguments, Path(scratch)))
        except asyncio.CancelledError:  # the signal SIGTERM has cancelled the running check
            return _TERMINATED
        except (TrainkitError, OSError) as error:
            sys.stderr.write(f"trainkit check-resume: {error}\n")
            return _FAILED
        sys.stdout.write(f"{report.as_json() if arguments.json else report}\n")
        return _DIFFERS if report.findings else _EXACT


async def _report(arguments: argparse.Namespace, scratch: Path) -> Report:
    """Make the check; SIGTERM cancels it, and ends its runs."""
    check = asyncio.ensure_future(Check(arguments, scratch).run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, check.cancel)
    return await check


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
            return "\n".join(
                [*lines, f"exact: all {self.steps} steps equal the steps of the undisturbed run"]
            )
        first, *others = self.findings
        return "\n".join([*lines, f"DIFFERENT: {first}", *(f"  also: {each.what}" for each in others)])


class Check:
    """A check of a script: the undisturbed run, and the runs that are killed.

    Args:
        arguments: arguments of the command.
        scratch: empty folder.
    """

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self._arguments = arguments
        self._script = Script(arguments, scratch)

    async def run(self) -> Report:
        """Run the script undisturbed, kill it, and return the comparison.

        Raises:
            CheckError: the script failed undisturbed, made no optimizer step, or took too long.
        """
        steps, workers = self._arguments.steps, self._script.workers
        kills = self._kills(steps)
        begun = [self._begin(steps, kill=True), *(self._begin(kills[0]) for _ in workers)]
        (_, self._undisturbed), *attempts = await asyncio.gather(*begun)
        total = len(self._undisturbed[0])
        if total < steps:  # If the script ends earlier than requested, the kills must also come earlier.
            self._arguments.steps = total
            return await self.run()
        self._report = report = Report(steps, len(self._undisturbed))
        for _, again in attempts:
            comparison.remove_unseeded_generators(self._undisturbed, again)
            for each in comparison.compare(self._undisturbed, again, 0)[:1]:
                what = f"two runs from the first step differ, without a resume: {each.what}"
                report.findings = [Finding("not reproducible", each.step, each.rank, what)]
                return report
        chains = [kills, *(kills[:1] for _ in workers[1:])]
        for (folder, _), chain, count in zip(attempts, chains, workers, strict=True):
            await self._resume(folder, chain, count)
        if not report.findings and not any(kill.resumed_at for kill in report.kills):
            # If a checkpoint is written in the background, it may not have been complete at the kill.
            folder, _ = await self._begin(kills[-1], hold_s=_HOLD_S)
            await self._resume(folder, kills[-1:], workers[0])
        if not report.findings and not any(kill.resumed_at for kill in report.kills):
            what = "the script began again from the first step after every kill, at last after step"
            report.findings = [Finding("began again", kills[-1], 0, f"{what} {kills[-1]}")]
        return report

    def _kills(self, total: int) -> list[int]:
        """Return the steps after which a training of `total` steps is killed."""
        # The last kill comes early enough that the resumed run has a step to compare, even if the script
        # makes a further step after a signal.
        later = range(max(1, total // 4), total - 1)
        drawn = random.Random(self._arguments.seed).sample(later, min(self._arguments.kills, len(later)))
        kills = sorted(self._arguments.kill_at or drawn)
        if not kills or kills[-1] > total - 2:
            raise CheckError(
                f"the run has {total} optimizer steps: a check needs at least 3, and kills 2 before the last"
            )
        return kills

    async def _begin(self, stop: int, *, kill: bool = False, hold_s: float = 0) -> tuple[Path, Ranks]:
        """Run the script from its start to step `stop` in a new folder."""
        folder = self._script.working_folder()
        plan = {"stop": stop, "hold_s": hold_s, "weights": {}}
        outcome = await self._script.attempt(folder, plan, workers=self._script.workers[0], kill=kill)
        if outcome.code and not outcome.stopped:
            raise CheckError(_BROKEN.format(outcome.code, outcome.output))
        if not outcome.ranks:
            raise CheckError(_NO_STEP.format(outcome.output))
        return folder, outcome.ranks

    async def _resume(self, folder: Path, kills: Sequence[int], workers: str) -> None:
        """Resume a killed run, and kill it after each further step of `kills`, until a step differs."""
        total = self._report.steps
        numbered = (pair for steps in self._undisturbed for pair in enumerate(steps, start=1))
        known = {"".join(step.weights): number for number, step in numbered}
        for kill, stop in pairwise([*kills, total]):
            if not self._report.findings:
                plan = {"stop": stop, "hold_s": 0, "weights": known}
                outcome = await self._script.attempt(folder, plan, workers=workers, kill=stop == total)
                self._judge(outcome, kill, stop)

    def _judge(self, outcome: Outcome, kill: int, stop: int) -> None:
        """Compare a resumed attempt with the undisturbed run."""
        report, ranks, expected = self._report, outcome.ranks, self._undisturbed
        last = 0
        if ranks:
            first = comparison.align(expected[0], ranks[0][0])
            last = first + len(ranks[0])
            report.kills.append(Kill(kill, first, len(ranks)))
            if len(ranks) != len(expected):
                tolerance = self._arguments.tolerance
                report.findings += comparison.compare_on_others(expected, ranks, first, tolerance)
            else:
                report.findings += comparison.compare(expected, ranks, first)
                silent = comparison.silent_generators(expected, ranks, first)
                report.notes = [_SILENT.format(", ".join(silent))] if silent and not report.findings else []
        if last < stop and not report.findings:
            report.findings = [_ended(outcome, kill, last)]


def _ended(outcome: Outcome, kill: int, done: int) -> Finding:
    after = f"after step {done}" if done else "before its first step"
    when = f"{after} when it was run again after a kill at step {kill}"
    if outcome.code:
        what = f"failed {when}, exit code {outcome.code}, with these last lines\n{outcome.output}\n"
        return Finding("failed", done, 0, f"the command {what}")
    return Finding("ended", done, 0, f"the command ended {when}, as if the training were finished")
