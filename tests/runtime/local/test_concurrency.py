"""Several calls of an actor at once: threads, concurrency groups, event loops; and awaiting references."""

from __future__ import annotations

import importlib
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.performers import Looped, Stepper, Threaded
from trainkit.errors import SerializationError

pytestmark = pytest.mark.usefixtures("runtime")


def threaded(**options: Any) -> Any:
    return trainkit.remote(Threaded).options(concurrency_groups={"io": 1}, **options).remote()


def looped(**options: Any) -> Any:
    return trainkit.remote(Looped).options(**options).remote()


@pytest.mark.parametrize("make", [threaded, looped])
@pytest.mark.parametrize("how", ["exit_actor", "SystemExit"])
def test_an_exit_in_any_of_them_ends_the_actor(make: Any, how: str) -> None:
    actor = make(max_concurrency=4)
    waiting = actor.wait_for_event.remote()
    reason = "ended itself by exit_actor" if how == "exit_actor" else "exit code 5"
    for ref in (actor.leave.remote(how), waiting):
        with pytest.raises(trainkit.errors.ActorDiedError, match=reason):
            trainkit.get(ref, timeout=60)


def test_awaiting_what_a_dead_actor_owed() -> None:
    actor = trainkit.remote(Stepper).remote()
    pending = actor.sleep.remote(60)
    future = pending.future()
    trainkit.kill(actor)
    with pytest.raises(trainkit.errors.ActorDiedError):
        future.result(timeout=60)


def test_an_actor_of_threads_ends_with_its_last_handle() -> None:
    actors = [threaded(max_concurrency=2), looped()]
    processes = [psutil.Process(pid) for pid in children_of(actors)]
    del actors
    assert eventually(lambda: not any(process.is_running() for process in processes))


def children_of(actors: list[Any]) -> list[int]:
    before = trainkit.get(actors[0].where.remote())
    assert before is not None
    trainkit.get(actors[1].orders.remote())
    return [
        process.pid
        for process in psutil.Process().children(recursive=True)
        if process.name() in ("tk-Threaded", "tk-Looped")
    ]


def test_all_results_of_a_call_that_cannot_be_unpacked_fail() -> None:
    class Unknown:
        def __reduce__(self) -> Any:
            return importlib.import_module, ("no_such_module",)

    for actor in (trainkit.remote(Stepper).remote(), threaded(max_concurrency=2), looped()):
        for ref in actor.numbers.options(num_returns=3).remote(Unknown()):
            with pytest.raises(SerializationError, match="no_such_module"):
                trainkit.get(ref, timeout=60)
