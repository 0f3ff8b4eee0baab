"""Kill programs at random moments, and check what is left: `python -m benchmarks.kills --kills 100 --seed 1`.

Each cycle starts a small program, hits it with faults at random moments, and starts it again until it
completes. Then everything that the program had acknowledged must be there, once, and numbers must equal those
of an undisturbed run; nothing may hang; and two seconds after a program's end, no process, shared memory,
socket or scratch file may be left.

`--resume FILE` appends each cycle to a file, and resumes the campaign that the file holds. The cycles of a
seed are the same each time, although the moments within a program depend on the machine. Programs are forked
from a process that has imported all modules; `--cold` starts each as a new Python process. Prints a table and
rows as one line of JSON; the exit code is 1 after any fault. `--list` prints the programs and their targets.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from benchmarks.kills import plan, state
from benchmarks.kills.cycle import Record, Start, cold, environment_of, mount, run, undisturbed, unmount
from benchmarks.kills.findings import FAULTY
from benchmarks.kills.parts import ASKED, KILLED, PARTS
from benchmarks.kills.plan import Cycle
from benchmarks.kills.warm import WarmParent
from benchmarks.rows import MORE, Report, Row, parser

KILLS = 100
SMALL_PARTS = {False: ["calls", "fifo"], True: ["function"]}
"""Programs of the small form, without and with `--signals`."""
SMALL_KILLS = 4
NAMES = {
    "missing": "acknowledged results missing",
    "twice": "results there twice",
    "differing": "numbers that differ from an undisturbed run",
    "ignored": "requests to end that were ignored",
    "hung": "programs that hang",
    "left": "things left behind",
    "unnamed": "errors that do not name the damaged file",
    "exits": "exit codes that do not name the signal",
    "apart": "ranks that end at different steps",
    "halves": "incomplete files after a request to end",
}
"""Name of the row for each kind of fault."""


class Campaign:
    """Cycles of one seed, some of them at once.

    Args:
        seed: seed of all cycles.
        parts: names of the programs.
        folder: folder for the cycles, which stays if a check finds a fault.
        path: file for the state; None: no file.
        start: function that starts a program.
        signals: True for requests to end in chosen phases; False for faults of all kinds.

    Attributes:
        lines: lines of the state.
        disks: True if this user may mount disks, and so the campaign may fill one.
    """

    def __init__(
        self,
        seed: int,
        parts: Sequence[str],
        folder: Path,
        path: Path | None,
        start: Start,
        *,
        signals: bool,
    ) -> None:
        self._seed = seed
        self._parts = parts
        self._folder = folder
        self._path = path
        self._start = start
        self._signals = signals
        self._over = threading.Event()
        self._expected: dict[str, Any] = {}
        self._first = {name: threading.Lock() for name in parts}
        self.lines = state.read(path, seed, parts, signals=signals)
        self.disks = _mounts(folder / "disk")

    @property
    def kills(self) -> int:
        """Number of faults so far."""
        return sum(len(line["struck"]) for line in self.lines)

    def run(self, kills: int, jobs: int) -> None:
        """Run cycles until there are so many faults, at most `jobs` cycles at once."""
        done = {line["cycle"] for line in self.lines}
        numbers = (number for number in range(10**9) if number not in done)
        with ThreadPoolExecutor(jobs) as pool:
            try:
                running: dict[Future[tuple[Record, float]], Cycle] = {}
                while self.kills < kills or running:
                    while self.kills < kills and len(running) < jobs:
                        cycle = self._planned(next(numbers))
                        running[pool.submit(self._one, cycle)] = cycle
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        self._note(running.pop(future), *future.result())
            finally:
                self._over.set()

    def _planned(self, number: int) -> Cycle:
        targets = {
            name: tuple(each for each in PARTS[name].targets if each != plan.DISK or self.disks)
            for name in self._parts
        }
        spans = {name: PARTS[name].span_s for name in self._parts}
        phases = {name: PARTS[name].phases for name in self._parts} if self._signals else None
        return plan.cycle(self._seed, number, targets, spans, phases)

    def _undisturbed(self, name: str) -> Any:
        with self._first[name]:
            if name not in self._expected:
                folder = self._folder / f"undisturbed-{name}"
                self._expected[name] = undisturbed(PARTS[name], name, folder, self._over, self._start)
            return self._expected[name]

    def _one(self, cycle: Cycle) -> tuple[Record, float]:
        expected = self._undisturbed(cycle.part)
        begun = time.monotonic()
        folder = self._folder / str(cycle.number)
        record = run(PARTS[cycle.part], cycle, folder, expected, self._over, self._start)
        return record, time.monotonic() - begun

    def _note(self, cycle: Cycle, record: Record, took_s: float) -> None:
        line = state.line_of(cycle, record, self._seed, self._parts, took_s=took_s, signals=self._signals)
        self.lines.append(line)
        if self._path is not None:
            state.append(self._path, line)
        struck = ", ".join(map(str, record.struck))
        print(
            f"{self.kills} kills, cycle {cycle.number}: {cycle.part} by {struck}, {took_s:.1f} s", flush=True
        )
        for kind, found in record.findings.faults.items():
            print(f"  {NAMES[kind]}: {found[:3]} in {self._folder / str(cycle.number)}", flush=True)


def _mounts(folder: Path) -> bool:
    """Return True if this user may mount a disk at `folder`, which is created."""
    folder.mkdir(exist_ok=True)
    try:
        mount(folder)
    except (OSError, subprocess.CalledProcessError):
        return False
    unmount(folder)
    return True


@contextlib.contextmanager
def _starts(folder: Path, *, cold_only: bool) -> Iterator[Start]:
    """Return the function that starts programs: warm ones, unless `cold_only` is True."""
    if cold_only:
        yield cold
        return
    clock = folder / "clock"
    clock.write_bytes(bytes(8))
    warm = WarmParent(environment_of(clock), folder / "warm.log")
    try:
        yield warm.start
    finally:
        warm.end()


def report(campaign: Campaign, parts: Sequence[str], *, seconds: float, new: int, small: bool) -> int:
    """Print the table and the rows; return the exit code."""
    found = state.totals(campaign.lines, parts)
    print(state.table(found), flush=True)
    faults = {kind: sum(total.faults[kind] for total in found.values()) for kind in FAULTY}
    with Report("kills", small=small) as rows:
        if not campaign.disks:
            rows.skip("kills by a full disk", "only root can mount the disk that is filled")
        for part, total in found.items():
            rows.add(Row(f"{part}: kills", better="").measured([total.kills.total()]))
        for phase, count in sum((total.phases for total in found.values()), Counter()).items():
            rows.add(Row(f"requests in {phase}", better="").measured([count]))
        rows.add(Row("kills", better="").measured([campaign.kills]))
        rows.add(Row("kills a second", "1/s", MORE).measured([new / seconds]))
        uncut = sum(total.uncut for total in found.values())
        rows.add(Row("cuts that found no file", better="").measured([uncut]))
        counts = {
            "acknowledged": "acknowledged",
            "there": "there",
            "within": "that are places within an epoch",
            "lost": "of steps that a request to end has cost",
        }
        for name, words in counts.items():
            count = sum(getattr(total, name) for total in found.values())
            rows.add(Row(f"results {words}", better="").measured([count]))
        for kind, count in faults.items():
            rows.add(Row(NAMES[kind], exact=True).measured([count]))
    return int(any(faults.values()))


def arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=KILLS, help="number of faults; default %(default)s")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--parts", nargs="+", choices=PARTS, help="programs; default: all")
    options.add_argument(
        "--signals",
        action="store_true",
        help="send only requests to end (SIGTERM, SIGUSR1, SIGUSR2), each in a chosen phase of a program",
    )
    options.add_argument(
        "--jobs", type=int, default=2 * (os.cpu_count() or 1), help="cycles at once; default: twice the CPUs"
    )
    options.add_argument("--resume", type=Path, metavar="FILE", help="state of the campaign")
    options.add_argument("--folder", type=Path, help="for the cycles; default: a new temporary folder")
    options.add_argument("--cold", action="store_true", help="start each program as a new Python process")
    options.add_argument("--list", action="store_true", help="print the programs and their targets")
    found = options.parse_args()
    possible = ASKED if found.signals else KILLED
    if found.small:
        found.kills, found.parts = SMALL_KILLS, SMALL_PARTS[found.signals]
    found.parts = found.parts or [*possible]
    if wrong := {*found.parts}.difference(possible):
        options.error(f"--parts {' '.join(sorted(wrong))}: choose from {' '.join(possible)}")
    return found


def main() -> int:
    """Run the campaign."""
    given = arguments()
    # A shell ignores SIGINT in its background jobs, and programs would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # SIGTERM must end the killed programs too, and unmount their disks.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if given.list:
        for name in given.parts:
            part = PARTS[name]
            print(f"{name:<12} {' '.join(part.phases if given.signals else part.targets)}")
        return 0
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with _starts(folder.resolve(), cold_only=given.cold) as start:
        campaign = Campaign(
            given.seed, given.parts, folder.resolve(), given.resume, start, signals=given.signals
        )
        before = campaign.kills
        campaign.run(given.kills, given.jobs)
    seconds = time.monotonic() - begun
    code = report(campaign, given.parts, seconds=seconds, new=campaign.kills - before, small=given.small)
    if code == 0 and given.folder is None:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
