"""Commands on other machines, with their output and signals, which run as long as this program."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError
from trainkit.plugins.cluster import keeper
from trainkit.plugins.cluster.machines import Machine
from trainkit.runtime.restart_policy import signal_name
from trainkit.settings import EXPERIMENT_MARK, PAUSES, SESSION_MARK, TERMINAL

GRACE_S = 10.0
"""Seconds that a command has to end after SIGTERM, before it is killed."""

SILENCE_S = 120.0
"""Seconds without a sign of life from this program, after which a host of SSH ends its command: the server of
SSH would notice hours later that the network is cut."""

_CARRIED = (
    "PYTHONPATH PYTHONUNBUFFERED PYTHONHASHSEED VIRTUAL_ENV CONDA_PREFIX LD_LIBRARY_PATH LANG LC_ALL TZ"
).split()
_CARRIED_PREFIXES = tuple(
    "TRAINKIT_ PET_ ACCELERATE_ FSDP_ TORCH NCCL_ GLOO_ OMP_ MKL_ OPENBLAS_ NUMEXPR_ CUBLAS_ RAY_ HF_".split()
)
_OF_ONE_MACHINE = (SESSION_MARK, EXPERIMENT_MARK, PAUSES, TERMINAL)
_OF_TASKS = frozenset(
    "SLURM_MEM_PER_CPU SLURM_MEM_PER_GPU SLURM_MEM_PER_NODE SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU "
    "SLURM_TRES_PER_TASK SLURM_GPU_BIND SLURM_TRES_BIND SRUN_CPUS_PER_TASK SLURM_EXACT SLURM_EXCLUSIVE "
    "SLURM_LABELIO SLURM_STDINMODE SLURM_STDOUTMODE SLURM_STDERRMODE".split()
)
"""Options of the job's tasks, by which `srun` would give the keeper's step only the share of one task, or
would change the keeper's messages."""
_SHOWN_WORDS = 5
_LONGEST_LINE = 1 << 16
_showing = threading.Lock()
_NOISE = b"lacks support for cpu binding"


