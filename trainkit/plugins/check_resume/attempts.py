"""Attempts: runs of the checked command, each with the recorder in all of its processes."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit import settings
from trainkit.plugins.check_resume import recorder
from trainkit.plugins.check_resume.records import CheckError, Ranks, read
from trainkit.runtime.local.system import process

_PATIENCE_S = 5.0
_SHOWN_LINES = 15

RUN, WORKERS = "{run}", "{workers}"
"""Placeholders in the words of a command: the folder of the run, and the number of workers."""


@dataclass(frozen=True)
class Outcome:
    """End of an attempt.

    Attributes:
        ranks: recorded steps of each rank; empty if the attempt made no step.
        stopped: True if the recorder ended the attempt at the planned step.
        code: exit code of the command, negative for a signal.
        output: last lines of the command's output.
    """

    ranks: Ranks
    stopped: bool
    code: int
    output: str


class Script:
    """Command that trains, and how each attempt runs it.

    Args:
        arguments: arguments of `trainkit check-resume`.
        scratch: folder for the runs' folders and for the records.

    Attributes:
        workers: numbers of workers, as texts. The first number is for the undisturbed run; killed runs are
            also resumed on the other numbers of workers.
    """

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self.workers = [str(number) for number in arguments.workers or (1,)]
        self._words = ["-m"] * arguments.module + [arguments.script, *arguments.arguments]
        self._links = [Path(link).resolve(strict=True) for link in arguments.link]
        self._signal = f"SIG{arguments.signal}"
        self._timeout_s = arguments.timeout
        self._slots = asyncio.Semaphore(max(1, arguments.jobs))
        self._scratch = scratch
        if bool(arguments.workers) != any(WORKERS in word for word in self._words):
            raise CheckError(
                f"--workers 2,3 and {WORKERS} in the command, such as --nproc-per-node {WORKERS}, go together"
            )

    def working_folder(self) -> Path:
        """Create the working folder of a run, in which its attempts find their checkpoints again."""
        folder = Path(tempfile.mkdtemp(prefix="r", dir=self._scratch), "work")
        folder.mkdir()
        for target in self._links:
            (folder / target.name).symlink_to(target)
        return folder

    def command(self, folder: Path, workers: str) -> list[str]:
        """Return the words of the command, with absolute paths of its files."""
        filled = [_absolute(word.replace(RUN, str(folder)).replace(WORKERS, workers)) for word in self._words]
        if filled[0] == "-m" or filled[0].endswith(".py"):
            return [sys.executable, *filled]
        beside = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        program = shutil.which(filled[0], path=beside)
        if program is None:
            raise CheckError(f"there is no script and no program {self._words[0]!r}")
        return [program, *filled[1:]]

    def environment(self, records: Path, folder: Path) -> dict[str, str]:
        """Return the environment of an attempt that writes its records and works in these folders."""
        inject = Path(recorder.__file__).parent / "inject"
        # The script runs in a different folder, so relative entries of PYTHONPATH, and modules of -m, need
        # absolute paths.
        search = [os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        search += [os.getcwd()] if "-m" in self._words else []
        return os.environ | {
            recorder.FOLDER: str(records),
            "PYTHONPATH": os.pathsep.join([str(inject), *search]),
            # Temporary files of killed programs are removed with the folder of the run.
            "TMPDIR": str(folder.parent),
            settings.RUNTIME_DIR: str(folder.parent),
            settings.RESULTS_DIR: str(folder / "results"),
        }

    async def attempt(self, folder: Path, plan: Mapping[str, Any], *, workers: str, kill: bool) -> Outcome:
        """Run the command until it has made the planned step, or ends.

        Args:
            folder: working folder; an attempt resumes where the previous attempt in this folder was killed.
            plan: dictionary. "stop" is the number of the last step, counted from the start of the training;
                "hold_s" has the seconds until the signal; "weights" has the numbers of the undisturbed steps,
                by their weights.
            workers: number of workers, as a text.
            kill: True: end the attempt by SIGKILL, whatever signal the script is checked with.

        Raises:
            CheckError: the attempt did not end in time.
        """
        records = Path(tempfile.mkdtemp(prefix="records-", dir=self._scratch))
        plan = {**plan, "signal": "SIGKILL" if kill else self._signal}
        (records / "plan.json").write_text(json.dumps(plan))
        output = records / "output"
        in_time = True
        async with self._slots:
            # Only a file is passed on as standard input, because each attempt can read a file from its
            # beginning, but not a terminal or a pipe.
            source = "/dev/stdin" if stat.S_ISREG(os.fstat(0).st_mode) else os.devnull
            with open(source, "rb") as given, output.open("wb") as out:
                child = subprocess.Popen(
                    self.command(folder, workers),
                    stdin=given,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                    env=self.environment(records, folder),
                    start_new_session=True,
                )
            try:
                # The recorder reads this file at the planned step.
                (records / "pid").write_text(str(child.pid))
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.to_thread(child.wait)
            except TimeoutError:
                in_time = False
            finally:
                process.end(lambda: recorder.marked(str(records)), _PATIENCE_S)
                code = child.wait()
        last = "\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
        if not in_time:
            raise CheckError(
                f"the command did not end or reach step {plan['stop']} within {self._timeout_s:g} s: pass "
                f"fewer --steps or a longer --timeout. Its last lines:\n{last}"
            )
        return Outcome(read(records), (records / "stopped").exists(), code, last)


def _absolute(word: str) -> str:
    """Return `word` with an absolute path if it is a file or has the form `--option=file`."""
    option, equals, value = word.rpartition("=")
    return option + equals + os.path.abspath(value) if os.path.isfile(value) else word
