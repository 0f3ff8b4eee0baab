"""Pains of users of other systems, as docs/promises.md numbers them, and what happens here instead."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import psutil
import pytest

import trainkit
from tests.conftest import eventually, examples, run_python
from tests.runtime.local.victims import Victim
from trainkit.errors import ActorDiedError, InfeasibleError, SerializationError, TaskError, WorkerDiedError
from trainkit.runtime.local.system import process

pytestmark = pytest.mark.usefixtures("runtime")

REPETITIONS = examples(500)


class Awkward(Exception):
    """Its constructor takes more than `args` holds."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def run_script(source: str, *arguments: str, folder: Path, module: bool = False) -> str:
    script = folder / "program.py"
    script.write_text(source)
    program = ["-m", "program"] if module else [script]
    return run_python(*program, *arguments, cwd=folder).stdout.strip()


def test_1_3_descendants_end_with_their_worker() -> None:
    actor = trainkit.remote(Victim).remote()
    family = trainkit.get(actor.spawn_family.remote())
    assert all(map(process.exists, family))
    with pytest.raises(ActorDiedError):
        trainkit.get(actor.kill_itself.remote(signal.SIGKILL))
    assert eventually(lambda: not any(map(process.exists, family)))


def test_1_4_an_impossible_request_is_refused_at_once() -> None:
    with pytest.raises(InfeasibleError, match=r"1 GPU.*this machine has 4 CPU"):
        trainkit.remote(num_gpus=1)(Victim).remote()


def test_1_4_a_nested_task_borrows_its_parents_cpu() -> None:
    @trainkit.remote(num_cpus=4)
    def outer() -> int:
        return trainkit.get(trainkit.remote(num_cpus=4)(lambda: 5).remote())

    assert trainkit.get(outer.remote(), timeout=60) == 5


@pytest.mark.parametrize("nested", [False, True])
def test_1_4_what_waits_for_an_actor_s_resources_holds_up_nobody(nested: bool) -> None:
    def ask() -> int:
        large = trainkit.remote(num_cpus=4)(Victim).remote()  # has to wait
        second = trainkit.remote(num_cpus=1)(Victim).remote()
        assert trainkit.get(second.pid.remote(), timeout=60)
        assert not trainkit.wait([large.pid.remote()], timeout=0)[0]
        return trainkit.get(trainkit.remote(lambda: 3).remote(), timeout=60)

    holder = trainkit.remote(num_cpus=1)(Victim).remote()
    trainkit.get(holder.pid.remote())
    assert (trainkit.get(trainkit.remote(num_cpus=0)(ask).remote(), timeout=120) if nested else ask()) == 3


def test_1_7_the_exception_itself_arrives() -> None:
    def fail() -> None:
        raise Awkward(7, "seven")

    with pytest.raises(Awkward, match="seven") as caught:
        trainkit.get(trainkit.remote(fail).remote())
    assert caught.value.code == 7
    assert isinstance(caught.value, TaskError)
    assert 'raise Awkward(7, "seven")' in caught.value.remote_traceback


FORMS = {
    "function": "def work(x):\n    return x / 0\n",
    "lambda": "work = lambda x: x / 0\n",
    "nested": "def make():\n    def work(x):\n        return x / 0\n    return work\nwork = make()\n",
    "deeper": "def work(x):\n    def inner():\n        return (lambda: x / 0)()\n    return inner()\n",
    "method": "class Own:\n    def go(self, x):\n        return x / 0\nwork = lambda x: Own().go(x)\n",
    "decorated": """def twice(f):
    @functools.wraps(f)
    def call(x):
        return f(x) + f(x)
    return call
@twice
def work(x):
    return x / 0
""",
}


@hypothesis.given(form=st.sampled_from(sorted(FORMS)), above=st.integers(0, 300), as_actor=st.booleans())
@hypothesis.settings(max_examples=examples(30), deadline=None)
def test_1_7_the_place_in_a_script_is_told_and_its_source_is_found(
    tmp_path_factory: pytest.TempPathFactory, form: str, above: int, as_actor: bool
) -> None:
    """What is not in an importable module, as in a script or a notebook, travels as code."""
    script = tmp_path_factory.mktemp("drawn") / "script.py"
    script.write_text("import functools\n" + "\n" * above + FORMS[form])
    names: dict[str, Any] = {"__name__": "a script"}
    exec(compile(script.read_text(), script, "exec"), names)
    work = names["work"]
    line = (
        script.read_text().splitlines().index(next(x for x in FORMS[form].splitlines() if "x / 0" in x)) + 1
    )

    class Actor:
        def run(self, function: Any, *arguments: Any) -> Any:
            return function(*arguments)

    run = trainkit.remote(Actor).remote().run.remote if as_actor else trainkit.remote(Actor.run).remote
    given = [work] if as_actor else [None, work]
    with pytest.raises(ZeroDivisionError) as caught:
        trainkit.get(run(*given, 1))
    for text in (caught.value.remote_traceback, str(caught.value)):  # type: ignore[attr-defined]
        assert f'File "{script}", line {line}, in ' in text
        assert script.read_text().splitlines()[line - 1].strip() in text
    assert trainkit.get(run(*given[:-1], inspect.getsource, work)) == inspect.getsource(work)


