"""What only the inline engine does: the caller's own process, terminal and Ctrl-C, and no waiting."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import run_python, session_fixture
from tests.suites.parts import Courier, Keeper, endless, gpus
from trainkit.errors import (
    ActorDiedError,
    ConfigError,
    ObjectLostError,
    TaskCancelledError,
    WorkerDiedError,
)

ROOT = Path(__file__).parents[3]


inline = session_fixture("function", autouse=False, engine="inline", num_cpus=4, num_gpus=2)


def run_script(script: str, typed: str = "") -> str:
    """What a program prints that is given `typed` at its terminal."""
    # Tests that run side by side have it switched off.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONBREAKPOINT"}
    return run_python("-c", script, input=typed, cwd=ROOT, env=own).stdout


def test_a_session_makes_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed program would leave it behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trainkit.init(engine="inline")
    try:
        assert trainkit.get(trainkit.remote(lambda: 1).remote()) == 1
        assert not any(tmp_path.iterdir())
    finally:
        trainkit.shutdown()


class Doctor:
    """Ends actors, its own among them, from within a call."""

    def __init__(self) -> None:
        self.after: list[str] = []

    def kill(self, actor: Any) -> list[str]:
        trainkit.kill(actor)
        self.after.append("killed")
        return self.after

    def have_killed(self, own: Any, killer: Any, path: Path) -> None:
        trainkit.get(killer.kill.remote(own))
        path.touch()

    def reserve(self) -> int:
        return trainkit.placement_group([{"GPU": 2}]).id


class Mourned:
    def __init__(self, path: Path) -> None:
        self.path = path

    def same(self, value: Any) -> Any:
        return value

    def __del__(self) -> None:
        self.path.touch()


@pytest.mark.external
@pytest.mark.parametrize(
    "program",
    [
        "def work(value):\n    breakpoint()\n    return value\nref = trainkit.remote(work).remote(41 + 1)\n",
        "class Actor:\n    async def work(self, value):\n        breakpoint()\n        return value\n"
        "ref = trainkit.remote(Actor).remote().work.remote(41 + 1)\n",
    ],
    ids=["task", "async"],
)
def test_a_breakpoint_takes_its_commands_from_the_terminal(program: str) -> None:
    start = "import trainkit\ntrainkit.init(engine='inline')\n"
    output = run_script(start + program + "print('result', trainkit.get(ref))\n", "p value * 1000\nc\n")
    assert "42000" in output
    assert "result 42" in output


def test_local_mode_is_the_same() -> None:
    trainkit.init(local_mode=True)
    assert trainkit.get(trainkit.remote(os.getpid).remote()) == os.getpid()
    trainkit.shutdown()


@pytest.mark.external
def test_an_async_method_that_waits_for_another_call_is_told_so() -> None:
    # In a program of its own: another thread, if there were one, might do what is waited for.
    output = run_script(
        "import trainkit\n"
        "from tests.suites.parts import Courier\n"
        "trainkit.init(engine='inline')\n"
        "courier = trainkit.remote(Courier).remote()\n"
        "try:\n"
        "    trainkit.get(courier.take.remote())\n"
        "except trainkit.errors.ConfigError as error:\n"
        "    print(error)\n"
        "print(trainkit.get([courier.post.remote(7), courier.take.remote()]))\n"
    )
    assert "Courier.take waits for another call, but the inline engine runs each call to its end" in output
    assert output.endswith("[1, 7]\n"), "and goes on"


def test_a_call_of_the_callers_own_async_actor_is_refused(inline: None) -> None:
    class Selfish:
        async def ask(self, own: Any) -> Any:
            return await own.answer.remote()

        async def answer(self) -> int:
            return 1

    actor = trainkit.remote(Selfish).remote()
    with pytest.raises(ConfigError, match="runs async calls one at a time"):
        trainkit.get(actor.ask.remote(actor))
    assert trainkit.get(actor.answer.remote()) == 1


@pytest.mark.parametrize("kind", ["task", "method", "constructor", "stream"])
def test_ctrl_c_is_the_callers(inline: None, kind: str) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    class Interrupted:
        def __init__(self, value: int = 0) -> None:
            if value:
                interrupt()

        def method(self) -> None:
            interrupt()

    def stream() -> Iterator[int]:
        yield 1
        interrupt()

    actor = trainkit.remote(Interrupted).remote()
    calls = {
        "task": trainkit.remote(num_gpus=2)(interrupt).remote,
        "method": actor.method.remote,
        "constructor": lambda: trainkit.remote(num_gpus=1)(Interrupted).remote(1),
        "stream": lambda: list(trainkit.remote(num_gpus=1)(stream).remote()),
    }
    with pytest.raises(KeyboardInterrupt):
        calls[kind]()
    assert trainkit.available_resources()["GPU"] == 2
    assert trainkit.get_runtime_context().get_task_id() is None


def test_a_task_that_exits_is_a_worker_that_died(inline: None, tmp_path: Path) -> None:
    def leave() -> None:
        with (tmp_path / "runs").open("a") as file:
            file.write("x")
        sys.exit(3)

    with pytest.raises(WorkerDiedError, match=r"SystemExit\(3\)") as caught:
        trainkit.get(trainkit.remote(max_retries=2)(leave).remote())
    assert caught.value.exit_code == 3
    assert (tmp_path / "runs").read_text() == "xxx"


def test_an_actor_ends_with_its_last_handle(inline: None, tmp_path: Path) -> None:
    actor = trainkit.remote(Mourned).remote(tmp_path / "gone")
    kept = trainkit.put([actor])
    ref = actor.same.remote(1)
    del actor
    assert not (tmp_path / "gone").exists(), "an object holds its handle"
    del kept
    assert (tmp_path / "gone").exists()
    assert trainkit.get(ref) == 1, "a result stays"
    assert trainkit.list_actors()[-1]["death_cause"] == "its last handle is gone"


def test_an_error_on_a_running_loop_does_not_keep_the_actor(inline: None) -> None:
    async def main() -> None:
        actor = trainkit.remote(Courier).remote()
        trainkit.wait([actor.fail.remote()])
        del actor
        assert trainkit.list_actors()[-1]["state"] == "DEAD"

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_a_method_that_kills_its_own_actor_goes_no_further(inline: None, tmp_path: Path) -> None:
    doctor, patient = (trainkit.remote(Doctor).remote() for _ in range(2))
    with pytest.raises(ActorDiedError, match="kill"):
        trainkit.get(patient.have_killed.remote(patient, doctor, tmp_path / "further"))
    assert not (tmp_path / "further").exists()
    with pytest.raises(ActorDiedError, match="kill"):
        trainkit.get(doctor.kill.remote(doctor))


def test_an_actors_groups_go_with_it(inline: None) -> None:
    doctor = trainkit.remote(Doctor).remote()
    trainkit.get(doctor.reserve.remote())
    assert "GPU" not in trainkit.available_resources()
    del doctor
    assert trainkit.available_resources()["GPU"] == 2
    assert trainkit.list_placement_groups() == []


def test_who_could_only_wait_shares(inline: None) -> None:
    one, other = (trainkit.remote(num_gpus=2)(Keeper).remote() for _ in range(2))
    assert trainkit.get([one.gpus.remote(), other.gpus.remote()])[0][0] == [0, 1]
    assert trainkit.get(other.gpus.remote())[0] == [0, 1]
    assert trainkit.get(trainkit.remote(num_gpus=1)(gpus).remote())[0] == [0]
    del other
    assert "GPU" not in trainkit.available_resources()
    del one
    assert trainkit.available_resources()["GPU"] == 2


def test_a_stream_runs_as_it_is_read(inline: None, tmp_path: Path) -> None:
    seen = []

    def count() -> Iterator[int]:
        for number in range(3):
            seen.append(number)
            yield number

    stream = trainkit.remote(num_gpus=1)(count).remote()
    assert seen == []
    assert trainkit.get(next(stream)) == 0
    assert seen == [0]
    assert trainkit.available_resources()["GPU"] == 1
    del stream
    assert trainkit.available_resources()["GPU"] == 2
    unread = trainkit.remote(endless).remote(tmp_path / "cleaned")
    next(unread)
    trainkit.cancel(unread.completed())
    assert (tmp_path / "cleaned").exists()
    with pytest.raises(TaskCancelledError):
        trainkit.get(unread.completed())


def test_what_outlives_its_session_says_so(tmp_path: Path) -> None:
    trainkit.init(engine="inline")
    actor = trainkit.remote(Mourned).remote(tmp_path / "gone")
    stream = trainkit.remote(endless).remote(tmp_path / "cleaned")
    next(stream)
    trainkit.shutdown()
    assert (tmp_path / "gone").exists()
    assert (tmp_path / "cleaned").exists()
    trainkit.init(engine="inline")
    with pytest.raises(ActorDiedError, match="shut down"):
        trainkit.get(actor.same.remote(1))
    with pytest.raises(ObjectLostError, match="shut down"):
        trainkit.get(next(stream))
    trainkit.shutdown()


def test_a_constructor_cannot_call_what_it_makes(inline: None) -> None:
    class Eager:
        def __init__(self) -> None:
            self.answer = trainkit.get(trainkit.get_actor("eager").same.remote(1))

        def same(self, value: int) -> int:
            return value

    actor = trainkit.remote(Eager).options(name="eager").remote()
    with pytest.raises(ConfigError, match="its actor's constructor"):
        trainkit.get(actor.same.remote(1))


def test_handles_and_generators_are_not_pickled_by_hand(inline: None) -> None:
    for value in (trainkit.remote(Keeper).remote(), trainkit.remote(endless).remote(Path())):
        with pytest.raises(TypeError, match=r"pass it as an argument|send the references"):
            pickle.dumps(value)
