"""Signals that announce the end of a job, in a program and in the processes of its pools."""

from __future__ import annotations

import signal

import pytest

from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from trainkit.runtime.local.system import process


def result_of(programs: Programs, script: str, *arguments: str) -> tuple[int, str]:
    program = programs.begin(script, *arguments)
    out, err = program.communicate(timeout=300)
    assert "Traceback" not in err, err
    return program.returncode, out


FINALIZERS = {
    "__del__": """
        class Last:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                print("finalized", flush=True)

        Last()
    """,
    "finalize": """
        def end():
            os.kill(os.getpid(), signal.SIGTERM)
            print("finalized", flush=True)

        weakref.finalize(type("Last", (), {})(), end)
    """,
}


@pytest.mark.parametrize("how", FINALIZERS)
def test_a_signal_in_a_finalizer_acts_after_it(programs: Programs, how: str) -> None:
    script = f"""
        import os, signal, time, trainkit, weakref
        trainkit.init(num_cpus=1)
        {FINALIZERS[how]}
        try:
            time.sleep(300)
        finally:
            print("saves", flush=True)
    """
    assert result_of(programs, script) == (143, "finalized\nsaves\n")


POOLS = """
    import os, signal, sys, time, trainkit
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    def clean(*_):
        os.write(1, b"cleans\\n")
        os._exit(0)

    def set_handler():
        signal.signal(signal.SIGTERM, clean)

    def wait(_):
        os.write(1, b"waits\\n")
        time.sleep(300)
"""


def test_processes_of_a_pool_end_with_a_killed_program(programs: Programs) -> None:
    script = f"""{POOLS}
    if __name__ == "__main__":
        trainkit.init(num_cpus=1)
        pool = ProcessPoolExecutor(2)
        answers = [pool.submit(wait, each) for each in range(2)]
        # In one piece: the processes of the pool write, too.
        os.write(1, (" ".join(map(str, pool._processes)) + "\\n").encode())
        time.sleep(300)
    """
    program = programs.begin(script)
    assert program.stdout is not None
    lines = [program.stdout.readline() for _ in range(3)]
    pids = [int(word) for line in lines if "waits" not in line for word in line.split()]
    assert lines.count("waits\n") == len(pids) == 2
    for pid in pids:
        process.kill(pid, signal.SIGTERM)  # the job's signal: no process of a pool ends by it
    program.kill()
    assert eventually(lambda: not any(map(process.exists, pids)), 60)


def test_a_pool_after_the_session_answers_signals(programs: Programs) -> None:
    script = f"""{POOLS}
    if __name__ == "__main__":
        trainkit.init(num_cpus=1)
        trainkit.shutdown()
        pool = ProcessPoolExecutor(1)
        assert pool.submit(abs, -1).result() == 1
        (worker,) = pool._processes.values()
        os.kill(worker.pid, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while worker.exitcode is None and time.monotonic() < deadline:  # the pool waits for it, too
            time.sleep(0.01)
        print(worker.exitcode)
    """
    assert result_of(programs, script) == (0, "-15\n")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_terminate_calls_a_handler_of_the_user(programs: Programs, method: str) -> None:
    script = f"""{POOLS}
    if __name__ == "__main__":
        trainkit.init(num_cpus=1)
        for handler in (set_handler, None):
            pool = multiprocessing.get_context("{method}").Pool(1, handler)
            done = pool.map_async(wait, [0])
            sys.stdin.readline()
            pool.terminate()
            pool.join()
    """
    program = programs.begin(script)
    assert program.stdout is not None and program.stdin is not None
    for expected in (["waits\n", "cleans\n"], ["waits\n"]):
        for line in expected:
            assert program.stdout.readline() == line
            if line == "waits\n":
                print(file=program.stdin, flush=True)
    assert program.stdout.read() == ""
    assert program.wait(60) == 0


def test_a_fork_server_does_not_keep_signals_blocked(programs: Programs) -> None:
    script = f"""{POOLS}
    if __name__ == "__main__":
        multiprocessing.set_start_method("forkserver")
        trainkit.init(num_cpus=1)
        with ProcessPoolExecutor(1) as pool:
            assert pool.submit(abs, -1).result() == 1
        other = multiprocessing.Process(target=time.sleep, args=(300,))
        other.start()
        other.terminate()
        other.join(60)
        print(other.exitcode)
    """
    assert result_of(programs, script) == (0, "-15\n")


def test_a_program_that_asks_keeps_its_answer(programs: Programs) -> None:
    script = """
        import os, signal, trainkit
        from trainkit import train

        train.preempted()
        trainkit.init(num_cpus=1)
        trainkit.shutdown()
        os.kill(os.getpid(), signal.SIGTERM)
        trainkit.init(num_cpus=1)
        print(train.preempted())
        if not os.fork():
            print(train.preempted(), flush=True)
            os._exit(0)
        os.wait()
    """
    code, out = result_of(programs, script)
    assert (code, sorted(out.split())) == (0, ["False", "True"])


def test_the_time_to_stop_comes_once(programs: Programs) -> None:
    script = """
        import os, time, trainkit
        os.environ["TRAINKIT_JOB_END_TIME"] = str(time.time() + 1000)
        try:
            trainkit.init(num_cpus=1, stop_before_s=1000)
            time.sleep(300)
        except SystemExit as error:
            print(error.code)
        trainkit.shutdown()
        trainkit.init(num_cpus=1, stop_before_s=1000)
        print(trainkit.get(trainkit.remote(abs).remote(-1)))
    """
    assert result_of(programs, script) == (0, "143\n1\n")


def test_a_signal_is_announced_without_a_free_descriptor(programs: Programs) -> None:
    script = """
        import os, resource, signal, trainkit
        from pathlib import Path
        from trainkit.runtime import session

        trainkit.init(num_cpus=1)
        folder = session.engine().scratch_dir()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except SystemExit as error:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            print(error.code, Path(folder, "preempted").exists())
    """
    assert result_of(programs, script) == (0, "143 True\n")


def test_a_handler_in_c_is_kept(programs: Programs) -> None:
    script = """
        import faulthandler, os, signal, sys, trainkit
        faulthandler.register(signal.SIGUSR1, file=sys.stdout)
        trainkit.init(num_cpus=1, preempt_signals=["USR1"])
        os.kill(os.getpid(), signal.SIGUSR1)
    """
    code, out = result_of(programs, script)
    assert code == 0 and "most recent call first" in out
