"""A cycle: a program is started, hit by faults, and started again until it completes; then it is checked."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.interleaved import HERE
from benchmarks.kills import plan, processes
from benchmarks.kills.findings import Findings
from benchmarks.kills.job import Job
from benchmarks.kills.parts import Part
from benchmarks.kills.plan import CLOCK, DISK, FILES, Cycle, Strike
from trainkit.runtime.local.system import process

LIMIT_S = 240.0
"""Time within which a run must end, and within which a fault must find its target."""
CLEAN_S = 2.0
"""Time after the end of a run within which nothing may be left behind; longer on an overloaded machine."""
FIND_S = 2.0
"""Time within which a fault must find its target; a run may have none, such as a search without workers."""
LOOK_S = 0.02
MOST_OVERLOAD = 4.0
"""Largest factor by which an overloaded machine makes the limit of a run longer."""
DISK_BYTES = 16 * 2**20
"""Size of the disk of a cycle that fills it."""
BACK_S = 3600.0
RUNS = 6
"""Number of runs in which a program must complete after its last fault."""
GRACE_S = 60
"""Grace period of a program whose requests to end must cost nothing, in seconds."""
HALF = (".partial", ".tmp", ".new", "tmp_")
"""Parts of the names of incomplete files of trainkit, and of the programs here."""
SIGNALS = {
    "kill": signal.SIGKILL,
    "term": signal.SIGTERM,
    "int": signal.SIGINT,
    "usr1": signal.SIGUSR1,
    "usr2": signal.SIGUSR2,
    "stop": signal.SIGSTOP,
}


def mount(folder: Path) -> None:
    """Mount a small disk.

    Raises:
        CalledProcessError: this user may not mount a disk.
    """
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "kills", folder]
    subprocess.run(command, check=True, capture_output=True)


def unmount(folder: Path) -> None:
    """Unmount a disk that `mount` has mounted."""
    subprocess.run(["umount", folder], check=True)


class Program(Protocol):
    """Process of a program, as `Popen` has it."""

    pid: int

    @property
    def returncode(self) -> int | None:
        """The exit code, after `poll` or `wait`."""

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""

    def wait(self) -> int:
        """Wait for the program's end, and return its exit code."""


Start = Callable[[list[str], Mapping[str, str], Path], Program]
"""Function that starts a program: its arguments, its environment, and its folder, which has its log."""


