"""Failures that nobody asks for: printed once. Those that somebody has asked for, or has caused, are not."""

from __future__ import annotations

import asyncio
import gc
import textwrap
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually, run_python, session_fixture
from tests.runtime.local.programs import Programs
from trainkit.errors import TaskError

PROGRAM = """
    import trainkit

    def fail(text):
        raise ValueError(text)

    class Failing:
        def fail(self):
            raise KeyError("of an actor")

        def answer(self):
            return 42

    trainkit.init(num_cpus=1)
    actor = trainkit.remote(Failing).remote()
    actor.fail.remote()
    assert trainkit.get(actor.answer.remote()) == 42
    ref = trainkit.remote(fail).remote("of a task")
    trainkit.wait([ref])
    del ref
    trainkit.shutdown()
"""


def fail(text: str) -> None:
    raise ValueError(text)


def take(value: Any) -> None:
    pass


class Failing:
    def fail(self, text: str) -> None:
        raise ValueError(text)

    def answer(self) -> int:
        return 42

    def wait(self) -> None:
        import threading

        threading.Event().wait()


session = session_fixture("function", autouse=False, num_cpus=4)


def shown(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "Unhandled" in message]


@pytest.mark.external
@pytest.mark.parametrize("variable", ["", "RAY_IGNORE_UNHANDLED_ERRORS"])
def test_they_are_printed_unless_a_variable_turns_it_off(tmp_path: Path, variable: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    environment = Programs(tmp_path).environment() | ({variable: "1"} if variable else {})
    done = run_python(str(path), env=environment)
    assert done.stdout == ""
    if variable:
        assert done.stderr == ""
        return
    assert done.stderr.count("Unhandled error (suppress with TRAINKIT_IGNORE_UNHANDLED_ERRORS=1): ") == 2
    assert done.stderr.count("KeyError: 'of an actor'\n") == 1
    assert done.stderr.count("ValueError: of a task\n") == 1
    assert "Failing.fail (pid " in done.stderr


def test_who_asks_in_any_way_is_told_by_that_alone(session: None, caplog: pytest.LogCaptureFixture) -> None:
    task, actor = trainkit.remote(fail), trainkit.remote(Failing).remote()
    for call in (task.remote, actor.fail.remote):
        with pytest.raises(TaskError):
            trainkit.get(call("asked for"))
        with pytest.raises(TaskError):  # who asks for several is told of the first, and has asked for all
            trainkit.get([call("beside others") for _ in range(10)])
        with pytest.raises(TaskError):
            trainkit.get(trainkit.remote(take).remote(call("passed on")))
        assert isinstance(call("a future's").future().exception(), TaskError)

        async def awaited(ref: Any) -> None:
            await ref

        with pytest.raises(TaskError):
            asyncio.run(awaited(call("awaited")))
    trainkit.get(actor.answer.remote())
    actor.fail.remote("nobody's")
    trainkit.get(actor.answer.remote())
    assert eventually(lambda: shown(caplog))
    trainkit.shutdown()
    (message,) = shown(caplog)
    assert "ValueError: nobody's" in message


def test_what_was_ended_on_purpose_is_not_told(session: None, caplog: pytest.LogCaptureFixture) -> None:
    actors = [trainkit.remote(Failing).remote() for _ in range(2)]
    trainkit.get([actor.answer.remote() for actor in actors])
    killed, left = (actor.wait.remote() for actor in actors)
    trainkit.kill(actors[0])
    trainkit.wait([killed])
    waiting = trainkit.remote(fail).remote(left)
    trainkit.cancel(waiting)
    trainkit.wait([waiting])
    del killed, left, waiting
    trainkit.shutdown()
    assert shown(caplog) == []


def test_who_cancels_a_call_is_not_told_that_it_had_failed(
    session: None, caplog: pytest.LogCaptureFixture
) -> None:
    actor = trainkit.remote(Failing).remote()
    calls = [trainkit.remote(fail).remote("of a task"), actor.fail.remote("of an actor")]
    trainkit.wait(calls, num_returns=2)
    while calls:
        trainkit.cancel(calls.pop())
    trainkit.shutdown()
    assert shown(caplog) == []


def test_nothing_is_kept_of_calls_that_were_cancelled_or_asked_for(session: None) -> None:
    actor = trainkit.remote(Failing).remote()

    def call(times: int) -> int:
        for _ in range(times):
            trainkit.cancel(actor.answer.remote())
            with pytest.raises(TaskError):
                trainkit.get([actor.fail.remote(""), *(actor.answer.remote() for _ in range(50))])
        trainkit.get(actor.answer.remote())
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = call(3)
        assert call(100) < before + 100_000
    finally:
        tracemalloc.stop()


def test_a_burst_is_counted(session: None, caplog: pytest.LogCaptureFixture) -> None:
    actor = trainkit.remote(Failing).remote()
    for _ in range(100):
        actor.fail.remote("again")
    trainkit.get(actor.answer.remote())
    trainkit.shutdown()
    first, *_, last = shown(caplog)
    assert "ValueError: again" in first
    assert "more calls failed" in last
    assert len(shown(caplog)) < 50
