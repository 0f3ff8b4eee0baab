"""Run of a script on a group of workers, like torchrun: each worker is one rank and runs the whole script.

The launcher's own process does not import torch. The launcher passes its own standard streams to the ranks,
so that their output appears unchanged, and the socket that listens on the rendezvous port.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Literal, NoReturn

from trainkit.errors import ConfigError
from trainkit.plugins.launch.libraries import watch_ranks
from trainkit.resources import Bundle
from trainkit.runtime import api as runtime
from trainkit.runtime import signals
from trainkit.runtime.local.system import devices, process
from trainkit.settings import PAUSES
from trainkit.train.distributed.failure_cause import LostOthersError, lost_peer
from trainkit.train.distributed.rendezvous import set_torchrun_variables
from trainkit.train.workers.member import GroupMember, WorkerSpec
from trainkit.train.workers.pausing import own_vote

_CHANNEL = "streams"
STORE = "store"
_MOST_FDS = 3
_LAST_WORDS_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ScriptOptions:
    """A script and the settings of its ranks.

    Attributes:
        command: script, module or program, with its arguments.
        kind: type of the command; each rank runs a program in a child process.
        fresh: True: each rank is a new Python process; False: a fork of a process that has imported torch.
        num_workers: number of ranks on this machine.
        bundle: resources of each rank.
        variables: environment variables for all ranks; None removes a variable.
        sees_own_gpus: True: each rank sees only its own GPUs, and LOCAL_RANK is 0; False: each rank sees all
            GPUs.
        address, port: address and port at which the ranks meet; port 0: any free port.
        first_rank: rank of this machine's first rank.
        world_size: number of ranks on all machines; 0: `num_workers`.
        node_rank: index of this machine among the machines of the run.
        nodes: number of machines of the run.
        host: name of this machine in messages; "" if the run has one machine.
        max_restarts: maximum number of restarts of all ranks after failures.
        restarts: number of restarts that have happened.
        shutdown_s: seconds from SIGINT or SIGTERM until ranks that still run are killed.
        search_path: `sys.path` of the launcher, without the folder of the launcher's own script.
    """

    command: tuple[str, ...]
    kind: Literal["script", "module", "program"] = "script"
    fresh: bool = False
    num_workers: int = 1
    bundle: Bundle = field(default_factory=lambda: {"CPU": 1.0})
    variables: Mapping[str, str | None] = field(default_factory=dict)
    sees_own_gpus: bool = False
    address: str = "127.0.0.1"
    port: int = 0
    first_rank: int = 0
    world_size: int = 0
    node_rank: int = 0
    nodes: int = 1
    host: str = ""
    max_restarts: int = 0
    restarts: int = 0
    shutdown_s: float = 30.0
    search_path: tuple[str, ...] = ()
    use_local: bool = field(default=False, init=False)
    meets: bool = field(default=True, init=False)
    backend: str = field(default="", init=False)
    # Collectives have no timeout, because a rank may evaluate for hours after the other ranks have ended.
    timeout_s: float = field(default=float("inf"), init=False)

    @property
    def all_ranks(self) -> int:
        """Number of ranks on all machines."""
        return self.world_size or self.num_workers

    @classmethod
    def of(
        cls, command: Sequence[str], *, workers: str, cpus: float | None, gpus: float, **more: Any
    ) -> ScriptOptions:
        """Return the options for running a command on this machine.

        Args:
            command: see `ScriptOptions`.
            workers: number of ranks, as a text that `ranks_of` accepts.
            cpus: number of CPUs of each rank; None: 1, or all CPUs if there is only one rank.
            gpus: number of GPUs that each rank has for itself; 0: each rank sees all GPUs.
            **more: values of further attributes, by name.

        Raises:
            ConfigError: a value is out of range.
        """
        ranks = ranks_of(workers)
        each = (1 if ranks > 1 else devices.cpu_count()) if cpus is None else cpus
        if each <= 0 or gpus < 0 or more["max_restarts"] < 0 or more["shutdown_s"] < 0:
            raise ConfigError(
                f"the CPUs of a rank must be more than 0, not {each:g}; its GPUs, restarts and timeout "
                f"must be 0 or more, not {gpus:g}, {more['max_restarts']} and {more['shutdown_s']:g}"
            )
        bundle = {"CPU": float(each), "GPU": gpus}
        return cls(command=tuple(command), num_workers=ranks, bundle=bundle, sees_own_gpus=gpus > 0, **more)


class ScriptError(Exception):
    """Exception for an error that a rank's script has raised.

    Args:
        rank: rank whose script raised the exception.
        kind: name of the exception's class.
        text: traceback of the exception; "" if the script's own `sys.excepthook` has printed it.
    """

    def __init__(self, rank: int, kind: str, text: str) -> None:
        super().__init__(rank, kind, text)
        self.rank, self.kind, self.text = rank, kind, text


class RendezvousHost:
    """Actor that serves the rendezvous store, through which ranks meet, even after the ranks have ended."""

    _store: Any = None

    def listen(self, folder: str) -> None:
        """Serve a new store at the launcher's port; the new store replaces any previous store.

        Args:
            folder: folder with the socket of the launcher's `DescriptorChannel`.
        """
        import torch.distributed as dist

        self._store = None
        (fd,) = descriptors(folder, STORE)
        with socket.socket(fileno=os.dup(fd)) as listening:
            address, port = listening.getsockname()[:2]
        self._store = dist.TCPStore(  # type: ignore[attr-defined, unused-ignore]
            address, port, is_master=True, wait_for_workers=False, master_listen_fd=fd
        )


class ScriptWorker(GroupMember):
    """Worker that runs a script as one rank."""

    _options: ScriptOptions
    _rank: int

    def start(self, spec: WorkerSpec[ScriptOptions]) -> frozenset[str]:
        """Take over the launcher's standard streams, and set this rank's environment variables."""
        signals.restore_defaults()
        options = self._options = spec.options
        rank = self._rank = options.first_rank + spec.rank
        for standard, fd in enumerate(descriptors(str(runtime.scratch_dir()), str(spec.rank))):
            os.dup2(fd, standard)
            os.close(fd)
        world_size, local = options.all_ranks, spec.locality
        if options.sees_own_gpus:
            local = replace(local, rank=0)
        set_torchrun_variables(f"tcp://{options.address}:{options.port}", rank, world_size, local)
        for name, value in options.variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        os.environ.update(
            GROUP_RANK=str(options.node_rank),
            GROUP_WORLD_SIZE=str(options.nodes),
            ROLE_RANK=str(rank),
            ROLE_WORLD_SIZE=str(world_size),
            TORCHELASTIC_RESTART_COUNT=str(options.restarts),
            TORCHELASTIC_MAX_RESTARTS=str(options.max_restarts),
            TORCHELASTIC_USE_AGENT_STORE="True",
            **{PAUSES: str(spec.page)},
        )
        return frozenset()

    def run(self) -> NoReturn:
        """Run the script, then end this process as a program ends.

        Raises:
            ScriptError: the script raised an exception.
            LostOthersError: the script raised an exception because a different rank has ended.
        """
        end: BaseException | None = None
        code = 0
        try:
            if self._options.fresh or self._options.kind == "program":
                code = self._run_program()
            else:
                self._run_here()
        except BaseException as raised:
            end = raised
        if end is not None and not isinstance(end, SystemExit | KeyboardInterrupt):
            end = self._failure(end)  # The launcher receives this exception and prints only its text.
        killed_by = signal.SIGINT if isinstance(end, KeyboardInterrupt) else max(0, -code)
        if isinstance(end, SystemExit):
            code = process.exit_code(end)
            if not isinstance(end.code, int | None):
                show = sys.stderr.write if process.is_open(sys.stderr) else tell
                show(f"{end.code}\n")
        process.finish_program(None)
        if isinstance(end, Exception):
            raise end
        code = process.flush_streams(code)
        # The process ends itself by the program's signal, so that waiting processes see this signal.
        if killed_by:
            faulthandler.disable()
            if killed_by != signal.SIGKILL:
                signal.signal(killed_by, signal.SIG_DFL)
            os.kill(os.getpid(), killed_by)
        raise SystemExit(code)

    def _run_here(self) -> None:
        own_vote()
        sys.argv[:] = command = self._options.command
        sys.path[:] = self._options.search_path
        if (multiprocessing := sys.modules.get("multiprocessing.process")) is not None:
            multiprocessing.ORIGINAL_DIR = os.getcwd()  # type: ignore[attr-defined]
        watch_ranks(self._rank, self._options.all_ranks, say)
        if self._options.kind == "module":
            sys.path.insert(0, os.getcwd())
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        elif os.path.isdir(command[0]):
            runpy.run_path(command[0], run_name="__main__")
        else:
            path = os.path.abspath(command[0])
            sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
            # `runpy.run_path` would remove `__main__` while threads and exit functions may still need it.
            loader = SourceFileLoader("__main__", path)
            sys.modules["__main__"] = main = types.ModuleType("__main__")
            main.__dict__.update(__file__=path, __loader__=loader, __cached__=None)
            # Without dont_inherit, this file's `from __future__` would also apply to the script.
            code = compile(loader.get_data(path), path, "exec", dont_inherit=True)
            exec(code, main.__dict__)  # noqa: S102 - it is asked for

    def _run_program(self) -> int:
        options = self._options
        python = [] if options.kind == "program" else [sys.executable, "-u"]
        python += ["-m"] * (options.kind == "module")
        early: list[int] = []
        signals.hand_on(early.append)
        with subprocess.Popen([*python, *options.command]) as program:
            signals.hand_on(program.send_signal)
            for number in early:
                program.send_signal(number)
            return program.wait()

    def _failure(self, error: BaseException) -> Exception | SystemExit:
        """Return the exception to raise for `error`, or the SystemExit that `sys.excepthook` raises."""
        text = _traceback(error)
        if lost_peer(error):
            return LostOthersError(None, text)
        # torch.distributed's hook puts the rank before each line, but the launcher already names the rank.
        own = (None, "sys", "torch.distributed.distributed_c10d")
        if getattr(sys.excepthook, "__module__", None) not in own:
            try:
                sys.excepthook(type(error), error, error.__traceback__)
                text = ""
            except SystemExit as end:
                return end
            except BaseException as broken:
                text = f"Error in sys.excepthook:\n{_traceback(broken)}\nOriginal exception was:\n{text}"
        return ScriptError(self._rank, type(error).__name__, text)


def _traceback(error: BaseException) -> str:
    """Return an error's traceback as text, after removing the calls in this module from the error."""
    shown = error.__traceback__
    while shown is not None and shown.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        shown = shown.tb_next
    error.__traceback__ = shown
    return "".join(traceback.format_exception(error))


