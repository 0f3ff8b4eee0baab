"""Calls whose arguments are not there yet: whom they keep waiting, and whom they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.suites.engine_actors import was_made_anew
from tests.suites.parts import SOON_S, Collector, Gate, ParameterServer, Pushing, await_file, wait_for
from trainkit.errors import ActorDiedError, TaskCancelledError
from trainkit.plugins.testing.engine import Suite, needs


def late(path: Path) -> Any:
    """A reference that is done once `path` exists."""
    return trainkit.remote(num_cpus=0)(wait_for).remote(path)


def collector(**options: Any) -> Any:
    """An actor that has started."""
    actor = trainkit.remote(Collector).options(**options).remote()
    trainkit.get(actor.everything.remote(), timeout=SOON_S)
    return actor


def add_from_elsewhere(actor: Any, value: Any) -> Any:
    return trainkit.get(actor.add.remote(value))


def add_in_vain(actor: Any, given: list[Any]) -> None:
    actor.add.remote(given[0])


class Given:
    """Keeps what its constructor is given."""

    def __init__(self, value: Any, other: Any = None) -> None:
        self._value, self._other = value, other

    def value(self) -> Any:
        return self._value

    def both(self) -> Any:
        return self._value, self._other


class Level:
    """Counts how often it is pickled, in the process that does it."""

    pickled = 0

    def __reduce__(self) -> Any:
        Level.pickled += 1
        return Level, ()


def innermost(held: Any) -> tuple[Any, int]:
    """Return what is in all of these levels, and how many there are."""
    levels = 0
    while isinstance(held, tuple):
        held, levels = trainkit.get(held[1]), levels + 1
    return held, levels


class Caller:
    def add_in_vain(self, actor: Any, given: list[Any]) -> None:
        add_in_vain(actor, given)


class ArgumentSuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone."""

    settings: ClassVar = {**Suite.settings, "resources": {"licence": 2}}

    # calls that need each other

    def test_workers_that_ask_the_actor_which_waits_for_them(self) -> None:
        server = trainkit.remote(ParameterServer).remote()
        workers = [trainkit.remote(Pushing).remote() for _ in range(2)]
        gradients = [worker.gradient.remote(server) for worker in workers]
        assert trainkit.get(server.apply.remote(*gradients), timeout=SOON_S) == 2

    def test_a_call_is_given_what_a_task_made_of_the_same_actor(self) -> None:
        actor = collector()
        value = trainkit.remote(num_cpus=0)(add_from_elsewhere).remote(actor, 1)
        assert trainkit.get(actor.add.remote(value), timeout=SOON_S) == [1, [1]]

    # whose calls wait

    @needs("background")
    def test_a_strangers_late_argument_keeps_nobody_waiting(self, tmp_path: Path) -> None:
        actor = collector()
        held = actor.add.remote(late(tmp_path / "go"))
        other = trainkit.remote(num_cpus=0)(add_from_elsewhere).remote(actor, 1)
        assert trainkit.get(other, timeout=SOON_S) == [1]
        (tmp_path / "go").touch()
        assert trainkit.get(held, timeout=SOON_S) == [1, "waited"]

    @needs("background")
    def test_calls_of_one_caller_run_in_their_order(self, tmp_path: Path) -> None:
        actor = collector(name="ordered")
        (same,) = trainkit.get(trainkit.put([actor]))
        found = trainkit.get_actor("ordered")
        first = actor.add.remote(value=late(tmp_path / "go"))
        rest = [actor.add.remote(1), same.add.remote(2), found.add.remote(3), actor.add.remote([4] * 100)]
        assert trainkit.wait([first, *rest], num_returns=5, timeout=0.2)[0] == []
        (tmp_path / "go").touch()
        assert trainkit.get(rest[-1], timeout=SOON_S) == ["waited", 1, 2, 3, [4] * 100]
        assert trainkit.get(first) == ["waited"]

    @needs("concurrent")
    @pytest.mark.parametrize("how", ["threads", "async"])
    def test_actors_that_run_several_calls_keep_no_order(self, how: str, tmp_path: Path) -> None:
        cls, options = (Collector, {"max_concurrency": 2}) if how == "threads" else (Gate, {})
        actor = trainkit.remote(cls).options(**options).remote()
        held = [actor.add.remote(late(tmp_path / "go")) for _ in range(3)]
        assert trainkit.get(actor.add.remote(1), timeout=SOON_S) == [1], "those that wait take no place"
        (tmp_path / "go").touch()
        assert len(trainkit.get(held, timeout=SOON_S)) == 3
        assert trainkit.get(actor.everything.remote()) == [1, *["waited"] * 3]

    @needs("background")
    def test_a_task_that_waits_takes_nothing(self, tmp_path: Path) -> None:
        waiting = trainkit.remote(num_cpus=SESSION_CPUS)(lambda value: value).remote(late(tmp_path / "go"))
        touch = trainkit.remote(num_cpus=SESSION_CPUS)((tmp_path / "go").touch)
        assert trainkit.get([touch.remote(), waiting], timeout=SOON_S) == [None, "waited"]

    @needs("background")
    def test_an_actor_whose_argument_is_late_takes_nothing(self, tmp_path: Path) -> None:
        takes_all: dict[str, Any] = {"num_cpus": 0, "resources": {"licence": 2}}
        waiting = trainkit.remote(Given).options(name="late", **takes_all).remote(late(tmp_path / "go"))
        value = trainkit.get_actor("late").value.remote()
        touch = trainkit.remote(**takes_all)((tmp_path / "go").touch)
        assert trainkit.get([touch.remote(), value], timeout=SOON_S) == [None, "waited"]
        trainkit.kill(waiting)

    def test_a_constructor_is_given_one_reference_twice(self) -> None:
        ref = trainkit.remote(num_cpus=0)(lambda: 7).remote()
        actor = trainkit.remote(Given).remote(ref, other=ref)
        assert trainkit.get(actor.both.remote(), timeout=SOON_S) == (7, 7)

    @needs("background")
    def test_an_actor_that_waits_is_killed(self, tmp_path: Path) -> None:
        waiting = trainkit.remote(num_cpus=SESSION_CPUS)(Given).remote(late(tmp_path / "go"))
        value = waiting.value.remote()
        trainkit.kill(waiting)
        with pytest.raises(ActorDiedError):
            trainkit.get(value, timeout=SOON_S)
        (tmp_path / "go").touch()

    @needs("background")
    def test_a_late_argument_of_a_late_argument(self, tmp_path: Path) -> None:
        one, two = collector(), collector()
        first = one.add.remote(late(tmp_path / "go"))
        second = two.add.remote(first)
        third = one.add.remote(second)
        (tmp_path / "go").touch()
        assert trainkit.get(third, timeout=SOON_S) == ["waited", [["waited"]]]

    @needs("background")
    def test_each_of_200_values_around_a_late_one_is_pickled_once(self, tmp_path: Path) -> None:
        held, before = late(tmp_path / "go"), Level.pickled
        for _ in range(200):
            held = trainkit.put((Level(), held))
        found = trainkit.remote(num_cpus=0)(innermost).remote((Level(), held))
        assert Level.pickled - before <= 201
        (tmp_path / "go").touch()
        assert trainkit.get(found, timeout=SOON_S) == ("waited", 201)

    @needs("background")
    def test_a_late_argument_of_a_stream(self, tmp_path: Path) -> None:
        stream = collector().repeat.remote(late(tmp_path / "go"), 2)
        (tmp_path / "go").touch()
        assert [trainkit.get(ref, timeout=SOON_S) for ref in stream] == ["waited"] * 2

    @needs("background")
    def test_what_is_given_is_what_it_was_when_the_call_was_made(self, tmp_path: Path) -> None:
        actor = collector()
        given = [1]
        held = actor.add_both.remote(late(tmp_path / "go"), given)
        behind = actor.add.remote(given)
        given.append(2)
        (tmp_path / "go").touch()
        assert trainkit.get([held, behind], timeout=SOON_S)[1] == ["waited", [1], [1]]

    # ends

    def test_a_late_argument_that_fails(self) -> None:
        actor = collector()
        failing = trainkit.remote(num_cpus=0)(lambda: int("no number")).remote()
        with pytest.raises(ValueError, match="no number"):
            trainkit.get(actor.add.remote(failing), timeout=SOON_S)
        assert trainkit.get(actor.add.remote(1), timeout=SOON_S) == [1]

    @needs("background", "unharmed")
    def test_a_call_that_waits_is_cancelled_at_once(self, tmp_path: Path) -> None:
        actor = collector()
        held, behind = actor.add.remote(late(tmp_path / "go")), actor.add.remote(2)
        trainkit.cancel(held)
        with pytest.raises(TaskCancelledError):
            trainkit.get(held, timeout=SOON_S)
        assert trainkit.get(behind, timeout=SOON_S) == [2], "before that argument was there"
        (tmp_path / "go").touch()
        assert trainkit.get(actor.everything.remote()) == [2]

    @needs("background")
    def test_a_call_that_waits_keeps_its_actor(self, tmp_path: Path) -> None:
        held = collector().add.remote(late(tmp_path / "go"))
        assert trainkit.wait([held], timeout=0.2)[0] == []
        (tmp_path / "go").touch()
        assert trainkit.get(held, timeout=SOON_S) == ["waited"]

    @needs("background")
    @pytest.mark.parametrize("maker", ["task", "actor"])
    def test_a_call_that_waits_outlives_who_made_it(self, maker: str, tmp_path: Path) -> None:
        actor, given = collector(), [late(tmp_path / "go")]
        if maker == "task":
            trainkit.get(trainkit.remote(max_calls=1)(add_in_vain).remote(actor, given))
        else:
            trainkit.get(trainkit.remote(Caller).remote().add_in_vain.remote(actor, given))
        assert trainkit.wait(given, timeout=0.5)[0] == []
        (tmp_path / "go").touch()
        assert eventually(lambda: trainkit.get(actor.everything.remote()) == ["waited"], SOON_S)

    @needs("background")
    def test_a_call_that_waits_ends_with_its_actor(self, tmp_path: Path) -> None:
        actor = collector()
        held, behind = actor.add.remote(late(tmp_path / "never")), actor.add.remote(2)
        trainkit.kill(actor)
        for ref in (held, behind):
            with pytest.raises(ActorDiedError):
                trainkit.get(ref, timeout=SOON_S)
        (tmp_path / "never").touch()

    @needs("restarts")
    def test_a_call_that_waits_reaches_the_actor_that_is_made_anew(self, tmp_path: Path) -> None:
        actor = collector(max_restarts=1)
        held, behind = actor.add.remote(late(tmp_path / "go")), actor.add.remote(2)
        trainkit.kill(actor, no_restart=False)
        assert eventually(lambda: trainkit.get(trainkit.remote(was_made_anew).remote(actor)), SOON_S)
        (tmp_path / "go").touch()
        assert trainkit.get([held, behind], timeout=SOON_S) == [["waited"], ["waited", 2]]

    @needs("background")
    def test_a_call_of_an_actor_that_dies_later_fails(self, tmp_path: Path) -> None:
        actor = collector()
        gate = tmp_path / "go"
        held = actor.wait_for.remote(late(gate), tmp_path / "started")
        gate.touch()
        await_file(tmp_path / "started")
        trainkit.kill(actor)
        with pytest.raises(ActorDiedError):
            trainkit.get(held, timeout=SOON_S)
