"""What is imported once and forked with every worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import run_python


def run_beside(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a program that can import the modules in `folder`."""
    return run_python(
        "-c", script, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    )


@pytest.mark.external
def test_modules_can_be_imported_beforehand() -> None:
    script = (
        "import trainkit; trainkit.init(num_cpus=1, preload=['colorsys']);"
        "print(trainkit.get(trainkit.remote(lambda: 'colorsys' in __import__('sys').modules).remote()))"
    )
    done = run_python("-c", script)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.external
def test_a_worker_finalizes_what_it_made_and_not_what_its_template_imported(tmp_path: Path) -> None:
    (tmp_path / "finalized.py").write_text(
        "import weakref\nclass Kept: pass\nkept = Kept()\nweakref.finalize(kept, print, 'imported')\n"
    )
    script = (
        "import trainkit; trainkit.init(num_cpus=1, preload=['finalized'], log_to_driver=True)\n"
        "@trainkit.remote\nclass Maker:\n    def make(self):\n        import finalized, weakref\n"
        "        self.own = weakref.finalize(Maker, print, 'made')\n"
        "    def end(self):\n        trainkit.exit_actor()\n"
        "maker = Maker.remote(); trainkit.get(maker.make.remote())\n"
        "trainkit.wait([maker.end.remote()]); trainkit.shutdown()"
    )
    done = run_beside(tmp_path, script)
    assert ("made" in done.stdout, "imported" in done.stdout) == (True, False), done.stdout + done.stderr


@pytest.mark.external
def test_a_template_survives_the_end_of_a_process_that_a_module_has_started(tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text(
        "import os, subprocess\n"
        "child = subprocess.Popen(['true'])\n"
        "os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)\n"
    )
    script = (
        "import os, trainkit; trainkit.init(num_cpus=1, preload=['starter'])\n"
        "@trainkit.remote(max_restarts=1, max_task_retries=1)\n"
        "class Worker:\n    def pids(self):\n        return os.getpid(), os.getppid()\n"
        "worker = Worker.remote(); pid, template = trainkit.get(worker.pids.remote()); os.kill(pid, 9)\n"
        "again, other = trainkit.get(worker.pids.remote()); print(again != pid, other == template)"
    )
    done = run_beside(tmp_path, script)
    assert done.stdout == "True True\n", done.stderr
    assert not done.stderr


@pytest.mark.external
def test_workers_do_without_a_module_that_starts_a_thread(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    script = (
        "import trainkit; from tests.runtime.local.victims import Victim; "
        "trainkit.init(num_cpus=1, preload=['threaded']); actor = trainkit.remote(Victim).remote(); "
        "print(trainkit.get(actor.pid.remote()) > 0)"
    )
    done = run_beside(tmp_path, script)
    assert done.stdout == "True\n", done.stderr
    assert "started a thread" in done.stderr


@pytest.mark.external
def test_a_worker_that_the_machine_has_no_room_for_waits_for_the_end_of_others(tmp_path: Path) -> None:
    full = tmp_path / "full"
    (tmp_path / "narrow.py").write_text(
        "import os\n"
        "def fork(fork=os.fork):\n"
        f"    if os.path.exists({str(full)!r}):\n        raise BlockingIOError(11, 'no room')\n"
        "    return fork()\n"
        "os.fork = fork\n"
    )
    script = (
        "import pathlib, trainkit; from tests.runtime.local.victims import Victim; "
        "trainkit.init(num_cpus=1, preload=['narrow']); make = trainkit.remote(num_cpus=0)(Victim).remote\n"
        f"full = pathlib.Path({str(full)!r})\n"
        "first = make(); trainkit.get(first.pid.remote()); full.touch()\n"
        "pid = make().pid.remote(); print(trainkit.wait([pid], timeout=0.5)[0])\n"
        "full.unlink(); print(trainkit.get(pid) > 0); full.touch()\n"
        "trainkit.kill(first); del first\n"
        "try:\n    trainkit.get(make().pid.remote(), timeout=60)\n"
        "except trainkit.errors.ActorDiedError as error:\n    print('no room' in str(error))\n"
    )
    done = run_beside(tmp_path, script)
    assert done.stdout == "[]\nTrue\nTrue\n", done.stderr
    assert done.stderr.count("the machine refuses more processes") == 1


@pytest.mark.external
def test_what_a_worker_imports_by_itself_the_next_of_its_kind_is_forked_with() -> None:
    """The program has not imported it, and can't know."""
    script = (
        "import trainkit; trainkit.init(num_cpus=2)\n"
        "class Reader:\n"
        "    def had(self):\n        return 'pandas' in __import__('sys').modules\n"
        "    def read(self):\n        import pandas\n"
        "class Other(Reader):\n    pass\n"
        "reader, other = trainkit.remote(Reader), trainkit.remote(Other)\n"
        "first = reader.remote(); before = first.had.remote(); trainkit.get(first.read.remote())\n"
        "print(trainkit.get([before, reader.remote().had.remote(), other.remote().had.remote()]))"
    )
    done = run_python("-c", script)
    assert done.stdout == "[False, True, False]\n", done.stderr


@pytest.mark.external
def test_a_program_with_pandas_and_pyarrow_has_them_forked_with_its_workers() -> None:
    """The allocator of pyarrow would start a thread, which a worker may have and its template may not."""
    script = (
        "import pandas, pyarrow, trainkit; trainkit.init(num_cpus=1)\n"
        "def look():\n"
        "    import os, sys\n"
        "    had = {'pandas', 'pyarrow'} <= sys.modules.keys()\n"
        "    import pandas\n"
        "    read = str(pandas.Series(['a', 'b'], dtype='string[pyarrow]').str.cat())\n"
        "    return had, read, os.environ.get('JE_ARROW_MALLOC_CONF')\n"
        "print(trainkit.get(trainkit.remote(look).remote()))"
    )
    own = {**os.environ, "JE_ARROW_MALLOC_CONF": "background_thread:true"}
    done = run_python("-c", script, env=own)
    assert done.stdout == "(True, 'ab', 'background_thread:true')\n", done.stderr
    assert not done.stderr