def descriptors(folder: str, key: str) -> list[int]:
    """Receive open files from the launcher, and return their file descriptors.

    Args:
        folder: folder with the socket of the launcher's `DescriptorChannel`.
        key: name of the files: a rank, or the name of the rendezvous store's socket.

    Raises:
        LookupError: the launcher has no files under this key, or has ended.
    """
    with _place(folder) as place, socket.socket(socket.AF_UNIX) as asking:
        asking.connect(place)
        asking.sendall(key.encode())
        if not (found := socket.recv_fds(asking, 1, _MOST_FDS)[1]):
            raise LookupError(f"the launcher has no open files for {key!r}")
        return found


@contextlib.contextmanager
def _place(folder: str) -> Iterator[str]:
    """Yield a path of the channel's socket that is short enough for a socket, however long `folder` is."""
    fd = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{_CHANNEL}"
    finally:
        os.close(fd)


class DescriptorChannel:
    """Socket through which the launcher passes open files to the session's workers.

    Args:
        folder: folder that only this user can open.

    Attributes:
        given: descriptors by key.
    """

    def __init__(self, folder: str) -> None:
        self.given: Mapping[str, Sequence[int]] = {}
        self._listening = socket.socket(socket.AF_UNIX)
        with _place(folder) as place:
            self._listening.bind(place)
        self._listening.listen(socket.SOMAXCONN)
        threading.Thread(target=self._serve, name="trainkit-streams", daemon=True).start()

    def _serve(self) -> None:
        while True:
            asking, _ = self._listening.accept()
            # A killed or silent client must not end this thread.
            with asking, contextlib.suppress(OSError):
                asking.settimeout(_LAST_WORDS_S)
                if fds := self.given.get(asking.recv(64).decode(errors="replace")):
                    socket.send_fds(asking, [b"\0"], fds)