class RemoteError(TrainkitError):
    """A command on another machine failed, or the machine can't be reached.

    Attributes:
        machine: the machine.
        code: exit code of the command; None if it did not start, or its machine was lost.
    """

    def __init__(self, machine: Machine, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.machine, self.code = machine, code


def carried(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that commands on hosts of SSH get from this program.

    These are the variables that steer Python, trainkit, torch and their libraries. Variables that describe
    this machine or this login stay here. Nodes of Slurm get all variables by `srun`.
    """
    return {
        name: value
        for name, value in variables.items()
        if (name in _CARRIED or name.startswith(_CARRIED_PREFIXES)) and name not in _OF_ONE_MACHINE
    }


@dataclass(frozen=True)
class Event:
    """Something that a command has done.

    Attributes:
        machine: machine of the command.
        kind: "begun"; "out" or "err": whole lines of output in `data`; "report": a line that the command
            has written to its descriptor `keeper.REPORTS`; "ended": the command has ended, after all
            its other events.
        data: content of the event.
        error: for "ended": why the command failed; None if it ended with exit code 0.
    """

    machine: Machine
    kind: str
    data: bytes = b""
    error: RemoteError | None = None


class RemoteCommand:
    """Command on one machine.

    Args:
        machine: where the command runs.
        command: program and its arguments. Other users of the machine can read them: pass secrets by
            `environment`, which is not visible to them.
        environment: environment variables to set, or to remove (None).
        folder: working folder; "": the folder in which SSH's sessions begin, and Slurm's job.
        python: Python on the machine, of version 3.8 or later.
        tell: function that receives all events of the command, in a thread. After an OSError of this
            function, the command is ended.
        grace_s: seconds that the command has to end after SIGTERM, if this program ends.
        options: further options of `ssh`, such as "LocalForward=8265 127.0.0.1:8265".
    """

    def __init__(
        self,
        machine: Machine,
        command: Sequence[str],
        *,
        environment: Mapping[str, str | None] | None = None,
        folder: str | os.PathLike[str] | None = None,
        python: str = sys.executable,
        tell: Callable[[Event], None],
        grace_s: float = GRACE_S,
        options: Sequence[str] = (),
    ) -> None:
        self.machine = machine
        self.has_begun = False
        self._tell = tell
        self._writing = threading.Lock()
        self._words: list[str] = []
        self._end: dict[str, Any] = {}
        self._has_ended = threading.Event()
        self._unanswered = 0
        source = Path(keeper.__file__).read_bytes()
        self._carrier = subprocess.Popen(
            carrier(machine, python, len(source), options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={name: value for name, value in os.environ.items() if name not in _OF_TASKS},
            start_new_session=True,  # Ctrl-C reaches the command by `send_signal` only
        )
        given = carried() if machine.by == "ssh" else dict.fromkeys(_OF_ONE_MACHINE)
        asked = {
            "command": list(command),
            "environment": {**given, **(environment or {})},
            "folder": os.fspath(os.getcwd() if folder is None else folder),
            "grace_s": grace_s,
            "silence_s": SILENCE_S if machine.by == "ssh" else None,
        }
        self._send(source + _frame(b"H", json.dumps(asked).encode()))
        threading.Thread(target=self._show_life, daemon=True).start()
        self._thread = threading.Thread(target=self._read, name=f"trainkit-{machine}", daemon=True)
        self._thread.start()

    def send_signal(self, number: int) -> None:
        """Send a signal to the command; without effect if the command has ended."""
        self._send(_frame(b"S", str(number).encode()))

    def write(self, data: bytes) -> None:
        """Write to the standard input of the command; without effect if the command has ended."""
        if data:
            self._send(_frame(b"I", data))

    def close_input(self) -> None:
        """Close the standard input of the command."""
        self._send(_frame(b"I", b""))

    def leave(self) -> None:
        """End the command by SIGTERM, and by SIGKILL `grace_s` later, without waiting for its end."""
        with self._writing, contextlib.suppress(OSError):
            self._pipe("stdin").close()

    def kill(self) -> None:
        """End the connection at once. The command's machine kills the command."""
        if self.has_begun:
            self.send_signal(signal.SIGKILL)
            self.leave()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._carrier.wait(GRACE_S)
        self._carrier.kill()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the command has ended; return False if it still runs after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _pipe(self, name: str) -> Any:
        return getattr(self._carrier, name)

    def _send(self, data: bytes) -> None:
        with self._writing, contextlib.suppress(OSError, ValueError):  # the reader tells of the end
            while data:
                data = data[self._pipe("stdin").write(data) :]

    def _show_life(self) -> None:
        """Send signs of life. End the connection if no answer comes: `srun` waits for a dead task forever."""
        while not self._has_ended.wait(SILENCE_S / 10):
            self._unanswered += self.has_begun
            # A receiver that does not take the output yet makes the reader wait, with answers in the pipe.
            if self._unanswered > 10 and not select.select([self._pipe("stdout")], [], [], 0)[0]:
                self._words = [f"it has not answered for {SILENCE_S:.0f} s"]
                self._carrier.kill()
                return
            self._send(_frame(b"B", b""))

    def _read(self) -> None:
        listening = threading.Thread(target=self._listen, daemon=True)
        listening.start()
        try:
            if self._is_greeted():
                self._pass_on()
        except OSError as error:  # the receiver could not write the output
            self._end = {"unread": str(error)}
        self._has_ended.set()
        self.leave()
        code = self._carrier.wait()
        listening.join(GRACE_S)
        for name in ("stdout", "stderr"):
            self._pipe(name).close()
        self._tell(Event(self.machine, "ended", error=self._failure(code)))

    def _is_greeted(self) -> bool:
        """Skip what the machine's shell prints until the keeper begins; return False if no keeper begins."""
        said = b""
        while not said.endswith(keeper.GREETING):
            if not (piece := self._pipe("stdout").read(1)):
                self._words = said.decode(errors="replace").splitlines()[-_SHOWN_WORDS:] + self._words
                return False
            said = said[-_LONGEST_LINE:] + piece
        self.has_begun = True
        return True

    def _pass_on(self) -> None:
        """Pass on all that the command does, until it ends."""
        parts: dict[bytes, bytes] = {}
        kinds = {b"O": "out", b"E": "err", b"M": "report"}
        for kind, content in keeper.frames(self._pipe("stdout")):
            self._unanswered = 0
            if kind == b"H":
                self._tell(Event(self.machine, "begun"))
            elif kind == b"X":
                self._end = json.loads(content)
                break
            elif kind != b"B":
                content = parts.pop(kind, b"") + content
                size = content.rfind(b"\n") + 1
                # The end of a progress bar's line never comes.
                if kind != b"M" and (b"\r" in content[size:] or len(content) - size > _LONGEST_LINE):
                    size = len(content)
                whole, parts[kind] = content[:size], content[size:]
                for data in whole.splitlines() if kind == b"M" else filter(None, [whole]):
                    self._tell(Event(self.machine, kinds[kind], data))
        for kind, left in filter(all, parts.items()):
            self._tell(Event(self.machine, kinds[kind], left))

    def _listen(self) -> None:
        for line in self._pipe("stderr"):
            if _NOISE not in line:
                self._words = [*self._words, line.decode(errors="replace").rstrip()][-_SHOWN_WORDS:]

    def _failure(self, carrier_code: int) -> RemoteError | None:
        name = self.machine.name
        if "error" in self._end:
            return RemoteError(self.machine, f"the command can't start on {name}: {self._end['error']}")
        if "unread" in self._end:
            return RemoteError(self.machine, f"the output of {name} can't be written: {self._end['unread']}")
        if "code" in self._end:
            code = self._end["code"]
            if not code:
                return None
            how = f"ended with exit code {code}" if code > 0 else f"was killed by {signal_name(-code)}"
            return RemoteError(self.machine, f"the command on {name} {how}", code)
        said = "; ".join(filter(None, self._words)) or f"exit code {carrier_code}, without a message"
        if self.has_begun:
            return RemoteError(self.machine, f"the connection to {name} was lost: {said}")
        return RemoteError(
            self.machine, f"{name} can't be reached: {said}. {_ADVICE[self.machine.by].format(name)}"
        )


_ADVICE = {
    "ssh": "`ssh {} true` must work without a question, and Python must be in the same place as here",
    "slurm": "`srun --overlap --nodelist={} true` must work in this job",
    "here": "{} must be able to start Python",
}
"""Advice for a machine that can't be reached, by the way to reach it."""

_LOAD = 'import os;exec(b"".join(os.read(0,1) for _ in range({})))'
"""Program that reads the keeper's text of a given size from its input, and runs the keeper. It is one line,
because csh can't quote lines."""


def carrier(machine: Machine, python: str, size: int, more: Sequence[str] = ()) -> list[str]:
    """Return the command line that starts a keeper on a machine. Its text, of `size` bytes, is then sent to
    its input.
    """
    keep = [python, "-u", "-c", _LOAD.format(size)]
    if machine.by == "here":
        return keep
    if machine.by == "slurm":
        # The step shares the CPUs and memory of the job with the job's other steps.
        one = ["--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={machine.name}"]
        return ["srun", *one, "--export=ALL", "--cpu-bind=none", "--mem=0", "--unbuffered", "--quiet", *keep]
    options = ["BatchMode=yes", "ConnectTimeout=20", "ServerAliveInterval=10", "ServerAliveCountMax=3"]
    words = ["ssh", "-T", *(word for option in (*options, *more) for word in ("-o", option))]
    words += ["-p", str(machine.port)] if machine.port else []
    words += ["-l", machine.user] if machine.user else []
    return [*words, "--", machine.name, f"exec {shlex.join(keep)}"]


def _frame(kind: bytes, content: bytes) -> bytes:
    return keeper.HEAD.pack(kind, len(content)) + content


def show(event: Event, prefix: str = "") -> None:
    """Write lines of a command's output to this program's output or error, each after `prefix`."""
    data = event.data
    if prefix:
        data = b"".join(b"%s%s\n" % (prefix.encode(), line) for line in data.removesuffix(b"\n").split(b"\n"))
    fd = 1 if event.kind == "out" else 2
    with _showing:
        while data:
            data = data[os.write(fd, data) :]


_REMOVE = (
    "trap '' INT TERM HUP; looks=100; read line && looks=1; for i in $(seq 300); do "
    'rm -rf -- "$0"; sleep 0.1; [ -e "$0" ] || looks=$((looks - 1)); [ $looks -gt 0 ] || exit 0; done'
)
"""Program that removes a folder. If its parent was killed, processes that the parent has started may create
the folder again within some seconds."""


@contextlib.contextmanager
def removed_at_end(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Remove a folder after the block, or when this process is killed, together with what its processes
    write there.
    """
    with subprocess.Popen(
        ["sh", "-c", _REMOVE, os.fspath(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as shell:
        try:
            yield
        finally:
            shell.communicate(b"\n")
