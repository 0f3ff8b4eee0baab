"""Attempts: runs of the checked command, each with the recorder in all of its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainkit import settings
from trainkit.clock import SYSTEM
from trainkit.plugins.check_resume import recorder
from trainkit.plugins.check_resume.records import CheckError, Ranks, read
from trainkit.runtime.local.system import process

_LOOK_S = 0.02
_PATIENCE_S = 5.0
_SHOWN_LINES = 15

RUN, WORKERS = "{run}", "{workers}"
"""Placeholders in the words of a command: the folder of the run, and the number of workers."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """Command that trains, and how each attempt runs it.

    Attributes:
        words: command line, with placeholders.
        links: files and folders of the current folder that the script reads by relative paths.
        signal: name of the signal that ends an attempt, such as "SIGKILL".
        grace_s: seconds after a different signal than SIGKILL, after which the attempt is killed.
        timeout_s: seconds that an attempt may run.
        scratch: folder for the runs' working folders and for the records.
    """

    words: Sequence[str]
    links: Sequence[str] = ()
    signal: str = "SIGKILL"
    grace_s: float = 30.0
    timeout_s: float = 600.0
    scratch: Path

    def working_folder(self, name: str) -> Path:
        """Create the working folder of a run, in which its attempts find their checkpoints again."""
        folder = self.scratch / name
        folder.mkdir()
        for link in self.links:
            target = Path(link).resolve()
            if not target.exists():
                raise CheckError(f"--link {link}: there is no such file or folder")
            (folder / target.name).symlink_to(target)
        return folder

    def command(self, folder: Path, workers: str) -> list[str]:
        """Return the words of the command, with absolute paths of its files."""
        filled = [word.replace(RUN, str(folder)).replace(WORKERS, workers) for word in self.words]
        filled = [os.path.abspath(word) if os.path.isfile(word) else word for word in filled]
        if filled[0] == "-m" or filled[0].endswith(".py"):
            return [sys.executable, *filled]
        beside = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        program = shutil.which(filled[0], path=beside)
        if program is None:
            raise CheckError(f"there is no script and no program {self.words[0]!r}")
        return [program, *filled[1:]]

    def environment(self, records: Path, folder: Path) -> dict[str, str]:
        """Return the environment of an attempt that writes its records and works in these folders."""
        inject = Path(recorder.__file__).parent / "inject"
        # The script runs in a different folder, so relative entries, and modules of -m, need absolute paths.
        search = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        search += [os.getcwd()] if "-m" in self.words else []
        return os.environ | {
            recorder.FOLDER: str(records),
            "PYTHONPATH": os.pathsep.join([str(inject), *search]),
            settings.RUNTIME_DIR: str(self.scratch / "s"),
            settings.RESULTS_DIR: str(folder / "results"),
        }


@dataclass(frozen=True)
class Outcome:
    """End of an attempt.

    Attributes:
        ranks: recorded steps of each rank; empty if the attempt made no step.
        stopped: True if the recorder has ended the attempt at the planned step.
        code: exit code of the command, negative for a signal.
        output: last lines of the command's output.
    """

    ranks: Ranks
    stopped: bool
    code: int
    output: str


@dataclass
class Run:
    """Attempts in one working folder: each attempt resumes where the earlier ones were killed.

    Attributes:
        script: the command.
        name: name of the working folder.
    """

    script: Script
    name: str
    _attempts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._folder = self.script.working_folder(self.name)

    def attempt(
        self, *, stop: int, workers: str, kill: bool = False, weights: Mapping[str, list[int]]
    ) -> Outcome:
        """Run the command until it has made step `stop`, or ends.

        Args:
            stop: number of the last step, counted from the start of the training.
            workers: number of workers, as a text.
            kill: True: end the attempt by SIGKILL, whatever signal the script is checked with.
            weights: the undisturbed steps with each set of weights.

        Raises:
            CheckError: the attempt did not end in time.
        """
        self._attempts += 1
        records = self.script.scratch / f"{self.name}-{self._attempts}"
        records.mkdir()
        plan = {"stop": stop, "signal": "SIGKILL" if kill else self.script.signal, "weights": weights}
        (records / "plan.json").write_text(json.dumps(plan))
        output = records / "output"
        with output.open("wb") as out:
            child = subprocess.Popen(
                self.script.command(self._folder, workers),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self.script.environment(records, self._folder),
                start_new_session=True,
            )
        # The recorder reads this file at the planned step.
        (records / "pid").write_text(str(child.pid))
        try:
            in_time = self._wait(child, records / "stopped")
        finally:
            process.end(lambda: recorder.marked(str(records)), _PATIENCE_S)
            code = child.wait()
        last = "\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
        if not in_time:
            raise CheckError(
                f"the command did not end or reach step {stop} within {self.script.timeout_s:g} s: pass "
                f"fewer --steps or a longer --timeout. Its last lines:\n{last}"
            )
        recorded = any(records.glob("records-*.jsonl"))
        return Outcome(read(records) if recorded else (), (records / "stopped").exists(), code, last)

    def _wait(self, child: subprocess.Popen[bytes], stopped: Path) -> bool:
        """Wait until the command ends; return False if its time is over."""
        late = SYSTEM.monotonic() + self.script.timeout_s
        grace: float | None = None
        while child.poll() is None:
            now = SYSTEM.monotonic()
            if grace is None and stopped.exists():
                grace = now + self.script.grace_s
            if grace is not None and now > grace:
                return True
            if now > late:
                return False
            SYSTEM.sleep(_LOOK_S)
        return True


def signal_named(name: str) -> str:
    """Return the full name of a signal that the user has named, such as "SIGTERM" for "term".

    Raises:
        ValueError: no signal has this name.
    """
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    if full not in signal.Signals.__members__:
        raise ValueError(f"{name!r} is not a signal")
    return full