# -- in the launcher --------------------------------------------------------------------------


def every_rank(text: str) -> Callable[[int], int]:
    """Parse a flag of torchrun; the result maps a rank to its streams: 0 none, 1 stdout, 2 stderr, 3 both.

    Args:
        text: value of the flag, such as "3" for all ranks, or "0:1,1:2" for ranks 0 and 1.

    Raises:
        ConfigError: `text` has another form.
    """
    parts = [part.rpartition(":") for part in text.split(",")]
    fits = all(which in tuple("0123") and rank.isdecimal() == bool(colon) for rank, colon, which in parts)
    if not fits or (len(parts) > 1 and not all(colon for _, colon, _ in parts)):
        raise ConfigError(
            f"--redirects, --tee: give 0, 1 (stdout), 2 (stderr), 3 (both), or as 0:3 by rank, not {text!r}"
        )
    by_rank = {rank: int(which) for rank, _, which in parts}
    return lambda rank: by_rank.get(str(rank), by_rank.get("", 0))


@dataclass(kw_only=True)
class RankStreams:
    """Destinations of the output of all ranks.

    Attributes:
        log_dir: folder for files of output; None: a temporary folder, if needed.
        run_id: name of this run's subfolder in `log_dir`.
        redirects: streams that go only to a file, as a text that `every_rank` parses.
        tee: streams that go to a file and, line by line, to the console.
        shown: ranks whose output appears on the console; None: all ranks.
        role: name before the rank at the beginning of each console line of `tee`.
    """

    log_dir: str | None = None
    run_id: str = "none"
    redirects: str = "0"
    tee: str = "0"
    shown: frozenset[int] | None = None
    role: str = "default"
    _opened: list[int] = field(default_factory=list)
    _copying: list[threading.Thread] = field(default_factory=list)
    _first_rank: int = 0

    def open(self, attempt: int, ranks: int, first_rank: int = 0) -> dict[str, list[int]]:
        """Return the file descriptors of stdin, stdout and stderr for each rank of this machine."""
        self._first_rank = first_rank
        return {
            str(rank): [0, *(self._stream(attempt, rank, number) for number in (1, 2))]
            for rank in range(ranks)
        }

    def sent(self) -> None:
        """Close the opened descriptors; the ranks have received them."""
        while self._opened:
            os.close(self._opened.pop())

    def finish(self) -> None:
        """Wait until the last lines of output of the ended ranks have been copied."""
        self.sent()
        while self._copying:
            self._copying.pop().join(_LAST_WORDS_S)

    def _stream(self, attempt: int, rank: int, number: int) -> int:
        console = number
        if self.shown is not None and rank not in self.shown:
            console = self._own(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        teed = every_rank(self.tee)(rank) & number
        if not teed and not every_rank(self.redirects)(rank) & number:
            return console
        if self.log_dir is None:
            self.log_dir = tempfile.mkdtemp(prefix="trainkit-run-")
            say(f"the ranks' output is written to {self.log_dir}")
        folder = Path(self.log_dir, self.run_id, f"attempt_{attempt}", str(self._first_rank + rank))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / ("stdout.log" if number == 1 else "stderr.log")
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not teed:
            return self._own(file)
        reading, writing = os.pipe()
        prefix = f"[{self.role}{self._first_rank + rank}]:".encode()
        copying = threading.Thread(
            target=_copy, args=(reading, file, os.dup(console), prefix), name="trainkit-tee", daemon=True
        )
        copying.start()
        self._copying.append(copying)
        return self._own(writing)

    def _own(self, fd: int) -> int:
        self._opened.append(fd)
        return fd


def _copy(reading: int, file: int, console: int, prefix: bytes) -> None:
    with open(reading, "rb") as lines, open(file, "wb", 0) as kept, open(console, "wb", 0) as shown:
        for line in lines:
            kept.write(line)
            shown.write(prefix + line)


def ranks_of(asked: str) -> int:
    """Return the number of ranks for `asked`: a number, "gpu", "cpu", or "auto" (GPUs if any exist, else
    CPUs).

    Raises:
        ConfigError: `asked` has another form, or is "gpu" on a machine without GPUs.
    """
    gpus = devices.gpu_count()
    if asked == "gpu" and not gpus:
        raise ConfigError("a rank for each GPU was requested, but this machine shows no GPU")
    if asked in ("gpu", "cpu", "auto"):
        return gpus if gpus and asked != "cpu" else devices.cpu_count()
    if not asked.isdecimal() or not int(asked):
        raise ConfigError(f"--workers must be a number of 1 or more, gpu, cpu or auto, not {asked}")
    return int(asked)


def say(text: str) -> None:
    """Print a message of the launcher; signal handlers may call this function."""
    tell(f"trainkit: {text}\n")


def tell(text: str) -> None:
    """Write `text` to standard error; characters that can't be encoded are escaped."""
    left = text.encode(errors="backslashreplace")
    while left:
        left = left[os.write(2, left) :]
