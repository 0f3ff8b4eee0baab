"""Attempts: runs of the checked command, each with the recorder in all of its processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainkit import settings
from trainkit.plugins.check_resume import recorder
from trainkit.plugins.check_resume.records import CheckError, Ranks, read
from trainkit.runtime.local.system import process

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
        timeout_s: seconds that an attempt may run.
        slots: semaphore that limits the attempts at the same time.
        scratch: folder for the runs' working folders, for temporary files and for the records.
    """

    words: Sequence[str]
    links: Sequence[str]
    signal: str
    timeout_s: float
    slots: asyncio.Semaphore
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
        filled = [_absolute(word.replace(RUN, str(folder)).replace(WORKERS, workers)) for word in self.words]
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
        # Killed programs leave temporary files, which are removed with the scratch folder.
        temporary = self.scratch / "t"
        temporary.mkdir(exist_ok=True)
        return os.environ | {
            recorder.FOLDER: str(records),
            "PYTHONPATH": os.pathsep.join([str(inject), *search]),
            "TMPDIR": str(temporary),
            settings.RUNTIME_DIR: str(self.scratch / "s"),
            settings.RESULTS_DIR: str(folder / "results"),
        }


def _absolute(word: str) -> str:
    """Return `word` with an absolute path if it is a file or has the form `--option=file`."""
    option, equals, value = word.rpartition("=")
    return option + equals + os.path.abspath(value) if os.path.isfile(value) else word


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


class Run:
    """Attempts in one working folder: each attempt resumes where the earlier ones were killed.

    Args:
        script: the command.
        name: name of the working folder.
    """

    def __init__(self, script: Script, name: str) -> None:
        self._script = script
        self._name = name
        self._folder = script.working_folder(name)
        self._attempts = 0

    async def attempt(
        self, *, stop: int, workers: str, kill: bool = False, weights: Mapping[str, int]
    ) -> Outcome:
        """Run the command until it has made step `stop`, or ends.

        Args:
            stop: number of the last step, counted from the start of the training.
            workers: number of workers, as a text.
            kill: True: end the attempt by SIGKILL, whatever signal the script is checked with.
            weights: number of the undisturbed step that begins with these weights.

        Raises:
            CheckError: the attempt did not end in time.
        """
        self._attempts += 1
        script = self._script
        records = script.scratch / f"{self._name}-{self._attempts}"
        records.mkdir()
        plan = {"stop": stop, "signal": "SIGKILL" if kill else script.signal, "weights": weights}
        (records / "plan.json").write_text(json.dumps(plan))
        output = records / "output"
        async with script.slots:
            # A file can be read by each attempt from its beginning. A terminal or a pipe can't.
            source = "/dev/stdin" if stat.S_ISREG(os.fstat(0).st_mode) else os.devnull
            with open(source, "rb") as given, output.open("wb") as out:
                child = await asyncio.create_subprocess_exec(
                    *script.command(self._folder, workers),
                    stdin=given,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env=script.environment(records, self._folder),
                    start_new_session=True,
                )
            # The recorder reads this file at the planned step.
            (records / "pid").write_text(str(child.pid))
            in_time = True
            try:
                async with asyncio.timeout(script.timeout_s):
                    await child.wait()
            except TimeoutError:
                in_time = False
            finally:
                process.end(lambda: recorder.marked(str(records)), _PATIENCE_S)
                code = await child.wait()
        last = "\n".join(output.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
        if not in_time:
            raise CheckError(
                f"the command did not end or reach step {stop} within {script.timeout_s:g} s: pass "
                f"fewer --steps or a longer --timeout. Its last lines:\n{last}"
            )
        return Outcome(read(records), (records / "stopped").exists(), code, last)
