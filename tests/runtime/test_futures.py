"""What waits for results when the session ends."""

from __future__ import annotations

import asyncio
import threading

import pytest

import trainkit
from tests.runtime.performers import Stepper
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
        asyncio.run(asyncio.wait_for(wait(), 20))
    for future in futures:
        with pytest.raises(ObjectLostError, match="shut down"):
            future.result(timeout=20)


def test_a_stream_that_outlives_its_session_is_dropped_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainkit.init(num_cpus=1)
    stream = trainkit.remote(Stepper).remote().endless.remote("left")
    trainkit.get(next(stream))
    trainkit.shutdown()
    del stream
    assert capsys.readouterr().err == ""
