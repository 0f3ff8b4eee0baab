"""What happens when something dies, with real processes and real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually, printed, run_python, session_fixture
from tests.runtime.local.crowded import occupy
from tests.runtime.local.victims import AwaitingVictim, ForkedVictim, Victim, fork, yield_forks
from trainkit.errors import ActorDiedError, NodeDiedError, ObjectLostError, TaskError
from trainkit.runtime.local.system import process

session = session_fixture("function", num_cpus=4)


def gone(pids: list[int]) -> bool:
    return not any(map(process.exists, pids))


def victim(**options: Any) -> Any:
    return (trainkit.remote(**options)(Victim) if options else trainkit.remote(Victim)).remote()


def node_pid() -> int:
    return next(child.pid for child in psutil.Process().children() if child.name() == "trainkit-node")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_is_named(number: signal.Signals) -> None:
    actor = victim()
    pid = trainkit.get(actor.pid.remote())
    waiting = actor.sleep.remote(60)
    os.kill(pid, number)
    with pytest.raises(ActorDiedError, match=rf"Victim \(pid {pid}\) was killed by {number.name}") as caught:
        trainkit.get(waiting, timeout=60)
    assert (caught.value.pid, caught.value.exit_code) == (pid, -number)
    with pytest.raises(ActorDiedError, match=number.name):
        trainkit.get(actor.pid.remote(), timeout=60)


def test_an_exit_code_and_the_last_words_are_told() -> None:
    with pytest.raises(ActorDiedError, match=r"exit code 3[\s\S]*last words") as caught:
        trainkit.get(victim().end.remote(3), timeout=60)
    assert caught.value.exit_code == 3
    assert caught.value.stderr_tail == "last words"
    with pytest.raises(ActorDiedError, match="exit code 4"):
        trainkit.get(victim().leave.remote(), timeout=60)


def test_a_crash_in_native_code_shows_where() -> None:
    with pytest.raises(ActorDiedError, match=r"SIGSEGV[\s\S]*kill_itself"):
        trainkit.get(victim().kill_itself.remote(signal.SIGSEGV), timeout=60)


@pytest.mark.parametrize(("how", "code"), [("return", 0), ("raise", 1), ("exit", 5)])
def test_a_child_that_comes_out_of_a_call_ends_and_answers_nothing(
    how: str, code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    task, awaiting = trainkit.remote(fork), trainkit.remote(AwaitingVictim).remote()
    made = trainkit.remote(ForkedVictim).remote(how)
    forks = [task, victim().fork, victim(max_concurrency=2).fork, awaiting.fork]
    for _ in range(2):  # the first call of a task brings the function
        assert [trainkit.get(call.remote(how), timeout=60) for call in forks] == [code] * 4
    assert trainkit.get(made.made.remote(), timeout=60) == code
    for count in ("streaming", 2):
        results = trainkit.remote(num_returns=count)(yield_forks).remote(how)
        assert trainkit.get(list(results), timeout=60) == [-1, code]
    if how == "exit":
        return
    words = f"it and ends with exit code {code}, as only its parent answers the call"
    assert eventually(lambda: printed(capfd)[1].count(words) == 11), printed(capfd)
    assert printed(capfd)[1].count("LookupError: in the child") == (11 if how == "raise" else 0)


def test_wait_counts_a_died_actor_as_done() -> None:
    doomed, other = victim(), victim()
    pid = trainkit.get(doomed.pid.remote())
    refs = [other.sleep.remote(60), doomed.sleep.remote(60)]
    os.kill(pid, signal.SIGKILL)
    assert trainkit.wait(refs, timeout=60)[0] == [refs[1]]


def test_descendants_die_when_their_worker_ends_by_itself() -> None:
    actor = victim()
    family = trainkit.get(actor.spawn_family.remote())
    del actor
    assert eventually(lambda: gone(family))


def test_a_killed_node_is_an_error_and_a_new_start() -> None:
    actor = victim()
    family = trainkit.get(actor.spawn_family.remote())
    waiting = actor.sleep.remote(60)
    os.kill(node_pid(), signal.SIGKILL)
    with pytest.raises(NodeDiedError, match=r"killed by signal 9.*trainkit\.init"):
        trainkit.get(waiting, timeout=60)
    with pytest.raises(NodeDiedError):
        trainkit.get(trainkit.remote(lambda: 1).remote(), timeout=60)
    assert eventually(lambda: gone(family))
    trainkit.init(num_cpus=4)
    assert trainkit.get(trainkit.remote(lambda: 1).remote(), timeout=60) == 1
    with pytest.raises((NodeDiedError, ObjectLostError, ActorDiedError)):
        trainkit.get(actor.pid.remote(), timeout=60)


def test_a_reference_used_after_shutdown_says_so() -> None:
    actor = victim()
    pending = actor.sleep.remote(60)
    done = trainkit.put(1)
    trainkit.shutdown()
    trainkit.init(num_cpus=4)
    assert trainkit.get(done) == 1
    with pytest.raises((ObjectLostError, ActorDiedError), match=r"session|shut down"):
        trainkit.get(pending, timeout=60)


def test_what_is_left_of_a_session_does_nothing_to_the_next() -> None:
    old, group = victim(), trainkit.placement_group([{"CPU": 1}])
    trainkit.get(old.pid.remote())
    trainkit.shutdown()
    trainkit.init(num_cpus=4)
    new, new_group = victim(), trainkit.placement_group([{"CPU": 1}])
    pid = trainkit.get(new.pid.remote())
    assert new_group.wait(60)
    trainkit.kill(old)
    trainkit.remove_placement_group(group)
    with pytest.raises((ActorDiedError, ObjectLostError), match=r"session|shut down"):
        trainkit.get(old.pid.remote(), timeout=60)
    assert trainkit.get(new.pid.remote()) == pid
    assert trainkit.available_resources()["CPU"] == 3


def test_interrupts_lose_no_answer() -> None:
    actor = victim()
    trainkit.get(actor.pid.remote())
    armed, interrupts = False, 0

    def interrupt(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        for attempt in range(10):
            # The answers come in one burst after the nap, with the caller waiting for them: the first
            # signal falls before the burst, even on a busy machine, and later ones fall within it.
            nap = actor.sleep.remote(0.05 if attempt else 2.0)
            refs = [actor.same.remote(i) for i in range(500)]
            delay = 0.03 + attempt * 0.004
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            armed = True
            try:
                trainkit.wait([nap, *refs], num_returns=len(refs) + 1, timeout=60)
            except KeyboardInterrupt:
                interrupts += 1
            armed = False
            timer.join()
            assert trainkit.get(refs, timeout=60) == list(range(500))
    finally:
        armed = False
        signal.signal(signal.SIGINT, previous)
    assert interrupts


@pytest.mark.parametrize("end", ["shutdown", "node"])
def test_queued_tasks_fail_with_the_session(end: str) -> None:
    refs = [trainkit.remote(num_cpus=4)(time.sleep).remote(60) for _ in range(4)]
    if end == "shutdown":
        trainkit.shutdown()
        trainkit.init(num_cpus=4)
    else:
        trainkit.get(victim().pid.remote())
        os.kill(node_pid(), signal.SIGKILL)
    for ref in refs:
        with pytest.raises((ObjectLostError, NodeDiedError)):
            trainkit.get(ref, timeout=60)


@pytest.mark.parametrize("error", [asyncio.CancelledError("inner"), GeneratorExit()])
def test_whatever_a_method_raises_is_the_failure_of_one_call(error: BaseException) -> None:
    class Raises:
        def fail(self) -> None:
            raise error

        def answer(self) -> int:
            return 1

    actor = trainkit.remote(max_concurrency=4)(Raises).remote()
    with pytest.raises(TaskError, match=type(error).__name__):
        trainkit.get(actor.fail.remote(), timeout=60)
    assert trainkit.get(actor.answer.remote(), timeout=60) == 1
    with pytest.raises(TaskError, match=type(error).__name__):
        trainkit.get(trainkit.remote(Raises.fail).remote(None), timeout=60)


@pytest.mark.external
def test_an_interrupted_end_leaves_nothing() -> None:
    script = (
        "import os, signal, threading, trainkit\n"
        "trainkit.init(num_cpus=1)\n"
        "trainkit.get(trainkit.remote(os.getpid).remote())\n"
        "timer = threading.Timer(0.005, os.kill, (os.getpid(), signal.SIGINT))\n"
        "timer.start()\n"
        "try:\n"
        "    trainkit.shutdown()\n"
        "    signal.sigtimedwait([], 30)\n"
        "except KeyboardInterrupt: pass\n"
        "timer.join()\n"
        "print(threading.active_count())\n"
    )
    done = run_python("-c", script)
    assert (done.stdout.strip(), done.stderr) == ("1", "")


def test_threads_that_wait_for_tasks_end_with_the_session(tmp_path: Path) -> None:
    task, errors = trainkit.remote(num_cpus=0.5)(occupy), []

    def wait(number: int) -> None:
        with pytest.raises(ObjectLostError, match="shut down") as caught:
            trainkit.get(task.remote(str(tmp_path / f"{number}"), str(tmp_path / "never")))
        errors.append(caught.value)

    waiting = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(8)]
    for thread in waiting:
        thread.start()
    assert eventually(lambda: len(list(tmp_path.iterdir())) == 8)
    trainkit.shutdown()
    for thread in waiting:
        thread.join(60)
    assert len(errors) == 8


def test_a_forked_child_can_neither_call_nor_put_nor_end_what_its_parent_has() -> None:
    actor = victim()
    trainkit.get(actor.pid.remote())
    pid = os.fork()
    if pid == 0:
        for attempt in (lambda: actor.same.remote(9), lambda: trainkit.put(bytes(500_000))):
            try:
                attempt()
                os._exit(1)
            except ObjectLostError:
                pass
        del actor
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert trainkit.get([actor.same.remote(i) for i in range(5)], timeout=60) == [0, 1, 2, 3, 4]


@pytest.mark.external
def test_a_closed_stdout_stops_the_echo_and_nothing_else() -> None:
    script = (
        "import os, sys, time, trainkit; trainkit.init(num_cpus=1); "
        "loud = trainkit.remote(lambda: print('x' * 1000)); sys.stdout.close(); "
        "[trainkit.get(loud.remote()) for _ in range(5)]; time.sleep(0.2); "
        "a = trainkit.remote(lambda x: x); os._exit(trainkit.get(a.remote(a.remote(a.remote(7)))))"
    )
    assert not run_python("-c", script, code=7).stderr


DRIVER = """
import os, sys, time
sys.path[:0] = {path!r}
import trainkit
from tests.runtime.local.restartable import Restartable
from tests.runtime.local.crowded import occupy
from tests.runtime.local.victims import Victim
trainkit.init(num_cpus=2)
actor = trainkit.remote(Victim).remote()
family = trainkit.get(actor.spawn_family.remote())
busy = actor.sleep.remote(600)
task = trainkit.remote(lambda: time.sleep(600)).remote()
array = trainkit.put(bytes(5_000_000))
print(*family, flush=True)
{ending}
"""


def start_driver(ending: str) -> tuple[subprocess.Popen[str], list[int]]:
    script = DRIVER.format(path=sys.path, ending=textwrap.dedent(ending))
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    family = [int(pid) for pid in driver.stdout.readline().split()]
    tree = [child.pid for child in psutil.Process(driver.pid).children(recursive=True)]
    return driver, sorted({*family, *tree})


@pytest.mark.external
@pytest.mark.parametrize("ending", ["time.sleep(600)", "os.fork() and time.sleep(600); time.sleep(3)"])
def test_a_killed_driver_leaves_nothing(ending: str) -> None:
    """Promise 1.3 of docs/promises.md."""
    driver, pids = start_driver(ending)
    assert len(pids) >= 6, "node, templates, workers and what they started"
    time.sleep(0.2)
    driver.kill()
    driver.wait()
    ours = [pid for pid in pids if pid != driver.pid]
    assert eventually(lambda: gone(ours))


@pytest.mark.external
@pytest.mark.parametrize("sessions", ["", "longer-than-the-address-of-a-socket-may-be" * 2])
def test_sockets_of_a_killed_worker_s_processes_go_with_the_session(sessions: str) -> None:
    script = (
        "import multiprocessing.connection, os, signal, trainkit\n"
        "trainkit.init(num_cpus=1)\n"
        "@trainkit.remote(max_retries=0)\n"
        "def listen():\n"
        "    multiprocessing.connection.Listener(family='AF_UNIX')\n"
        "    multiprocessing.Manager()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "print(trainkit.wait([listen.remote()])[1])\n"
    )
    with tempfile.TemporaryDirectory() as folder:  # shorter than those of pytest
        environment = {**os.environ, "TMPDIR": folder}
        if sessions:
            environment["TRAINKIT_RUNTIME_DIR"] = f"{folder}/{sessions}"
        done = run_python("-c", script, env=environment)
        assert done.stdout == "[]\n", done.stderr
        assert "too long" not in done.stderr, done.stderr
        assert not [*Path(folder).glob("**/*pymp*"), *Path(folder).glob("**/listener*")]


@pytest.mark.external
def test_an_interpreter_that_exits_without_shutdown_leaves_nothing() -> None:
    driver, pids = start_driver("")
    assert driver.wait(timeout=60) == 0
    assert eventually(lambda: gone(pids))


def test_a_child_that_the_program_forks_leaves_sigterm_to_the_system() -> None:
    # With a handler in Python, every twentieth `multiprocessing.Pool.terminate()` waited for ever.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert callable(signal.getsignal(signal.SIGTERM))
    pid = os.fork()
    if not pid:
        is_blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
        os._exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL or is_blocked)
    assert os.waitpid(pid, 0)[1] == 0
    assert callable(signal.getsignal(signal.SIGTERM))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == blocked


STOPPED = """
import sys, trainkit
from tests.runtime.local.printing_caller import PrintingCaller

