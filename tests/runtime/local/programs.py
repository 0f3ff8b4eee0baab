"""Several programs of one user, each a real process, with a folder of their own for their sessions."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.conftest import eventually, run_python
from trainkit.runtime.local.system import process
from trainkit.settings import SESSION_MARK

ROOT = Path(__file__).parents[3]

PRINT_ERROR = """
    def print_error(call, *args):
        try:
            call(*args)
        except Exception as error:
            print(error)
"""

MAKER = f"""{PRINT_ERROR}
    import os, sys, time, trainkit

    class Counter:
        def __init__(self):
            self.count = 0
            self.children = []

        def add(self, amount=1):
            self.count += amount
            return self.count

        def pid(self):
            return os.getpid()

        def wait(self):
            time.sleep(600)

        def place(self):
            return os.getcwd(), dict(trainkit.available_resources())

        def child(self):
            self.children.append(trainkit.remote(Counter).remote())
            return trainkit.get(self.children[-1].pid.remote())
    trainkit.init(num_cpus=2)
    make = trainkit.remote(Counter).options
    counter = make(name="counter", lifetime="detached", num_cpus=1).remote()
    trainkit.get(counter.add.remote())
"""

FINDER = f"""{PRINT_ERROR}
    import sys, trainkit
    trainkit.init(num_cpus=2)
    counter = trainkit.get_actor("counter")
"""


class Programs:
    """Runs scripts whose sessions lie in one private folder.

    Args:
        folder: for the scripts, and for their sessions' folders.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions = folder / "sessions"
        self._count = 0
        self._running: list[subprocess.Popen[str]] = []

    def environment(self) -> dict[str, str]:
        return {**os.environ, "TRAINKIT_RUNTIME_DIR": str(self.sessions), "PYTHONPATH": str(ROOT)}

    def begin(self, script: str, *arguments: str, flags: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start a script; what it prints comes over a pipe."""
        self._count += 1
        path = self.folder / f"program{self._count}.py"
        path.write_text(textwrap.dedent(script))
        program = subprocess.Popen(
            [sys.executable, *flags, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(),
            cwd=self.folder,
        )
        self._running.append(program)
        return program

    def run(self, script: str, *arguments: str, flags: tuple[str, ...] = ()) -> str:
        """What a script prints; returns once nobody holds its output open, and it must succeed."""
        program = self.begin(script, *arguments, flags=flags)
        out, err = program.communicate(timeout=120)
        assert program.returncode == 0, err
        assert not err, err
        return out.strip()

    def make(self, script: str = "", *, again: bool = False, flags: tuple[str, ...] = ()) -> str:
        """What a program prints that makes the detached `counter`, or takes it if it is there `again`."""
        taking = MAKER.replace('lifetime="detached"', 'lifetime="detached", get_if_exists=True')
        return self.run((taking if again else MAKER) + script, flags=flags)

    def find(self, script: str) -> str:
        """What a program prints that finds the `counter`."""
        return self.run(FINDER + script)

    def stop(self) -> None:
        """End all sessions, of which nothing stays."""
        assert "ended" in self.command("stop", "--all", "--yes")
        assert self.nothing_is_left()

    def command(self, *arguments: str, code: int = 0) -> str:
        """What `trainkit` with these arguments prints."""
        wide = {**self.environment(), "COLUMNS": "200"}
        done = run_python("-m", "trainkit", *arguments, code=code, env=wide, cwd=self.folder)
        return done.stdout + done.stderr

    def processes(self) -> list[int]:
        """All processes of these programs' sessions."""
        found = []
        for entry in os.listdir("/proc"):
            mark = process.environment(int(entry)).get(SESSION_MARK, "") if entry.isdigit() else ""
            if mark.startswith(str(self.sessions)) and process.exists(int(entry)):
                found.append(int(entry))
        return found

    def send_to_all(self, program: subprocess.Popen[str], number: int, drawn: random.Random) -> None:
        """Send a signal to every process of the job, in a drawn order, as Slurm and systemd do."""
        pids = sorted({program.pid, *self.processes()})
        drawn.shuffle(pids)
        for pid in pids:
            process.kill(pid, number)

    def folders(self) -> list[Path]:
        return list(self.sessions.iterdir()) if self.sessions.exists() else []

    @staticmethod
    def is_pending(pid: int, number: signal.Signals) -> bool:
        """Return whether a process has not yet received a signal that was sent to it."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        pending = next(line.split()[1] for line in lines if line.startswith("ShdPnd:"))
        return bool(int(pending, 16) >> (number - 1) & 1)

    def nothing_is_left(self, seconds: float = 60.0) -> bool:
        """Whether soon no process runs and no folder is there."""
        return eventually(lambda: not self.processes() and not self.folders(), seconds)

    def end(self) -> None:
        """End what a test that failed left behind."""
        for program in self._running:
            if program.poll() is None:
                program.kill()
            program.communicate()
        for pid in self.processes():
            process.kill(pid)
