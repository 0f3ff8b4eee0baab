"""Environment of a new worker: variables, threads, seeds, and its share of a GPU's memory."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import io
import json
import multiprocessing.process
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

import threadpoolctl

from trainkit.runtime.local.system import process
from trainkit.runtime.local.wire.messages import WorkerSpec, output_mark
from trainkit.runtime.local.worker.debugger import break_at
from trainkit.settings import ELSEWHERE, SESSION_MARK, TERMINAL

LONGEST_SOCKET_FOLDER = 107 - len("/listener-12345678")
"""The longest path, in bytes, of a folder in which multiprocessing can bind a socket (unix(7): 107)."""


def limit(gpus: Mapping[int, float]) -> None:
    """Cap this process's GPU memory.

    Args:
        gpus: share of each GPU that it was given; only one can be a fraction, and is the first that
            torch sees then.
    """
    shares = [share for share in gpus.values() if share < 1]
    if not shares:
        return
    if "torch" in sys.modules:
        _cap(sys.modules["torch"], shares[0])
    else:
        sys.meta_path.insert(0, _OnImport(shares[0]))


def _cap(torch: Any, share: float) -> None:
    # Run when CUDA is first used; where there is none, never.
    torch.cuda._lazy_call(functools.partial(torch.cuda.set_per_process_memory_fraction, share, 0))


class _OnImport(MetaPathFinder):
    """Caps torch's share once it is imported, and is gone then."""

    def __init__(self, share: float) -> None:
        self._share = share

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = functools.partial(self._run, loader.exec_module)
        return spec

    def _run(self, execute: Any, module: ModuleType) -> None:
        execute(module)
        if self in sys.meta_path:  # an import that failed may be tried again
            sys.meta_path.remove(self)
            _cap(module, self._share)


THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Inherited:
    """Changes that give a worker's process the environment of the one that asked for it.

    A template makes it, once for all workers that inherit the same: what a worker does itself, it does in
    pages of memory that it first has to copy.

    Args:
        text: see `WorkerEnvironment`.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.environ, self.sys_path, self.argv = json.loads(text)
        mine = dict(os.environ)
        self._removed = mine.keys() - self.environ.keys() - {SESSION_MARK}
        self._changed = {name: value for name, value in self.environ.items() if mine.get(name) != value}

    def enter(self) -> None:
        """Have this process, a worker just forked, see it."""
        for name in self._removed:
            del os.environ[name]
        os.environ.update(self._changed)
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv


class TaskOutput(io.BufferedWriter):
    """Standard output or error of a worker, in which several functions may run one after the other.

    Before what another function prints than the one before there is a mark with its name. Only this `write`
    is Python's, which a signal may interrupt. It has put nothing twice into the buffer then.
    """

    name_of_function = ""
    """Name of the function that runs; "": the one by whose name the node knows the process."""
    pipes: ClassVar[dict[int, int]] = {}
    """Inodes of the pipes to the node, by descriptor: nothing is marked that user code has led elsewhere."""
    texts: ClassVar[list[io.TextIOWrapper]] = []
    """Standard output and error of this process, whatever user code has put in their place."""
    _marked = ""
    _in_line = False

    @classmethod
    def end_call(cls) -> None:
        """Send what a call has printed, and have what a task has printed of a line shown as one."""
        for text in cls.texts:
            try:
                text.flush()
                out = text.buffer
                if cls.name_of_function and isinstance(out, TaskOutput) and out._in_line:
                    out._marked = ""
                    out.write(b"")
                    out.flush()
            except (OSError, ValueError):  # user code has closed it, or the node is gone
                continue

    def write(self, data: Any, /) -> int:
        name = TaskOutput.name_of_function
        if name != self._marked and os.fstat(self.fileno()).st_ino == self.pipes.get(self.fileno()):
            self._marked = name
            super().write(output_mark(name))
        self._in_line = bool(data) and data[-1:] != b"\n"
        return super().write(data)


def _standard(fd: int) -> io.TextIOWrapper:
    binary = TaskOutput(io.FileIO(fd, "w", closefd=False))
    TaskOutput.texts.append(io.TextIOWrapper(binary, "utf-8", "backslashreplace", line_buffering=True))
    return TaskOutput.texts[-1]


def prepare() -> None:
    """Set up in a template what its workers need, and each would set up alike."""
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout, sys.stderr = _standard(1), _standard(2)
    sys.argv[:] = [""]
    sys.breakpointhook = functools.partial(_breakpoint, os.environ.get(TERMINAL, ""))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(sys.stderr)


def _breakpoint(terminal: str, *args: Any, **kwargs: Any) -> Any:
    """Open `pdb` on the program's terminal, or the debugger that PYTHONBREAKPOINT names."""
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*args, **kwargs)
    return break_at(sys._getframe(1), terminal)


def enter_environment(spec: WorkerSpec, inherited: Inherited, out: int, err: int) -> dict[str, str]:
    """Give the process the environment of the one that asked for it, before any user code runs.

    Returns:
        The variables that were set for this process alone, and are not handed on.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, standard in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, standard)
    os.close(null)
    TaskOutput.pipes.update({fd: os.fstat(fd).st_ino for fd in (1, 2)})
    inherited.enter()
    given = inherited.environ.keys() | spec.env.keys()
    threads = str(max(1, int(spec.cpus)))
    own = {name: threads for name in THREAD_VARIABLES if name not in given}
    own["CUDA_VISIBLE_DEVICES"] = ",".join(spec.visible_gpus)
    # The session's own mark holds: a program inside a worker of another session may hand that one's on.
    os.environ.update(own | dict(spec.env) | {SESSION_MARK: os.environ[SESSION_MARK]})
    if spec.cwd != spec.environment.cwd:
        sys.path.insert(0, spec.cwd)
    os.chdir(spec.cwd)
    process.offer_stacks()
    _keep_sockets(os.environ[SESSION_MARK])
    _set_threads()
    _reseed()
    limit(spec.gpus)
    return own


def _keep_sockets(session: str) -> None:
    """Have the sockets of multiprocessing go with the session, as a killed process removes none."""
    folder = os.path.join(session, "pymp")
    # The kernel refuses longer addresses, and a loader whose process can't bind its socket waits for ever.
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        link = os.path.join(session, ELSEWHERE, "pymp")
        folder = os.path.join(tempfile.gettempdir(), f"pymp-{session[-16:]}")
        os.makedirs(os.path.dirname(link), exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another worker was first
            os.symlink(folder, link)
    os.makedirs(folder, 0o700, exist_ok=True)
    current: Any = multiprocessing.process.current_process()
    current._config["tempdir"] = folder


def _set_threads() -> None:
    """Tell libraries that were loaded before the variables were set."""
    count = _first_number(os.environ["OMP_NUM_THREADS"])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(max(1, count))
    if "sklearn" in sys.modules and count:  # its OpenMP was loaded with a thread for each CPU
        threadpoolctl.threadpool_limits(count, user_api="openmp")
    if "numpy" in sys.modules:
        blas = _first_number(os.environ["OPENBLAS_NUM_THREADS"])
        if blas > 1:  # the template loaded it with one thread; looking the library up takes milliseconds
            threadpoolctl.threadpool_limits(blas, user_api="blas")


def _first_number(setting: str) -> int:
    """Of a setting such as "4" or "4,2"; 0, which the libraries take for "not set", if there is none."""
    first = setting.split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _reseed() -> None:
    """Forked siblings would draw the same numbers otherwise."""
    # Python's own generator seeds itself after a fork. NumPy takes a tenth of the time for an array.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(numpy.frombuffer(os.urandom(16), numpy.uint32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
