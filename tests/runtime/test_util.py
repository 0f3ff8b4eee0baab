"""The runtime by Ray's names, and the pool of actors, on the inline and on the local engine."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from tests.conftest import eventually, session_processes
from tests.runtime.pooled import Doubler, Gate
from tests.suites.base import BUILT_IN, promising
from trainkit import errors
from trainkit.errors import ConfigError, GetTimeoutError, InfeasibleError, TaskError
from trainkit.util import ActorPool

RemoteDoubler = trainkit.remote(Doubler)
RemoteGate = trainkit.remote(Gate)


@pytest.fixture(scope="module", params=BUILT_IN)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    before = set(session_processes())
    trainkit.init(engine=request.param, num_cpus=4)
    yield request.param
    trainkit.shutdown()
    assert eventually(lambda: not set(session_processes()) - before)


late = pytest.mark.parametrize("engine", promising("background"), indirect=True)
"""Of a test in which a call is not done at once."""


class Held:
    """A call that is not done before `release`, by a named pipe that its worker reads."""

    def __init__(self, folder: Path, name: str = "gate") -> None:
        self._path = folder / name
        os.mkfifo(self._path)
        self._gate = RemoteGate.remote()
        self.ref = self._gate.open_when.remote(str(self._path))

    def release(self) -> None:
        threading.Thread(target=lambda: os.close(os.open(self._path, os.O_WRONLY))).start()


def pool_of(count: int) -> ActorPool[Doubler]:
    return ActorPool([RemoteDoubler.remote() for _ in range(count)])


def test_map_keeps_the_order(engine: str):
    pool = pool_of(2)
    assert list(pool.map(lambda actor, value: actor.double.remote(value), range(7))) == [
        0, 2, 4, 6, 8, 10, 12,
    ]  # fmt: skip
    assert not pool.has_next()
    assert pool.has_free()


def test_map_unordered_gives_all(engine: str):
    pool = pool_of(3)
    results = pool.map_unordered(lambda actor, value: actor.double.remote(value), range(7))
    assert sorted(results) == [0, 2, 4, 6, 8, 10, 12]
    assert not pool.has_next()


def test_map_starts_at_once_and_forgets_what_was_before(engine: str):
    pool = pool_of(1)
    pool.submit(lambda actor, value: actor.double.remote(value), 100)
    results = pool.map(lambda actor, value: actor.double.remote(value), [1, 2])
    assert list(results) == [2, 4]


def test_submit_and_get_next(engine: str):
    pool = pool_of(1)
    for value in (1, 2, 3):
        pool.submit(lambda actor, value: actor.double.remote(value), value)
    assert pool.has_next()
    assert [pool.get_next(timeout=60), pool.get_next_unordered(), pool.get_next()] == [2, 4, 6]
    with pytest.raises(StopIteration, match="no result is owed"):
        pool.get_next()
    with pytest.raises(StopIteration, match="no result is owed"):
        pool.get_next_unordered()


def test_an_error_loses_neither_actor_nor_results(engine: str):
    pool = pool_of(1)
    results = pool.map(lambda actor, value: actor.refuse.remote(value), range(3))
    assert next(results) == 0
    with pytest.raises(LookupError, match="not 1"):
        next(results)
    assert next(results) == 2
    assert pool.has_free()
    assert len([pool.pop_idle(), pool.pop_idle()]) == 2
    assert pool.pop_idle() is None


def test_an_error_of_the_function_itself_loses_no_actor(engine: str):
    def send(actor: Doubler, value: int) -> trainkit.ObjectRef[int]:
        if value == 1:
            raise KeyError(value)
        return actor.double.remote(value)

    pool = pool_of(1)
    with pytest.raises(KeyError):
        pool.submit(send, 1)
    assert not pool.has_next()
    for value in (0, 2):
        pool.submit(send, value)
    assert [pool.get_next(), pool.get_next()] == [0, 4]
    with pytest.raises(ConfigError, match="must return one reference; it returned 5"):
        pool.submit(lambda actor, value: value, 5)  # type: ignore[arg-type, return-value]
    assert pool.has_free()


@late
def test_an_error_of_the_function_is_raised_in_its_turn(engine: str, tmp_path: Path):
    def send(actor: Doubler, value: int) -> trainkit.ObjectRef[int]:
        if value == 1:
            raise KeyError(value)
        return actor.after.remote(held.ref, value)

    held = Held(tmp_path)
    pool = pool_of(1)
    results = pool.map(send, [0, 1, 2])
    held.release()
    assert next(results) == 0
    with pytest.raises(KeyError):
        next(results)
    assert next(results) == 2


def test_push_and_pop(engine: str):
    actor = RemoteDoubler.remote()
    pool: ActorPool[Doubler] = ActorPool([])
    pool.submit(lambda actor, value: actor.double.remote(value), 4)
    assert not pool.has_free()
    with pytest.raises(ConfigError, match="no actor left"):
        pool.get_next()
    pool.push(actor)
    with pytest.raises(ConfigError, match="has this actor already"):
        pool.push(actor)
    assert pool.get_next() == 8
    assert pool.pop_idle() is actor
    assert not pool.has_free()


@late
def test_a_timeout_leaves_the_result(engine: str, tmp_path: Path):
    held = Held(tmp_path)
    pool = pool_of(1)
    pool.submit(lambda actor, value: actor.after.remote(held.ref, value), 3)
    with pytest.raises(GetTimeoutError, match="asked for again"):
        pool.get_next(timeout=0.01)
    with pytest.raises(TimeoutError):
        pool.get_next_unordered(timeout=0)
    assert not pool.has_free()
    held.release()
    assert pool.get_next(timeout=60) == 3


@late
def test_a_result_can_be_given_up(engine: str, tmp_path: Path):
    held = Held(tmp_path)
    pool = pool_of(1)
    pool.submit(lambda actor, value: actor.after.remote(held.ref, value), 3)
    pool.submit(lambda actor, value: actor.double.remote(value), 4)
    with pytest.raises(GetTimeoutError, match="is forgotten"):
        pool.get_next(timeout=0, ignore_if_timedout=True)
    held.release()
    assert pool.get_next(timeout=60) == 8
    assert not pool.has_next()


@late
def test_the_first_to_arrive_is_the_first_unordered(engine: str, tmp_path: Path):
    held = Held(tmp_path)
    pool = pool_of(2)
    pool.submit(lambda actor, value: actor.after.remote(held.ref, value), 1)
    for value in (2, 3):
        pool.submit(lambda actor, value: actor.double.remote(value), value)
    assert [pool.get_next_unordered(), pool.get_next_unordered()] == [4, 6]
    held.release()
    assert pool.get_next_unordered(timeout=60) == 1


@late
def test_a_slow_first_call_does_not_hold_up_the_others(engine: str, tmp_path: Path):
    """While the first result is waited for, the other actor does all the rest."""
    held = Held(tmp_path)
    pool = pool_of(2)
    pool.submit(lambda actor, value: actor.after.remote(held.ref, value), 1)

    def last(actor: Doubler, value: int) -> trainkit.ObjectRef[int]:
        held.release()
        return actor.double.remote(value)

    for value in (2, 3, 4):
        pool.submit(lambda actor, value: actor.double.remote(value), value)
    pool.submit(last, 5)
    assert [pool.get_next(timeout=60) for _ in range(5)] == [1, 4, 6, 8, 10]


NAMES = {
    "trainkit.actor": "ActorClass ActorHandle ActorProxy exit_actor",
    "trainkit.runtime_context": "RuntimeContext get_runtime_context",
    "trainkit.util": "ActorPool placement_group remove_placement_group get_placement_group",
    "trainkit.util.actor_pool": "ActorPool",
    "trainkit.util.placement_group": "placement_group remove_placement_group placement_group_table "
    "get_current_placement_group get_placement_group PlacementGroup",
    "trainkit.util.queue": "Queue Empty Full",
    "trainkit.util.scheduling_strategies": "PlacementGroupSchedulingStrategy NodeAffinitySchedulingStrategy",
    "trainkit.util.state": "list_actors list_nodes list_objects list_placement_groups list_tasks",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_where_rays_scripts_look(module: str):
    found = importlib.import_module(module)
    for name in NAMES[module].split():
        assert callable(getattr(found, name)), name


def test_placement_group_is_a_function_and_a_module(engine: str):
    from trainkit.util import placement_group
    from trainkit.util.placement_group import PlacementGroup, remove_placement_group

    group = placement_group([{"CPU": 1}], strategy="PACK")
    assert isinstance(group, PlacementGroup)
    assert group.wait(60)
    remove_placement_group(group)
    assert trainkit.util.placement_group is trainkit.placement_group


def test_modules_are_there_without_an_import_of_each():
    script = (
        "import trainkit, sys; assert 'asyncio' not in sys.modules; "
        "trainkit.util.queue.Queue, trainkit.util.state.list_actors, trainkit.exceptions.RayError, "
        "trainkit.util.scheduling_strategies.PlacementGroupSchedulingStrategy, trainkit.actor.exit_actor"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_rays_errors_are_ours():
    rays = trainkit.exceptions
    classes = {name: getattr(rays, name) for name in rays.__all__}
    assert all(issubclass(kind, errors.TrainkitError) for kind in classes.values())
    assert all(kind is getattr(errors, name) for name, kind in classes.items() if hasattr(errors, name))
    assert classes["RayTaskError"] is TaskError
    assert issubclass(classes["RayActorError"], classes["WorkerCrashedError"])
    assert classes["ActorUnschedulableError"] is InfeasibleError
