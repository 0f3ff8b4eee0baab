"""Futures: their callbacks, and what waits for results when the session ends."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import session_fixture
from tests.runtime.local.performers import Stepper
from tests.suites.parts import await_file
from trainkit.errors import ObjectLostError


def test_futures_and_coroutines_fail_when_the_session_is_shut_down() -> None:
    trainkit.init(num_cpus=1)
    actor = trainkit.remote(Stepper).remote()
    call, queued = actor.sleep.remote(60), trainkit.remote(lambda value: value).remote(actor.sleep.remote(60))
    futures = [call.future(), queued.future()]
    threading.Timer(0.2, trainkit.shutdown).start()

    async def wait() -> None:
        await call

    with pytest.raises(ObjectLostError, match="shut down"):
        asyncio.run(asyncio.wait_for(wait(), 60))
    for future in futures:
        with pytest.raises(ObjectLostError, match="shut down"):
            future.result(timeout=60)


def test_a_stream_that_outlives_its_session_is_dropped_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainkit.init(num_cpus=1)
    stream = trainkit.remote(Stepper).remote().endless.remote("left")
    trainkit.get(next(stream))
    trainkit.shutdown()
    del stream
    assert capsys.readouterr().err == ""


session = session_fixture(autouse=False, num_cpus=2)


def test_a_few_threads_run_all_callbacks(session: None, tmp_path: Path) -> None:
    held = trainkit.remote(await_file).remote(tmp_path / "go")
    future, over = held.future(), threading.Event()
    ran: list[int] = []
    threads: set[int] = set()

    def note(_: Any, number: int) -> None:
        ran.append(number)
        threads.add(threading.get_ident())

    for number in range(1000):
        future.add_done_callback(functools.partial(note, number=number))
    future.add_done_callback(lambda _: over.set())
    (tmp_path / "go").touch()
    assert over.wait(60)
    assert sorted(ran) == list(range(1000))
    assert len(threads) < 20


def test_callbacks_that_wait_for_later_ones_go_on(session: None, tmp_path: Path) -> None:
    held = trainkit.remote(await_file).remote(tmp_path / "go")
    future, events = held.future(), [threading.Event() for _ in range(6)]
    for event, later in itertools.pairwise(events):
        future.add_done_callback(lambda _, event=event, later=later: later.wait() and event.set())
    future.add_done_callback(lambda _: events[-1].set())
    (tmp_path / "go").touch()
    assert events[0].wait(60)


def test_a_callback_that_fails_is_told_and_the_next_one_runs(
    session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))
    future, over = trainkit.remote(await_file).remote(tmp_path / "go").future(), threading.Event()
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(lambda _: over.set())
    (tmp_path / "go").touch()
    assert over.wait(60)
    assert [type(error) for error in told] == [ZeroDivisionError]