def cold(arguments: list[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a program as a new Python process."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.kills.parts", *arguments],
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def environment_of(clock: Path | None) -> dict[str, str]:
    """Return the environment of a program without its own folders.

    Args:
        clock: file with the offset of its clock; None for a clock that can't be set back.
    """
    paths = [HERE.parent, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = {
        **os.environ,
        "TRAINKIT_PREEMPT_SIGNALS": "USR1,USR2",
        "TRAINKIT_STOP_GRACE_S": "2",
        "OMP_NUM_THREADS": "1",
    }
    if clock is not None:
        found["KILLS_CLOCK"] = str(clock)
        paths.insert(0, HERE / "kills" / "site")
    found["PYTHONPATH"] = os.pathsep.join(str(path) for path in paths if path)
    return found


class Stopped(Exception):
    """The campaign ends before this cycle is complete."""


@dataclass
class Record:
    """Result of a cycle.

    Attributes:
        struck: faults that hit the program.
        codes: exit codes of its runs.
        findings: result of its check.
    """

    struck: list[Strike] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)


class Stage:
    """Place of a cycle: the folder, the temporary folder, the environment and the processes of one program.

    Args:
        part: the program.
        folder: folder of the cycle; what a stopped campaign has left in it is deleted.
        cycle: the faults that the program is prepared for.
        expected: outcome of an undisturbed run; None: the outcome is not known yet.
        over: event that ends all waits with `Stopped`.
        start: function that starts the program.

    Attributes:
        job: the program's files.
        record: what has happened so far.
        before_last: number of acknowledged results at the last signal.
    """

    def __init__(
        self, part: Part, folder: Path, cycle: Cycle, expected: Any, over: threading.Event, start: Start
    ) -> None:
        self.part = part
        self.job = Job(folder)
        self.record = Record()
        self.before_last = 0
        self._cycle = cycle
        self._expected = expected
        self._over = over
        self._start = start
        self._mark = uuid.uuid4().hex
        self._scratch = folder / "t"
        self._pids: set[int] = set()
        self._segments = processes.segments()
        self._driver: Program | None = None
        self._begun = 0
        self._noted: dict[str, int] = {}
        self._older: set[str] = set()
        if folder.exists():
            shutil.rmtree(folder)
        self._scratch.mkdir(parents=True)
        self.job.kept.mkdir()
        (folder / "clock").write_bytes(bytes(8))

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Give the program its disk, if one will be filled; in the end kill its processes, and unmount."""
        if self._cycle.disk:
            mount(self.job.kept)
        try:
            yield
        finally:
            while there := processes.marked(self._mark):
                processes.send(plan.JOB, [*there], signal.SIGKILL)
                time.sleep(LOOK_S)
            if self._driver is not None:
                self._driver.wait()
            if self._cycle.disk:
                unmount(self.job.kept)

    # runs

    def start(self) -> None:
        """Start the program."""
        environment = {
            **environment_of(self.job.folder / "clock" if self._cycle.clock else None),
            processes.MARK: self._mark,
            "TMPDIR": str(self._scratch),
            "TRAINKIT_RUNTIME_DIR": str(self._scratch),
        }
        if self._cycle.requests:
            environment["TRAINKIT_STOP_GRACE_S"] = str(GRACE_S)
        self._driver = self._start([self._cycle.part, str(self.job.folder)], environment, self.job.folder)
        self._begun = self.acknowledged()
        self._noted = {name: len(self.job.lines(name)) for name in ("phases", "steps")}
        self._older = {f"file {path.name}" for path in self._scratch.iterdir()}

    @property
    def runs(self) -> bool:
        """True while the program runs."""
        return self._driver is not None and self._driver.poll() is None

    def acknowledged(self) -> int:
        """Return the number of acknowledged results."""
        path = self.job.folder / "acks"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def end(self) -> bool:
        """Wait for the program's end; return False if it hangs."""
        if not self._until(lambda: not self.runs, LIMIT_S * min(_overload(), MOST_OVERLOAD)):
            self.record.findings.hung.append(self._stacks())
            return False
        assert self._driver is not None and self._driver.returncode is not None
        self.record.codes.append(self._driver.returncode)
        return True

    def clean(self, *, strict: bool) -> None:
        """Note what is left behind after a run.

        Args:
            strict: False if files may stay until the next session starts, because the node was killed too, or
                every process was.
        """
        stays = self.part.detached and self.job.outcome() is None
        spared = (processes.WORKER_PREFIX, "trainkit-") if stays else ()

        # A run that ends before its session starts leaves what the previous run has left.
        older = self._older if self.job.outcome() is None else set()

        def left() -> list[str]:
            found = processes.leftovers(self._scratch, self._mark, self._pids, spared, self._segments)
            # A killed process that has not closed its sockets yet looks alive to the next session.
            return [
                each
                for each in found
                if each.startswith(("process ", "socket ")) or (strict and each not in older)
            ]

        self._until(lambda: not left(), CLEAN_S * _overload())
        if found := left():
            codes = ", ".join(map(str, self.record.codes))
            there = [str(path.relative_to(self._scratch)) for path in sorted(self._scratch.rglob("*"))]
            what = f"after runs with codes {codes}: {', '.join(found)}; in the folder: {there}"
            self.record.findings.left.append(what)

    # faults

    def strike(self, strike: Strike) -> bool:
        """Hit the program with a fault; return False if it ended before, or had no such target."""
        if strike.phase:
            self._until(
                lambda: not self.runs or self._new("phases").count([strike.phase]) >= strike.times, LIMIT_S
            )
        elif strike.begun:
            self._until(lambda: not self.runs or self.acknowledged() > self._begun, LIMIT_S)
        self._until(lambda: not self.runs, strike.delay_s)
        if not self.runs:
            return False
        if strike.target == DISK:
            struck = self._fill(strike.hold_s)
        elif strike.target == CLOCK:
            struck = self._set_back()
        else:
            struck = self._signal(strike)
        if struck:
            self.record.struck.append(strike)
        return struck

    def _new(self, name: str) -> list[list[Any]]:
        """Return the lines of a file that the current run has written."""
        return self.job.lines(name)[self._noted[name] :]

    def judge(self, strike: Strike, *, whole: bool) -> None:
        """Check how a run has ended after a request, and note the last step for the check of the program.

        Args:
            strike: the request.
            whole: False if a worker was ended in the same run; its steps since the last checkpoint are lost.
        """
        code, wanted = self.record.codes[-1], SIGNALS[strike.fault]
        # Before the session starts, a signal ends the program, which has nothing to save.
        early = code == -wanted and not self._new("phases")
        if code != 128 + wanted and not early and self.job.outcome() is None:
            self.record.findings.exits.append(f"{code} after {strike}")
        last = dict(self._new("steps"))
        if whole and len({*last.values()}) > 1:
            self.record.findings.apart.append(f"last steps by rank after {strike}: {last}")
        if whole and last:
            self.job.ack("asked", max(last.values()))
        names = (path.relative_to(self.job.kept) for path in self.job.kept.rglob("*"))
        found = [str(name) for name in names if any(half in str(name) for half in HALF)]
        self.record.findings.halves += [f"{name} after {strike}" for name in found]

    def _signal(self, strike: Strike) -> bool:
        target, fault = (plan.DRIVER, "kill") if strike.target == FILES else (strike.target, strike.fault)
        pids: list[int] = []

        def found() -> bool:
            assert self._driver is not None
            there = processes.marked(self._mark)
            self._pids |= there.keys()
            pids[:] = processes.candidates(target, self._driver.pid, there)
            return bool(pids) or not self.runs

        self._until(found, FIND_S)
        if not pids:
            return False
        if target != plan.JOB:
            pids = [pids[int(strike.draw * len(pids))]]
        self.before_last = self.acknowledged()
        if not processes.send(target, pids, SIGNALS[fault]):
            return False
        if fault == "stop":
            self._until(lambda: False, strike.hold_s)
            processes.send(target, pids, signal.SIGCONT)
        return True

    def _fill(self, hold_s: float) -> bool:
        filler = self.job.kept / "filler"
        try:
            with filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            self._until(lambda: not self.runs, hold_s)
            filler.unlink()
        return True

    def _set_back(self) -> bool:
        clock = self.job.folder / "clock"
        with clock.open("r+b") as file:
            (offset,) = struct.unpack("d", file.read(8))
            file.seek(0)
            file.write(struct.pack("d", offset - BACK_S))
        return True

    def run_damaged(self, strike: Strike) -> None:
        """Cut a file of trainkit in half, run the program, and put all back unless the program has completed.

        The program must complete as if nothing had happened, or say which file or folder is damaged.
        """
        files = self.job.checked_files()
        if not files:
            self.record.findings.uncut += 1
            return
        file = files[int(strike.draw * len(files))]
        copy = self.job.folder / "copy"
        acks = self.job.folder / "acks"
        shutil.copytree(self.job.kept, copy / "kept", symlinks=True)
        acks.touch()
        shutil.copy(acks, copy / "acks")
        said = (self.job.folder / "log").stat().st_size
        os.truncate(file, file.stat().st_size // 2)
        self.start()
        if not self.end():
            return
        self.clean(strict=True)
        if self.job.outcome() is None or self.checked().faults:
            (self.job.folder / "outcome").unlink(missing_ok=True)
            text = (self.job.folder / "log").read_bytes()[said:].decode(errors="replace")
            folders = list(file.parents)[: -len(self.job.kept.parents)]
            if str(file.parent) not in text and not any(
                str(folder) in text and str(file.relative_to(folder)) in text for folder in folders
            ):
                name = file.relative_to(self.job.kept)
                self.record.findings.unnamed.append(f"{name}: {text[-300:]!r}")
            for path in self.job.kept.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(copy / "kept", self.job.kept, symlinks=True, dirs_exist_ok=True)
            shutil.copy(copy / "acks", acks)
        shutil.rmtree(copy)

    def checked(self) -> Findings:
        """Return what the check of a complete program finds."""
        outcome = self.job.outcome()
        return self.part.check(
            self.job.lines(), outcome, outcome if self._expected is None else self._expected
        )

    # waits

    def _until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Wait until a condition holds, at most `limit_s` seconds; return whether it holds."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() >= deadline:
                return False
            if self._over.wait(LOOK_S):
                raise Stopped
        return True

    def _stacks(self) -> str:
        there = processes.marked(self._mark)
        dumps = [f"{each.name} {pid}\n{process.stacks(pid) or 'no stacks'}" for pid, each in there.items()]
        path = self.job.folder.with_name(f"{self.job.folder.name}.stacks")
        path.write_text("\n".join(dumps))
        return f"stacks in {path}"


def _overload() -> float:
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def may_leave_files(struck: Sequence[Strike], code: int, outcome: Any) -> bool:
    """Return True if no process that could remove files has survived the faults of a run.

    A program that has completed ends its session itself, unless SIGKILL ends the program meanwhile.
    """
    nodes = any(each.target in (plan.NODE, plan.GROUP, plan.JOB) for each in struck)
    return nodes and (outcome is None or code == -signal.SIGKILL)


def run(part: Part, cycle: Cycle, folder: Path, expected: Any, over: threading.Event, start: Start) -> Record:
    """Run a cycle, and return its record.

    Args:
        part: the program.
        cycle: its faults.
        folder: folder of the cycle, which stays only if the check finds a fault.
        expected: outcome of an undisturbed run.
        over: event that ends the cycle with `Stopped`.
        start: function that starts the program.
    """
    stage = Stage(part, folder, cycle, expected, over, start)
    with stage.prepared():
        _until_complete(stage, [*cycle.strikes])
        if stage.job.outcome() is not None:
            stage.record.findings.add(stage.checked())
    if not stage.record.findings.faults:
        shutil.rmtree(folder)
    return stage.record


def undisturbed(part: Part, name: str, folder: Path, over: threading.Event, start: Start) -> Any:
    """Return the outcome of a program without faults.

    Raises:
        RuntimeError: the program did not complete, or left something behind.
    """
    stage = Stage(part, folder, Cycle(0, name, ()), None, over, start)
    with stage.prepared():
        _until_complete(stage, [])
        outcome = stage.job.outcome()
        if outcome is not None:
            stage.record.findings.add(stage.checked())
    faults = stage.record.findings.faults
    if faults:
        log = (folder / "log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"{name} without a fault ended with {stage.record.codes}, {faults}:\n{log}")
    shutil.rmtree(folder)
    return outcome


def _until_complete(stage: Stage, strikes: list[Strike]) -> None:
    runs_left = RUNS
    while stage.job.outcome() is None and runs_left:
        runs_left -= 1
        stage.start()
        struck: list[Strike] = []
        while strikes and not any(each.ends for each in struck) and stage.runs:
            strike = strikes.pop(0)
            if stage.strike(strike):
                struck.append(strike)
                runs_left = RUNS
        if not stage.end():
            return
        last = struck[-1] if struck else None
        if last is not None and last.asks and stage.acknowledged() > stage.before_last + stage.part.in_flight:
            stage.record.findings.ignored.append(str(last))
        stage.clean(strict=not may_leave_files(struck, stage.record.codes[-1], stage.job.outcome()))
        if last is not None and last.phase and last.asks:
            stage.judge(last, whole=not any(each.ends_worker for each in struck))
        if last is not None and last.target == FILES and stage.job.outcome() is None:
            stage.run_damaged(last)
    if stage.job.outcome() is None:
        stage.record.findings.hung.append(f"not complete after {stage.record.codes}")
