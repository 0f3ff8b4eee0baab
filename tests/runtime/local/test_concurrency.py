"""Several calls of an actor at once: threads, concurrency groups, event loops; and awaiting references."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.performers import Grouped, Looped, Stepper, Threaded
from trainkit.errors import SerializationError

pytestmark = pytest.mark.usefixtures("runtime")


def threaded(**options: Any) -> Any:
    return trainkit.remote(Threaded).options(concurrency_groups={"io": 1}, **options).remote()


def looped(**options: Any) -> Any:
    return trainkit.remote(Looped).options(**options).remote()


def test_methods_run_at_once_in_threads() -> None:
    actor = threaded(max_concurrency=2)
    waiting = actor.wait_for_event.remote()
    trainkit.get(actor.set_event.remote(), timeout=60)
    assert trainkit.get(waiting, timeout=60) is True
    assert trainkit.get(actor.where.remote()) == (True, False)
    assert trainkit.get(actor.nested.remote(1), timeout=60) == 2


def test_no_more_threads_than_asked_for_and_in_the_order_sent() -> None:
    actor = threaded(max_concurrency=3)
    assert max(trainkit.get([actor.count.remote(i, 3) for i in range(12)], timeout=60)) == 3
    single = threaded()
    assert max(trainkit.get([single.count.remote(i) for i in range(5)], timeout=60)) == 1
    assert trainkit.get(single.orders.remote()) == list(range(5))


def test_a_group_goes_on_while_another_is_full() -> None:
    actor = trainkit.remote(concurrency_groups={"slow": 1, "io": 1})(Grouped).remote()
    waiting = [actor.wait_for_event.remote() for _ in range(3)]
    assert trainkit.get(actor.set_event.remote(), timeout=60).startswith("trainkit-io")
    assert trainkit.get(waiting, timeout=60) == [True] * 3
    assert trainkit.get(actor.plain.remote()).startswith("trainkit-calls")
    moved = actor.plain.options(concurrency_group="io").remote()
    assert trainkit.get(moved).startswith("trainkit-io")
    with pytest.raises(trainkit.errors.ConfigError, match=r"no concurrency group 'net'.*\['io', 'slow'\]"):
        trainkit.get(actor.plain.options(concurrency_group="net").remote())


def test_calls_in_threads_are_carried_out_though_the_last_handle_is_gone(tmp_path: Path) -> None:
    threaded(max_concurrency=2).touch.remote(tmp_path / "written")
    assert eventually((tmp_path / "written").exists)


@pytest.mark.parametrize("make", [threaded, looped])
@pytest.mark.parametrize("how", ["exit_actor", "SystemExit"])
def test_an_exit_in_any_of_them_ends_the_actor(make: Any, how: str) -> None:
    actor = make(max_concurrency=4)
    waiting = actor.wait_for_event.remote()
    reason = "ended itself by exit_actor" if how == "exit_actor" else "exit code 5"
    for ref in (actor.leave.remote(how), waiting):
        with pytest.raises(trainkit.errors.ActorDiedError, match=reason):
            trainkit.get(ref, timeout=60)


def test_coroutines_run_at_once_on_one_loop() -> None:
    actor = looped()
    waiting = [actor.wait_for_event.remote() for _ in range(20)]
    assert trainkit.get(actor.set_event.remote(), timeout=60) is True
    assert trainkit.get(waiting, timeout=60) == [True] * 20
    assert max(trainkit.get([actor.count.remote(i, 30) for i in range(30)], timeout=60)) == 30
    assert trainkit.get(actor.orders.remote()) == list(range(30))
    with pytest.raises(LookupError, match="nothing here"):
        trainkit.get(actor.fail.remote())


def test_no_more_coroutines_than_asked_for() -> None:
    actor = looped(max_concurrency=2)
    assert max(trainkit.get([actor.count.remote(i, 2) for i in range(10)], timeout=60)) == 2


def test_a_coroutine_awaits_references_and_gets_arguments_that_are_pending() -> None:
    actor = looped()
    assert trainkit.get(actor.nested.remote(3), timeout=60) == 8
    slow = trainkit.remote(Stepper).remote().sleep.remote(0.2)
    later, first = actor.same.remote(slow), actor.same.options(concurrency_group=None).remote(1)
    assert trainkit.get([later, first], timeout=60) == [0.2, 1]


def test_a_driver_awaits_references(tmp_path: Path) -> None:
    stepper = trainkit.remote(Stepper).remote()
    task = trainkit.remote(lambda: 2)
    failing = trainkit.remote(lambda: 1 / 0)

    async def main() -> None:
        assert await stepper.sleep.remote(0.05) == 0.05
        assert await asyncio.gather(*(task.remote() for _ in range(20))) == [2] * 20
        assert await trainkit.put(3) == 3
        with pytest.raises(ZeroDivisionError):
            await failing.remote()
        call = stepper.wait_for.remote(tmp_path / "begun", tmp_path / "go")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.05)
        (tmp_path / "go").touch()
        assert await call is None, "who gave up waiting has not cancelled it"

    asyncio.run(main())
    assert task.remote().future().result(timeout=60) == 2


def test_awaiting_what_a_dead_actor_owed() -> None:
    actor = trainkit.remote(Stepper).remote()
    pending = actor.sleep.remote(60)
    future = pending.future()
    trainkit.kill(actor)
    with pytest.raises(trainkit.errors.ActorDiedError):
        future.result(timeout=60)


def test_where_calls_run() -> None:
    driver = trainkit.get_runtime_context()
    assert driver.get_actor_id() is None
    assert driver.get_task_id() is None
    assert driver.get_worker_id() == "1"

    def look() -> tuple[Any, ...]:
        context = trainkit.get_runtime_context()
        return (
            context.get_node_id(),
            context.namespace,
            context.get_actor_id(),
            context.get_assigned_resources(),
            context.get_task_id() is not None,
            context.was_current_actor_reconstructed,
        )

    assert trainkit.get(trainkit.remote(num_cpus=2)(look).remote()) == (
        driver.get_node_id(),
        driver.namespace,
        None,
        {"CPU": 2.0},
        True,
        False,
    )
    actor = looped()
    (one, first), (two, second) = trainkit.get([actor.where.remote() for _ in range(2)])
    assert one == two is not None
    assert first != second


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