trainkit.init(num_cpus=2)
caller = trainkit.remote(PrintingCaller).remote()
ref = caller.chat.remote(int(sys.argv[1]), sys.argv[2])
refs = [caller.same.remote(number) for number in range(1000)]
answers = f"answers {trainkit.get(ref)} {sum(trainkit.get(refs))}\\n"
sys.stdout.write(answers)  # in one piece: what the worker printed is written beside it
sys.stdout.flush()
sys.stdin.read()  # what was printed may still be on its way
trainkit.shutdown()
"""


@pytest.mark.external
def test_a_driver_that_is_stopped_and_continued_misses_nothing(tmp_path: Path) -> None:
    count = 3000  # lines of 1 KB: far more than the pipes and sockets between can hold
    driver = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(count), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    impatient = threading.Timer(60, driver.kill)
    impatient.start()
    try:
        assert eventually((tmp_path / "begun").exists)
        driver.send_signal(signal.SIGSTOP)
        assert eventually(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED)
        (tmp_path / "go").touch()
        # The worker goes on, prints and calls, though nobody reads what it says.
        assert eventually((tmp_path / "done").exists)
        driver.send_signal(signal.SIGCONT)
        told: list[int] = []
        answers = ""
        while len(told) < count or not answers:
            line = driver.stdout.readline()
            assert line, f"the driver ended after {len(told)} lines: {answers}"
            if line.startswith("answers"):
                answers = line.strip()
            else:
                told.append(int(line.split("line ")[1].split()[0]))
        assert told == list(range(count)), "every line, in order"
        assert answers == f"answers {count} {sum(range(1000))}"
        driver.stdin.close()
        assert driver.wait(60) == 0
    finally:
        impatient.cancel()
        driver.kill()
        driver.wait()
        driver.stdin.close()
        driver.stdout.close()
