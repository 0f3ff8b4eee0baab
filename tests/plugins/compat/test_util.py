"""The runtime by Ray's names, and the pool of actors, on the inline and on the local engine."""

from __future__ import annotations

import inspect
import os
import threading
from pathlib import Path

import pytest

import trainkit
from tests.conftest import session_fixture
from tests.runtime.pooled import Doubler, Gate
from tests.suites.parts import BUILT_IN, promising
from trainkit import cloudpickle
from trainkit.errors import ConfigError, GetTimeoutError, SerializationError
from trainkit.plugins.compat import finder
from trainkit.runtime_env import RuntimeEnv
from trainkit.util import (
    ActorPool,
    as_completed,
    deregister_serializer,
    inspect_serializability,
    log_once,
    map_unordered,
    register_serializer,
)

RemoteDoubler = trainkit.remote(Doubler)
RemoteGate = trainkit.remote(Gate)


engine = session_fixture(autouse=False, engines=BUILT_IN, num_cpus=4)


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


def test_map_gives_all_in_their_order_or_as_they_come(engine: str):
    pool, doubled = pool_of(2), [0, 2, 4, 6, 8, 10, 12]
    assert list(pool.map(lambda actor, value: actor.double.remote(value), range(7))) == doubled
    assert not pool.has_next()
    assert pool.has_free()
    assert sorted(pool.map_unordered(lambda actor, value: actor.double.remote(value), range(7))) == doubled
    assert not pool.has_next()


def test_submit_and_get_next(engine: str):
    pool = pool_of(1)
    for value in (1, 2, 3):
        pool.submit(lambda actor, value: actor.double.remote(value), value)
    assert pool.has_next()
    assert [pool.get_next(timeout=60), pool.get_next_unordered(), pool.get_next()] == [2, 4, 6]
    with pytest.raises(StopIteration, match="no pending results"):
        pool.get_next()
    with pytest.raises(StopIteration, match="no pending results"):
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
    with pytest.raises(ConfigError, match="must return one reference or several, not 5"):
        pool.submit(lambda actor, value: value, 5)  # type: ignore[arg-type, return-value]
    assert pool.has_free()


def test_push_and_pop(engine: str):
    actor = RemoteDoubler.remote()
    pool: ActorPool[Doubler] = ActorPool([])
    pool.submit(lambda actor, value: actor.double.remote(value), 4)
    assert not pool.has_free()
    with pytest.raises(ConfigError, match="no actor left"):
        pool.get_next()
    pool.push(actor)
    with pytest.raises(ConfigError, match="already has this actor"):
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


def test_results_as_they_arrive(engine: str):
    double = trainkit.remote(abs)
    refs = [double.remote(-value) for value in range(25)]
    assert sorted(as_completed(refs)) == list(range(25))
    assert set(as_completed(refs, chunk_size=3, yield_obj_refs=True)) == set(refs)
    assert sorted(map_unordered(double, iter(range(-7, 0)), backpressure_size=2, chunk_size=1)) == [
        *range(1, 8)
    ]
    assert sorted(map_unordered(double, range(3), backpressure_size=None)) == [0, 1, 2]
    assert list(as_completed([])) == []
    with pytest.raises(ConfigError, match="chunk_size must be"):
        as_completed(refs, chunk_size=0)
    with pytest.raises(ConfigError, match="backpressure_size must be"):
        map_unordered(double, [1], backpressure_size=0)
    with pytest.raises(ConfigError, match="pass chunk_size"):
        as_completed(refs, num_returns=2)


class Locked:
    """Something that can't be pickled."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.lock = threading.Lock()


def test_a_class_travels_by_its_own_functions(engine: str):
    @trainkit.remote
    def value_of(locked: Locked) -> int:
        with locked.lock:
            return locked.value

    register_serializer(Locked, serializer=lambda locked: locked.value, deserializer=Locked)
    try:
        assert trainkit.get(value_of.remote(Locked(3))) == 3
        assert trainkit.get(trainkit.put(Locked(4))).value == 4
    finally:
        deregister_serializer(Locked)
    deregister_serializer(Locked)
    with pytest.raises(SerializationError, match="lock"):
        trainkit.put(Locked(5))
    deregister_serializer(trainkit.ObjectRef)  # nobody registered that: it goes on travelling
    assert trainkit.get(trainkit.get(trainkit.put([trainkit.put(6)]))[0]) == 6


def test_a_message_is_logged_once():
    key = "a key of this test"
    assert [log_once(key), log_once(key), log_once(key + "2"), log_once(key)] == [True, False, True, False]


def test_a_runtime_env_is_a_dictionary(engine: str, tmp_path: Path):
    environment = RuntimeEnv(env_vars={"NAMES_TEST": "1"}, working_dir=str(tmp_path))
    assert environment == {"env_vars": {"NAMES_TEST": "1"}, "working_dir": str(tmp_path)}
    assert (environment.env_vars(), environment.working_dir()) == ({"NAMES_TEST": "1"}, str(tmp_path))
    assert cloudpickle.loads(cloudpickle.dumps(environment)) == environment
    see = trainkit.remote(os.getenv)
    assert trainkit.get(see.options(runtime_env=environment).remote("NAMES_TEST")) == "1"
    with pytest.raises(ConfigError, match="runtime_env does not support pip"):
        see.options(runtime_env=RuntimeEnv(pip=["numpy"]))


def test_ids_know_what_they_are_of():
    one = trainkit.ActorID.from_hex("0f" * 8)
    assert (one.hex(), one.binary(), repr(one)) == ("0f" * 8, b"\x0f" * 8, "ActorID(0f0f0f0f0f0f0f0f)")
    assert one == cloudpickle.loads(cloudpickle.dumps(one)) != trainkit.TaskID.from_hex("0f" * 8)
    assert len({one, trainkit.ActorID.from_binary(b"\x0f" * 8), trainkit.ActorID.nil()}) == 2
    assert trainkit.ActorID.nil().is_nil()
    assert not trainkit.ActorID.from_random().is_nil()
    assert trainkit.ObjectID is trainkit.ObjectRef
    assert trainkit.PlacementGroupID.from_hex("00000000000000ff") == 255


def test_errors_by_rays_names():
    exceptions = pytest.importorskip("ray").exceptions
    theirs = {
        name: kind
        for name, kind in vars(exceptions).items()
        if isinstance(kind, type) and issubclass(kind, exceptions.RayError)
    }
    gone = finder.table()["trainkit.exceptions"].gone
    assert set(theirs) == {*trainkit.exceptions.__all__, *gone}
    theirs = {name: kind for name, kind in theirs.items() if name not in gone}
    ours = {name: getattr(trainkit.exceptions, name) for name in theirs}
    for name, kind in theirs.items():
        for other, base in {**theirs, "ValueError": ValueError, "TimeoutError": TimeoutError}.items():
            if issubclass(kind, base):
                assert issubclass(ours[name], ours.get(other, base)), f"{name} is a {other} in Ray"


def test_init_takes_every_argument_of_rays():
    ray = pytest.importorskip("ray")
    theirs = {
        name for name, it in inspect.signature(ray.init).parameters.items() if it.kind is not it.VAR_KEYWORD
    }
    assert theirs <= set(inspect.signature(trainkit.init).parameters)


def test_what_cannot_be_sent_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    assert inspect_serializability({"a": 1}) == (True, set())
    can, found = inspect_serializability({"a": [lock]}, name="config")
    assert not can
    assert [(each.obj, each.path) for each in found] == [(lock, ("config['a'][0]",))]
    assert "config['a'][0] (a _thread.lock) cannot be pickled" in capsys.readouterr().out
