"""What every test stands on: one runtime session a module, and nothing left behind after a test."""

from __future__ import annotations

import contextlib
import functools
import gc
import getpass
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.tiers import LONGEST_TIERS, OUTSIDE, PARTS, TIERS, may_hold, order_of, tier_of
from trainkit.runtime import session
from trainkit.runtime.local.system import process
from trainkit.settings import SESSION_MARK
from trainkit.tune.core import seeds

SESSION_CPUS = 4

TESTS = Path(__file__).parent

MEMORY_PER_WORKER = 2 << 30
"""What a process of the run needs, with the sessions and libraries of its tests."""

NEEDED_BY_ALL = frozenset({"numpy", "trainkit.tune.trial.actor"})
NEEDED_BY_TRAINERS = frozenset({"torch", "torch._dynamo"})
NEEDED_BY_SEARCHES = frozenset({"sklearn", "trainkit.sklearn.trials"})
NEEDED = {
    "lightning": frozenset({"lightning.pytorch", "pytorch_lightning"}),
    "recipes": NEEDED_BY_TRAINERS,
    "sklearn": NEEDED_BY_SEARCHES,
    "test_scikit_digits.py": NEEDED_BY_SEARCHES,
    "train": NEEDED_BY_TRAINERS,
}
"""What workers are forked with, if this process has imported it: by folder and by file.

This process has imported what any test needs. Workers that were forked with all of it would cost each
session of its own seconds of processor time; without what they do need, each would import it by itself.
"""

PRELOADS = {
    "sklearn": (
        "sklearn.ensemble",
        "sklearn.linear_model",
        "sklearn.naive_bayes",
        "sklearn.neural_network",
        "sklearn.svm",
        "trainkit.sklearn.trials",
    ),
}
"""What the shared session's workers are forked with, by folder, where a module has no `PRELOAD`."""

