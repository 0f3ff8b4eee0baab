"""Pools: the standard library's executor and pool on the runtime's tasks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from pickle import PicklingError

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainkit
from tests.conftest import run_python, session_fixture
from trainkit.errors import ConfigError
from trainkit.plugins.pools import Executor, Pool
from trainkit.plugins.pools.executor import AHEAD_S, ahead, share
from trainkit.plugins.pools.worker import BrokenWorkerError, InitializerError
from trainkit.resources import QUANTUM

session = session_fixture(num_cpus=2)


def double(x):
    return 2 * x


def wait_for(path, then=None):
    while not Path(path).exists():
        time.sleep(0.005)
    return then


def pid_and(path):
    Path(path, str(os.getpid())).touch()
    return os.getpid()


# --- the rule ---------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.floats(1e-6, 1e3))
def test_workers_have_some_milliseconds_of_work_ahead(ended: int, seconds: float) -> None:
    assert ahead(ended, seconds) <= ended / seconds * AHEAD_S < ahead(ended, seconds) + 1


@given(st.integers(1, 256), st.integers(1, 2_000))
def test_as_many_workers_fit_into_the_cpus_as_were_asked_for(cpus: int, workers: int) -> None:
    part = share(cpus, workers)
    assert 0 < part <= 1
    assert round(part * QUANTUM) * workers <= cpus * QUANTUM or part == 1 > cpus / workers
    assert part == 1 if workers <= cpus else round(part * QUANTUM) * workers <= cpus * QUANTUM


# --- concurrent.futures -----------------------------------------------------------------------


def test_calls_run_in_other_processes() -> None:
    with Executor() as executor:
        assert executor.submit(os.getpid).result() != os.getpid()
        assert executor.submit(pow, 2, exp=5).result() == 32
        assert list(executor.map(double, range(1_000))) == [2 * x for x in range(1_000)]
        assert list(executor.map(pow, [2, 3], [3, 2, 9], chunksize=2)) == [8, 9]
        assert list(executor.map(double, [])) == []


def test_what_cannot_be_sent_is_the_futures_error() -> None:
    with Executor(1) as executor:
        assert isinstance(executor.submit(double, threading.Lock()).exception(), TypeError)
        many = [executor.submit(double, threading.Lock()) for _ in range(2_000)]
        assert all(isinstance(future.exception(), TypeError) for future in many)
        assert executor.submit(double, 1).result() == 2


def test_a_call_that_waits_is_cancelled_and_one_that_runs_is_not(tmp_path: Path) -> None:
    with Executor(1) as executor:
        running = executor.submit(wait_for, tmp_path / "go", "ran")
        waiting = executor.submit(double, 1)
        assert not running.cancel()
        assert waiting.cancel() and waiting.cancelled()
        (tmp_path / "go").touch()
        assert running.result() == "ran"
        with pytest.raises(futures.CancelledError):
            waiting.result()


def test_more_than_there_are_cpus_share_them(tmp_path: Path) -> None:
    with Executor(4) as executor:
        waiting = [executor.submit(wait_for, tmp_path / "go") for _ in range(3)]
        assert executor.submit(double, 1).result() == 2
        (tmp_path / "go").touch()
        futures.wait(waiting)


def unlicensed(folder):
    (folder / str(os.getpid())).open("a").write("x")
    wait_for(folder / "go")
    raise ValueError("no licence")


def test_an_initializer_that_fails_breaks_its_executor_alone(tmp_path: Path) -> None:
    with Executor(2, initializer=unlicensed, initargs=(tmp_path,)) as executor:
        calls = [executor.submit(double, x) for x in range(20)]
        (tmp_path / "go").touch()
        for call in calls:
            with pytest.raises(BrokenProcessPool, match=r"initializer raised ValueError.*no licence"):
                call.result(timeout=60)
        with pytest.raises(InitializerError, match="create a new executor"):
            executor.submit(double, 1)
    (tmp_path / "go").unlink()
    assert {path.read_text() for path in tmp_path.iterdir()} == {"x"}

    def nested() -> int:
        with Executor(1, initializer=sys.exit, initargs=(3,)) as executor:
            return executor.submit(double, 1).result()

    with Executor(1, initializer=double, initargs=(1,)) as executor:
        with pytest.raises(InitializerError, match=r"SystemExit\(3\)"):
            executor.submit(nested).result(timeout=60)
        assert executor.submit(double, 1).result() == 2


@pytest.mark.parametrize("options", [{}, {"max_retries": 0}])
def test_an_initializer_that_ends_its_worker_breaks_its_executor(options: dict[str, int]) -> None:
    with Executor(2, initializer=os._exit, initargs=(4,), **options) as executor:
        for call in [executor.submit(double, x) for x in range(20)]:
            with pytest.raises(BrokenProcessPool, match=r"initializer has ended its worker.*exit code 4"):
                call.result(timeout=60)
        with pytest.raises(InitializerError, match="create a new executor"):
            executor.submit(double, 1)


def test_a_dead_worker_fails_its_call_alone() -> None:
    with Executor(2, max_retries=0) as executor:
        lost = executor.submit(lambda: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(futures.BrokenExecutor, match="SIGKILL"):
            lost.result()
        assert isinstance(lost.exception(), BrokenWorkerError)
        again = pickle.loads(pickle.dumps(lost.exception()))
        assert isinstance(again, BrokenProcessPool)
        assert (str(again), again.exit_code) == (str(lost.exception()), -9)
        assert executor.submit(double, 1).result() == 2


def test_an_executor_in_a_worker_of_the_only_cpu_gets_it() -> None:
    @trainkit.remote(num_cpus=2)
    def outer() -> list[int]:
        with Executor() as executor:
            mapped = [*executor.map(double, range(20)), executor.submit(double, 50).result()]
            waited = futures.wait([executor.submit(double, 1), executor.submit(double, 2)]).done
            completed = futures.as_completed([executor.submit(double, 3), executor.submit(double, 4)])
            return [*mapped, *sorted(each.result() for each in (*waited, *completed))]

    assert trainkit.get(outer.remote(), timeout=120) == [*range(0, 40, 2), 100, 2, 4, 6, 8]


def slowly(count):
    for number in range(count):
        time.sleep(0.05)
        yield number


def test_a_pool_in_a_worker_gets_its_cpus() -> None:
    @trainkit.remote(num_cpus=2)
    def outer() -> tuple[list[int], list[int]]:
        with Pool(1) as pool:
            slow = sorted(pool.imap_unordered(double, slowly(3)))
            return pool.map(double, range(5)), slow

    both = trainkit.get([outer.remote(), outer.remote()], timeout=120)
    assert both == [([0, 2, 4, 6, 8], [0, 2, 4])] * 2


def test_shutdown_waits_for_callbacks(tmp_path: Path) -> None:
    told: list[int] = []

    def slowly(future: futures.Future[int]) -> None:
        time.sleep(0.05)
        told.append(future.result())

    with Executor(2) as executor:
        for x in range(10):
            executor.submit(double, x).add_done_callback(slowly)
    assert sorted(told) == [2 * x for x in range(10)]
    pool, total = Pool(2), []
    for x in range(10):
        pool.apply_async(double, (x,), callback=total.append)
    pool.close()
    pool.join()
    assert sorted(total) == [2 * x for x in range(10)]


def test_ctrl_c_while_calls_are_sent_hangs_nothing() -> None:
    class Stubborn:
        def __reduce__(self):
            raise KeyboardInterrupt

    with Executor(1) as executor:
        with pytest.raises(KeyboardInterrupt):
            executor.submit(double, Stubborn())
        assert executor.submit(double, 1).result() == 2


def test_workers_that_run_are_ended_when_asked(tmp_path: Path) -> None:
    executor = Executor(1)
    running = executor.submit(wait_for, tmp_path / "never")
    executor.terminate_workers()
    assert running.exception(timeout=120) is not None
    executor.shutdown()
    assert trainkit.get(trainkit.remote(double).remote(2)) == 4


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.external)])
def test_calls_fail_with_their_session(engine: str, tmp_path: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit-ml[ray]'")
    script = tmp_path / "program.py"
    script.write_text(
        "import threading, time, trainkit\nfrom trainkit.plugins.pools import Executor\n"
        "from trainkit.runtime import session\n"
        f"trainkit.init(num_cpus=1, engine={engine!r})\nexecutor = Executor(1)\ntold = []\n"
        "calls = [executor.submit(time.sleep, 600) for _ in range(5)]\n"
        "calls[0].add_done_callback(told.append)\n"
        "waiting = [threading.Thread(target=call.exception, daemon=True) for call in calls]\n"
        "[each.start() for each in waiting]\n"
        "trainkit.shutdown()\n[each.join(60) for each in waiting]\n"
        "assert not any(each.is_alive() for each in waiting)\n"
        "executor.shutdown()\nassert told == calls[:1]\n"
        "for call in calls:\n    print(type(call.exception(timeout=60)).__name__)\n"
        "print(session.running())\n"
        "try:\n    executor.submit(abs, 1)\nexcept Exception as error:\n    print(error)\n"
        "executor.shutdown()\n"
    )
    done = run_python(script)
    lines = done.stdout.splitlines()
    assert lines[1:5] == ["NotInitializedError"] * 4, done.stdout + done.stderr
    assert lines[5] == "None"
    assert "create a new executor" in lines[6]


def test_an_executor_on_the_inline_engine(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, trainkit\nfrom trainkit.pools import Executor, Pool\ntrainkit.init(engine='inline')\n"
        "with Executor() as executor:\n    assert executor.submit(os.getpid).result() == os.getpid()\n"
        "    print(list(executor.map(abs, [-1, -2])))\n"
        "with Pool() as pool:\n    print(pool.map(abs, [-3]), list(pool.imap_unordered(abs, [-4])))\n"
    )
    done = run_python(script)
    assert done.stdout.split("\n")[:2] == ["[1, 2]", "[3] [4]"]


def test_a_program_ends_when_its_calls_have(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import time\nfrom trainkit.plugins.pools import Executor\n"
        "def note(path):\n    time.sleep(0.5)\n    open(path, 'w').close()\n"
        f"Executor(1).submit(note, {str(tmp_path / 'done')!r})\n"
    )
    run_python(script)
    assert (tmp_path / "done").exists()


def test_an_array_that_several_calls_take_is_in_memory_once(tmp_path: Path) -> None:
    array, go = numpy.zeros(1_234_567), tmp_path / "go"
    with Executor() as executor:
        results = executor.map(
            lambda a, i: wait_for(go, (float(a[i]), a.flags.writeable)), [array] * 8, range(8)
        )
        large = [row for row in trainkit.list_objects() if row["size_bytes"] >= array.nbytes]
        go.touch()
        assert list(results) == [(0.0, False)] * 8
    assert len(large) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_workers": 0}, "max_workers must be greater than 0, not 0"),
        ({"initializer": 3}, "initializer must be a function, not 3"),
        ({"max_tasks_per_child": 0}, "max_tasks_per_child must be .* not 0"),
        ({"num_cpu": 1}, "unknown option num_cpu"),
        ({"num_returns": 2}, "a future has one result"),
        ({"max_workers": 10**6}, "is too large to share"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Executor(**arguments)


# --- multiprocessing --------------------------------------------------------------------------


def test_rays_names_have_rays_arguments() -> None:
    from trainkit.util.joblib import register_ray
    from trainkit.util.multiprocessing import Pool as RayPool

    with RayPool(2, ray_address="auto", ray_remote_args={"num_cpus": 0.5}) as pool:
        assert pool.map(double, [1, 2]) == [2, 4]
    joblib = pytest.importorskip("joblib")
    register_ray()
    with joblib.parallel_backend("ray", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(double)(x) for x in range(3)) == [0, 2, 4]


def test_a_pool_takes_the_items_of_a_generator_as_they_come(tmp_path: Path) -> None:
    def endless():
        yield 1
        go.wait()
        yield 2
        raise KeyError("items")

    go = threading.Event()
    with Pool(2) as pool:
        results = pool.imap(double, endless())
        assert next(results) == 2
        go.set()
        assert next(results) == 4
        with pytest.raises(KeyError, match="items"):
            next(results)
        with pytest.raises(StopIteration):
            next(results)
        unordered = pool.imap_unordered(double, (x for x in range(50)), chunksize=3)
        assert sorted(unordered) == [2 * x for x in range(50)]
        pool.imap(pid_and, (folder for folder in [tmp_path] * 3))
        pool.close()
        pool.join()
    assert [*tmp_path.iterdir()]


def test_proxies_of_a_manager_travel() -> None:
    with multiprocessing.Manager() as manager, Executor() as executor:
        queue, shared = manager.Queue(), manager.dict()
        executor.submit(queue.put, 1).result()
        executor.submit(shared.update, {"a": [queue]}).result()
        assert queue.get() == 1
        shared["a"][0].put(2)
        assert queue.get() == 2


def test_what_ends_a_process_elsewhere_is_the_calls_error() -> None:
    with Executor(1) as executor:
        pid = executor.submit(os.getpid).result()
        assert executor.submit(leave).exception().code == 7
        assert executor.submit(interrupted).exception().args == ("by itself",)
        assert executor.submit(os.getpid).result() == pid


def leave():
    sys.exit(7)  # by its name: other libraries replace the function in this process


def interrupted():
    raise KeyboardInterrupt("by itself")


def test_errors_are_those_that_scripts_for_the_standard_pools_catch() -> None:
    class Unpicklable:
        def __reduce__(self):
            raise RuntimeError("not me")

    with Executor(1, max_retries=0) as executor:
        with pytest.raises(RuntimeError, match="not me") as caught:
            executor.submit(double, [Unpicklable()]).result()
        assert "argument 0 of double()[0]" in caught.value.__notes__[0]
        with pytest.raises(BrokenProcessPool):
            executor.submit(os._exit, 3).result()
        with pytest.raises(PicklingError):
            executor.submit(threading.Lock).result()