PLACES = """
import sys
from sklearn.base import BaseEstimator
from trainkit import tune
from trainkit.sklearn import TuneGridSearchCV
def fails(config):
    raise ValueError("a trial")
class Fails(BaseEstimator):
    def __init__(self, c=1):
        self.c = c
    def fit(self, X, y):
        raise ValueError("a fold")
    def score(self, X, y):
        return 0
if __name__ == "__main__":
    (result,) = tune.Tuner(fails, run_config=tune.RunConfig(storage_path=sys.argv[1], verbose=0)).fit()
    print(result.error.remote_traceback)
    try:
        TuneGridSearchCV(Fails(), {"c": [1]}, cv=2, error_score="raise").fit([[0], [1]], [0, 1])
    except ValueError as error:
        print(error.__cause__)
    kept = tune.Checkpoint.from_dict({"function": fails}).to_dict()["function"]
    print(kept.__code__.co_filename == __file__)
"""


@pytest.mark.external
def test_1_7_the_place_in_a_script_is_told_by_trials_folds_and_checkpoints(tmp_path: Path) -> None:
    told = run_script(PLACES, str(tmp_path / "results"), folder=tmp_path)
    for text in ("a trial", "a fold"):
        line = next(number for number, row in enumerate(PLACES.splitlines(), 1) if text in row)
        assert f'/program.py", line {line}, in f' in told
        assert f'raise ValueError("{text}")' in told
    assert told.endswith("True")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os._exit(3)", "exit code 3"),
    ],
)
def test_1_7_a_dead_worker_says_how_it_died(code: str, text: str) -> None:
    def die() -> None:
        sys.stderr.write("the last line\n")
        sys.stderr.flush()
        exec(code, {"os": os})

    with pytest.raises(WorkerDiedError, match=rf"die \(pid \d+\).*{text}") as caught:
        trainkit.get(trainkit.remote(max_retries=1)(die).remote())
    assert "the last line" in str(caught.value)
    assert caught.value.pid is not None


def test_1_19_whatever_is_defined_anywhere_can_be_sent() -> None:
    class Local:
        def __init__(self, start: int) -> None:
            self.value = start

        def get(self) -> int:
            return self.value

    offset = 3
    assert trainkit.get(trainkit.remote(Local).remote(4).get.remote()) == 4
    assert trainkit.get(trainkit.remote(lambda x: x + offset).remote(1)) == 4
    assert trainkit.get(trainkit.remote(functools.partial(pow, 2)).remote(2)) == 4


MAIN = """
import trainkit
class Box:
    def __init__(self, value): self.value = value
def unbox(box): return box.value
if __name__ == "__main__":
    trainkit.init(num_cpus=1)
    print(trainkit.get(trainkit.remote(unbox).remote(Box(4))))
"""


@pytest.mark.external
@pytest.mark.parametrize("module", [False, True])
def test_1_19_a_script_and_a_module_run_as_a_program(module: bool, tmp_path: Path) -> None:
    assert run_script(MAIN, folder=tmp_path, module=module) == "4"


@pytest.mark.external
def test_1_19_a_cell_without_a_file(tmp_path: Path) -> None:
    done = run_python(input=MAIN, cwd=tmp_path)
    assert done.stdout.strip() == "4", done.stderr


def test_1_19_what_cannot_be_sent_is_named_before_anything_starts() -> None:
    config = {"model": {"lock": threading.Lock()}}

    def train() -> Any:
        return config

    before = len(psutil.Process().children(recursive=True))
    with pytest.raises(SerializationError, match=r"config.*\['model'\]\['lock'\]"):
        trainkit.remote(train).remote()
    assert len(psutil.Process().children(recursive=True)) <= before


def test_1_20_workers_are_not_forked_from_the_program() -> None:
    pid, parent = trainkit.get(trainkit.remote(lambda: (os.getpid(), os.getppid())).remote())
    assert parent not in (os.getpid(), 1)
    assert process.environment(pid)


@pytest.mark.external
def test_1_26_no_daemon_and_no_port(tmp_path: Path) -> None:
    source = """
import psutil, trainkit
trainkit.init(num_cpus=1)
assert trainkit.get(trainkit.remote(lambda: 1).remote()) == 1
family = [psutil.Process(), *psutil.Process().children(recursive=True)]
assert not [c for member in family for c in member.net_connections("inet")]
print(*sorted(member.name() for member in family[1:]))
trainkit.shutdown()
assert not psutil.Process().children(recursive=True)
"""
    assert run_script(source, folder=tmp_path) == "tk-<lambda> trainkit-node trainkit-tmpl"


def test_1_43_a_call_on_a_dying_worker_always_ends() -> None:
    class Waits:
        def wait(self) -> None:
            time.sleep(3600)

    actor_class = trainkit.remote(Waits)
    for _ in range(REPETITIONS // 10):
        actors = [actor_class.remote() for _ in range(10)]
        refs = [actor.wait.remote() for actor in actors]
        for actor in actors:
            trainkit.kill(actor)
        for ref in refs:
            with pytest.raises(ActorDiedError):
                trainkit.get(ref, timeout=60)


@pytest.mark.external
def test_1_43_a_program_that_ends_in_the_middle_of_a_call_ends(tmp_path: Path) -> None:
    source = """
import time, trainkit
trainkit.init(num_cpus=1)
refs = [trainkit.remote(time.sleep).remote(3600) for _ in range(3)]
print("end")
"""
    assert run_script(source, folder=tmp_path) == "end"