THREADS = ("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""What numerical libraries read when they are loaded: how many threads they compute with."""

FOLDERS = "TRAINKIT_TEST_FOLDERS"
"""The folders of a run, which processes of xdist inherit."""

OWN_FILES = ("check-", "trainkit-inline-", "trainkit-run-", "trainkit-sklearn-")
"""Beginnings of the names of temporary files that must not outlive their test."""

RUN = "TRAINKIT_TEST_RUN"
"""What this run starts inherits it, so that another run's processes are not taken for ours."""


_threads_unset = [name for name in THREADS if name not in os.environ]

SECONDS = "trainkit/seconds"
"""Key in pytest's cache: seconds that each test took when it last ran, by its name."""

test_seconds: Counter[str] = Counter()
"""Seconds of each test of this run."""

started_processes: list[str] = []
"""The processes that this one has started since the current test began."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this suite."""
    parser.addoption("--tier", default=",".join(TIERS), help="run only tests of these tiers, as unit,process")
    parser.addoption(
        "--part", type=int, help=f"run one of {PARTS} parts of the longest tiers: this number modulo {PARTS}"
    )


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes fit, for `-n auto`: more than cores, as tests wait, most for programs."""
    cores = len(os.sched_getaffinity(0))
    more = 2 if "external" in wanted_tiers(config) else 1
    return max(1, min(cores + more, psutil.virtual_memory().available // MEMORY_PER_WORKER))


@pytest.hookimpl(tryfirst=True)  # before hypothesis asks for its profile
def pytest_configure(config: pytest.Config) -> None:
    """Set this process up, which runs tests; not the ones of a session that import this module from it."""
    # No test breaks by noise: neither by a slow machine nor by other examples or draws than yesterday's. To
    # look for new ones: pytest --hypothesis-profile=explore. The quick profile, of `make test`, tries fewer.
    settings = _settings()
    settings.register_profile("steady", deadline=None, derandomize=True)
    settings.register_profile("quick", deadline=None, derandomize=True, max_examples=20)
    settings.register_profile("explore", deadline=None)
    settings.load_profile("steady")
    if unknown := set(wanted_tiers(config)) - set(TIERS):
        raise pytest.UsageError(f"--tier: there is no tier {unknown}, only {', '.join(TIERS)}")
    for tier, contents in TIERS.items():
        config.addinivalue_line("markers", f"{tier}: {contents}")
    # Matrices of tests are small: threads would only wait for each other, most where processes share cores.
    if config.getoption("dist", "no") == "no":  # processes of xdist set it themselves, and do not inherit it
        os.environ |= dict.fromkeys(_threads_unset, "1")
    sys.addaudithook(_note_process)
    os.environ[RUN] = f"{os.getpid()}"
    # A shell has its background jobs ignore SIGINT, and programs that they start ignore it too: what tests
    # interrupt has to begin as in a terminal.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Its sessions and what their workers print are kept apart from the user's own, and from another run's.
    folder, rays = _own_folders(config)
    os.environ["TRAINKIT_RUNTIME_DIR"] = folder
    os.environ["TRAINKIT_DEDUP_LOGS"] = "0"  # tests that watch what is printed count the lines
    os.environ["TRAINKIT_LOG_DIR"] = f"{folder}/logs"
    # Ray notes the latest cluster in its folder, and a program that names none connects to it: what one
    # process of the run starts is not for the others.
    os.environ["RAY_TMPDIR"] = rays
    # Killed programs and libraries leave temporary files. Kept are only caches, and the folders of pytest.
    before = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", before)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{before}/torchinductor_{getpass.getuser()}")
    os.environ["TMPDIR"] = f"{folder}/tmp"
    os.mkdir(os.environ["TMPDIR"])
    tempfile.tempdir = None


def _own_folders(config: pytest.Config) -> list[str]:
    """Return this process's folder for all temporary files, and one for Ray.

    Processes of xdist use folders within those of the process that has started them. That process removes
    everything when they have ended, as xdist kills one that takes too long to end.
    """
    if hasattr(config, "workerinput"):
        own = [os.path.join(each, config.workerinput["workerid"]) for each in os.environ[FOLDERS].split(":")]
        for each in own:
            os.mkdir(each)
        return own
    # The paths are short, as sockets lie below them.
    made = [tempfile.mkdtemp(prefix="trainkit-test-"), tempfile.mkdtemp(prefix="ray", dir="/tmp")]
    for each in made:
        config.add_cleanup(functools.partial(_remove, each))
    os.environ[FOLDERS] = ":".join(made)
    return made


def _remove(folder: str) -> None:
    """Remove a folder, into which processes that are about to end may still write."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not os.path.exists(folder)

    if not eventually(is_gone, 20):
        raise OSError(f"{folder} can't be removed: {list(Path(folder).rglob('*'))}")


def wanted_tiers(config: pytest.Config) -> list[str]:
    """Return the tiers that `--tier` names."""
    return str(config.getoption("--tier")).split(",")


def _note_process(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}:
        return
    command = arguments[1] if arguments else ""
    # By these joblib counts cores and matplotlib finds fonts, once: where and when, no test can know.
    if not any(name in command for name in ("lscpu", "fc-list")):
        started_processes.append(f"{event} {command}")


def _settings() -> Any:
    from hypothesis import settings  # workers that import this module do without

    return settings


def examples(steady: int) -> int:
    """Return how many examples a law is tried on: `steady`, or a tenth of them in the quick profile."""
    return max(10, steady // 10) if _settings().get_current_profile_name() == "quick" else steady


def every(quick: int) -> int:
    """Return the step through a range of cases: 1, or `quick` in the quick profile."""
    return quick if _settings().get_current_profile_name() == "quick" else 1


def _is_named(file: Path, config: pytest.Config) -> bool:
    return file in {Path(argument.split("::")[0]).resolve() for argument in config.args}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files of other tiers unread, as their imports take long; a file that is named is read anyway."""
    if not collection_path.match("test_*.py") or _is_named(collection_path, config):
        return None
    return None if may_hold(collection_path.relative_to(TESTS), wanted_tiers(config)) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, leave out those of other tiers, and begin with the longest files."""
    wanted = wanted_tiers(config)
    kept, left_out = [], []
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            item.add_marker(tier_of(item.path.relative_to(TESTS)))
        is_kept = any(item.get_closest_marker(tier) for tier in wanted) or _is_named(item.path, config)
        (kept if is_kept else left_out).append(item)
    if (part := config.getoption("--part")) is not None:
        kept, others = divide(kept, part % PARTS)
        left_out += others
    kept.sort(key=lambda item: order_of(item.path.relative_to(TESTS)))
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def divide(items: list[pytest.Item], part: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Divide tests into those that a part runs, and the others.

    Every part runs the tiers that need nothing from outside, and the first test of each file in `OUTSIDE`.
    The other tests of the longest tiers are dealt out in turn.
    """
    met: set[Path] = set()
    dealt = itertools.cycle(range(PARTS))
    runs, rest = [], []
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in LONGEST_TIERS):
            runs.append(item)
            continue
        is_first = item.path not in met and item.path.relative_to(TESTS).as_posix() in OUTSIDE
        met.add(item.path)
        (runs if next(dealt) == part or is_first else rest).append(item)
    return runs, rest


def pytest_collection_finish() -> None:
    """Let programs and workers compute with as many threads as without tests; this process has read it."""
    for name in _threads_unset:
        os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Look from here on at the processes that a test starts."""
    started_processes.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Fail a test of the tier `unit` or `model` that started a process."""
    started = list(started_processes)
    yield
    if started and (item.get_closest_marker("unit") or item.get_closest_marker("model")):
        pytest.fail(f"a test of this tier starts no process, but this one has started {started}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the seconds of the setup, call and teardown of a test that passes."""
    if report.passed:
        test_seconds[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the seconds of each test that has run, beside those of earlier runs, in pytest's cache."""
    config = session.config
    if not hasattr(config, "workerinput") and (cache := getattr(config, "cache", None)) is not None:
        known = {test: each for test, each in cache.get(SECONDS, {}).items() if _exists(test, config)}
        cache.set(SECONDS, known | {test: round(each, 3) for test, each in test_seconds.items()})


def _exists(test: str, config: pytest.Config) -> bool:
    return (config.rootpath / test.partition("::")[0]).exists()


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether `condition` becomes true within `seconds`: as many as a busy machine may need."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def printed(capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what is on standard output and on standard error, and leave it there.

    `readouterr` loses what other threads and processes write meanwhile.
    """
    assert capfd._capture is not None
    files = (capfd._capture.out.tmpfile, capfd._capture.err.tmpfile)
    out, err = (os.pread(file.fileno(), 1 << 22, 0).decode(errors="replace") for file in files)
    return out, err


def run_python(
    *arguments: object, code: int = 0, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, which has to end with this exit code; return what it printed."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-5000:]
    return done


def all_is_free() -> bool:
    """Whether nobody holds any of the session's resources."""
    return trainkit.available_resources() == trainkit.cluster_resources()


def children() -> set[int]:
    """Direct children of the test process that are not already dead."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if is_running(pid)}


def is_running(pid: int) -> bool:
    """Return whether there is a process `pid` that has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory() -> set[int]:
    """The anonymous memory files that this process still holds, by inode."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            if "memfd:trainkit" in os.readlink(f"/proc/self/fd/{fd}"):
                found.add(os.stat(f"/proc/self/fd/{fd}").st_ino)
        except OSError:
            continue
    return found


def session_processes() -> list[int]:
    """Every process of a session that this test run started."""
    return [pid for pid in psutil.pids() if _of_this_run(process.environment(pid))]


def _of_this_run(environment: dict[str, str]) -> bool:
    return SESSION_MARK in environment and environment.get(RUN) == os.environ[RUN]


def session_fixture(
    scope: Any = "module", *, autouse: bool = True, engines: Sequence[str] | None = None, **settings: Any
) -> Any:
    """Return a fixture: a session with these settings, on each of `engines`, of which no process stays."""

    @pytest.fixture(scope=scope, autouse=autouse, params=engines)
    def session(request: pytest.FixtureRequest) -> Iterator[str | None]:
        before = set(session_processes())
        engine = getattr(request, "param", None)
        trainkit.init(**settings, **({"engine": engine} if engine else {}))
        yield engine
        trainkit.shutdown()
        assert eventually(lambda: not set(session_processes()) - before)

    return session


def folder_of(request: pytest.FixtureRequest) -> str:
    """Return the folder of a test in tests/, or in tests/plugins/."""
    first, *more = request.path.relative_to(TESTS).parts
    return more[0] if first == "plugins" else first


@pytest.fixture(scope="module", autouse=True)
def few_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork the workers of this module's sessions with what its tests need."""
    parts = request.path.relative_to(TESTS).parts
    needed = NEEDED_BY_ALL.union(*(NEEDED.get(part, ()) for part in parts))
    found = session.wanted

    # Asked each time: a test may be what first imports something.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "wanted", lambda *imported: found(*imported) & needed)
        yield


class SharedSession:
    """The session of the modules that ask for `runtime`: one after another, as long as they want the same."""

    def __init__(self) -> None:
        self._preload: tuple[str, ...] | None = None
        self._before: set[int] = set()

    def open(self, preload: tuple[str, ...]) -> None:
        """Have the session run, with these modules imported beforehand."""
        if self._preload != preload or not trainkit.is_initialized():
            self.close()
            self._before = set(session_processes())
            trainkit.init(num_cpus=SESSION_CPUS, preload=preload)
            self._preload = preload

    def check(self) -> None:
        """End the session if a module left something in it that the next one would meet."""
        if trainkit.is_initialized() and not eventually(lambda: not self._held(), 1):
            self.close()

    def _held(self) -> bool:
        gc.collect()
        living = [actor for actor in trainkit.list_actors() if actor["state"] != "DEAD"]
        groups = [group for group in trainkit.list_placement_groups() if group["state"] != "REMOVED"]
        is_whole = trainkit.available_resources() == trainkit.cluster_resources()
        return bool(living or groups or trainkit.list_tasks() or not is_whole)

    def close(self) -> None:
        """End the session, if it runs, and fail if anything of it stays."""
        if self._preload is None:
            return
        self._preload = None
        trainkit.shutdown()
        assert eventually(lambda: not self._processes()), f"left running: {self._processes()}"
        assert eventually(lambda: not shared_memory()), f"left in shared memory: {shared_memory()}"

    def _processes(self) -> set[int]:
        return set(session_processes()) - self._before


@pytest.fixture(scope="session")
def shared_session() -> Iterator[SharedSession]:
    """The session that modules share."""
    shared = SharedSession()
    yield shared
    shared.close()


@pytest.fixture(scope="module", autouse=True)
def own_session(request: pytest.FixtureRequest, shared_session: SharedSession) -> None:
    """End the shared session before a module in which not every test uses it."""
    tests = [test for test in request.session.items if test.path == request.path]
    if not all("runtime" in getattr(test, "fixturenames", ()) for test in tests):
        shared_session.close()


@pytest.fixture(scope="module")
def runtime(
    request: pytest.FixtureRequest, own_session: None, shared_session: SharedSession
) -> Iterator[None]:
    """The local engine with four CPUs. Its workers are forked with what the module or `PRELOADS` names."""
    folder = folder_of(request)
    shared_session.open(getattr(request.module, "PRELOAD", PRELOADS.get(folder, ())))
    yield
    if folder in ("compat", "runtime"):  # their tests look into the session, and begin with a new one
        shared_session.close()
    shared_session.check()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """A session on a Ray cluster of two nodes with a CPU each, both on this machine, for a module."""
    pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit-ml[ray]'")
    from ray.cluster_utils import Cluster

    from tests.plugins.ray.ray_session import clean_ray

    nodes = Cluster()

    def start() -> Callable[[], None]:
        for _ in range(2):
            nodes.add_node(num_cpus=1, include_dashboard=False, include_log_monitor=False)
        trainkit.init(address=nodes.address, log_to_driver=False)
        return nodes.shutdown

    with clean_ray(start):
        yield nodes


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Any]:
    """Programs in a folder of their own, which are ended with the test."""
    from tests.runtime.local.programs import Programs

    several = Programs(tmp_path)
    yield several
    several.end()


@pytest.fixture(autouse=True)
def same_chances(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody gave a seed is drawn in a test as in every run of it; exploring, it is left to chance."""
    if request.config.getoption("--hypothesis-profile") == "explore":
        return
    chances = random.Random(zlib.crc32(request.node.nodeid.encode()))
    random.seed(chances.randrange(2**32))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(chances.randrange(2**32))
    monkeypatch.setattr(seeds, "fresh_seed", lambda: chances.randrange(2**32))


def temporary_files() -> set[str]:
    """Return the names of trainkit's own files among this process's temporary files."""
    return {name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith(OWN_FILES)}


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """A test leaves no session, process, thread or file that was not there before; a session's may stay."""
    processes, threads, initialized = children(), set(threading.enumerate()), trainkit.is_initialized()
    files = temporary_files()
    yield
    if trainkit.is_initialized():
        if not initialized:
            trainkit.shutdown()  # the tests after this one begin without it
            pytest.fail("the session that this test started still runs")
        return  # the module's session is checked when it ends
    trainkit.shutdown()  # a session that waits for a further search

    def new_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread not in threads and not thread.daemon}

    assert eventually(lambda: children() <= processes), f"left running: {children() - processes}"
    assert eventually(lambda: not new_threads()), f"left running: {new_threads()}"
    assert eventually(lambda: temporary_files() <= files), f"left behind: {temporary_files() - files}"
