"""Setup of a new worker's environment variables, threads, random seeds, and share of GPU memory."""

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
"""Longest path, in bytes, of a folder in which multiprocessing can bind a socket; see unix(7)."""


def limit(gpus: Mapping[int, float]) -> None:
    """Limit the GPU memory of this process to the share that it was granted.

    Args:
        gpus: granted share of each GPU, by the GPU's index. At most one share is below 1, and the GPU with
            this share is the first GPU that torch sees.
    """
    shares = [share for share in gpus.values() if share < 1]
    if not shares:
        return
    if "torch" in sys.modules:
        _cap(sys.modules["torch"], shares[0])
    else:
        sys.meta_path.insert(0, _OnImport(shares[0]))


def _cap(torch: Any, share: float) -> None:
    # torch delays the call below until CUDA is first used, so a process that does not use CUDA never makes
    # the call.
    torch.cuda._lazy_call(functools.partial(torch.cuda.set_per_process_memory_fraction, share, 0))


class _OnImport(MetaPathFinder):
    """Import hook that sets torch's memory share when torch is imported, and then removes itself."""

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
        if self in sys.meta_path:
            # A retried import calls this method again. By then, the first call has already removed `self`.
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
    """Changes that give a worker the environment of the process that requested the worker.

    A template (a process from which workers are forked) prepares the changes once for all workers with the
    same environment. If each worker prepared the changes itself, it would have to copy the memory pages that
    it writes to.

    Args:
        text: environment of the requesting process as JSON, see `WorkerEnvironment`.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.environ, self.sys_path, self.argv = json.loads(text)
        mine = dict(os.environ)
        self._removed = mine.keys() - self.environ.keys() - {SESSION_MARK}
        self._changed = {name: value for name, value in self.environ.items() if mine.get(name) != value}

    def enter(self) -> None:
        """Apply the changes to this process, a newly forked worker."""
        for name in self._removed:
            del os.environ[name]
        os.environ.update(self._changed)
        sys.path[:] = self.sys_path
        sys.argv[:] = self.argv


class TaskOutput(io.BufferedWriter):
    """Standard output or error stream of a worker, which may run several functions in succession.

    When a different function begins to print, a mark with the function's name precedes its output. `write` is
    Python code, which a signal may interrupt. Even after an interrupt, no data enters the buffer twice.
    """

    name_of_function = ""
    """Name of the running function; "" to show the output under the worker's own name."""
    pipes: ClassVar[dict[int, int]] = {}
    """Inodes of the pipes to the node, by descriptor. Output that user code has redirected gets no marks."""
    texts: ClassVar[list[io.TextIOWrapper]] = []
    """Original standard output and error of this process, kept even if user code replaces the streams."""
    _marked = ""
    _in_line = False

    @classmethod
    def end_call(cls) -> None:
        """Flush the output of a call, and end an unfinished line of a task, so that the line is shown."""
        for text in cls.texts:
            try:
                text.flush()
                out = text.buffer
                if cls.name_of_function and isinstance(out, TaskOutput) and out._in_line:
                    out._marked = ""
                    out.write(b"")
                    out.flush()
            except (OSError, ValueError):  # user code has closed the stream, or the node has ended
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
    """Set up streams and handlers in a template, from which its workers inherit them."""
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
    """Give this worker the environment of the process that requested the worker, before user code runs.

    Returns:
        Environment variables that were set only for this process, so that its own
        workers do not inherit them.
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
    # The variable that identifies this session keeps its value. The inherited value may belong to a different
    # session, if the program runs in a worker of that session.
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
    """Put multiprocessing's sockets into the session's folder, which is removed even after kills."""
    folder = os.path.join(session, "pymp")
    # The kernel refuses addresses that are longer, and a data loader that can't bind its socket would wait
    # forever.
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        link = os.path.join(session, ELSEWHERE, "pymp")
        folder = os.path.join(tempfile.gettempdir(), f"pymp-{session[-16:]}")
        os.makedirs(os.path.dirname(link), exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another worker has created the link already
            os.symlink(folder, link)
    os.makedirs(folder, 0o700, exist_ok=True)
    current: Any = multiprocessing.process.current_process()
    current._config["tempdir"] = folder


def _set_threads() -> None:
    """Set the number of threads of libraries that were loaded before the thread variables were set."""
    count = _first_number(os.environ["OMP_NUM_THREADS"])
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(max(1, count))
    # scikit-learn's OpenMP library was loaded before, and would use a thread for each CPU.
    if "sklearn" in sys.modules and count:
        threadpoolctl.threadpool_limits(count, user_api="openmp")
    if "numpy" in sys.modules:
        blas = _first_number(os.environ["OPENBLAS_NUM_THREADS"])
        if blas > 1:  # OpenBLAS has one thread already, and finding the library takes milliseconds
            threadpoolctl.threadpool_limits(blas, user_api="blas")


def _first_number(setting: str) -> int:
    """Return the first number of a setting such as "4" or "4,2"; 0 if the setting has no number."""
    first = setting.split(",")[0].strip()
    return int(first) if first.isdigit() else 0


def _reseed() -> None:
    """Reseed the random generators, because forked siblings would draw the same numbers with the same
    seed.
    """
    # Python's own generator reseeds itself after a fork. NumPy's generator is seeded with an array, which is
    # ten times faster than a number.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(numpy.frombuffer(os.urandom(16), numpy.uint32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()
