"""Conformance suite of engines."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest

import trainkit
from trainkit.clock import SystemClock
from trainkit.errors import ActorDiedError, InfeasibleError, SerializationError
from trainkit.runtime.engine import PROMISES
from trainkit.runtime.session import ENGINES

F = TypeVar("F", bound=Callable[..., Any])

api: Any = trainkit
"""trainkit's public functions as `Any`, because the tests call remote functions of any signature."""


def needs(*promises: str) -> Callable[[F], F]:
    """Mark a test that is only for engines with all these features; other engines skip it."""
    return _depending("needs", promises)


def lacks(*promises: str) -> Callable[[F], F]:
    """Mark a test that is only for engines without any of these features; other engines skip it."""
    return _depending("lacks", promises)


def _depending(how: str, promises: tuple[str, ...]) -> Callable[[F], F]:
    unknown = set(promises) - set().union(*PROMISES.values())
    if unknown:
        raise ValueError(f"unknown engine features: {unknown}")

    def mark(test: F) -> F:
        setattr(test, f"_{how}", frozenset(promises))
        return test

    return mark


class Suite:
    """Base class of suites. A subclass sets the name of an engine; its session lasts for all tests of the
    class.

    Attributes:
        engine: name of the engine, whose features decide which tests run; "" for an abstract suite.
        settings: arguments of `trainkit.init`.
    """

    engine: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {"num_cpus": 4}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.engine:
            return
        made = PROMISES.get(cls.engine) or ENGINES.get(cls.engine).promises
        for name in dir(cls):
            test = getattr(cls, name)
            if getattr(test, "_needs", frozenset()) - made or getattr(test, "_lacks", frozenset()) & made:
                # A test whose name is set to None is removed from the class.
                setattr(cls, name, None)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def session(cls) -> Iterator[None]:
        trainkit.init(engine=cls.engine, **cls.settings)
        yield
        trainkit.shutdown()


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Return True if `condition` becomes true within `seconds`."""
    clock = SystemClock()
    deadline = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > deadline:
            return False
        clock.sleep(0.005)
    return True


class Counter:
    """Actor with state."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def add(self, amount: int = 1) -> int:
        self.count += amount
        return self.count

    def pair(self) -> tuple[str, int]:
        return "count", self.count

    def fail(self) -> None:
        raise LookupError("nothing here")

    def set(self, items: list[int]) -> None:
        items.append(1)


class Refuses:
    """Actor whose constructor fails."""

    def __init__(self) -> None:
        raise OSError(5, "no such device")

    def method(self) -> None:
        return


def double(value: Any) -> Any:
    """Return twice the value."""
    return value + value


class EngineSuite(Suite):
    """Tests of tasks, actors, values and resources. The tests use only public functions."""

    def test_a_task_returns_its_value(self) -> None:
        remote = api.remote(double)
        assert api.get(remote.remote(4)) == 8
        assert api.get([remote.remote(i) for i in range(5)]) == [0, 2, 4, 6, 8]

    def test_a_lambda_and_a_closure_travel_by_value(self) -> None:
        offset = 10
        assert api.get(api.remote(lambda x: x + offset).remote(1)) == 11

    def test_a_reference_as_an_argument_is_resolved_and_one_in_a_list_is_not(self) -> None:
        ref = api.put(3)
        assert api.get(api.remote(double).remote(ref)) == 6
        remote = api.remote(lambda values: [isinstance(value, trainkit.ObjectRef) for value in values])
        assert api.get(remote.remote([ref, 3])) == [True, False]

    def test_a_task_waits_for_the_tasks_it_takes_values_from(self) -> None:
        remote = api.remote(double)
        ref = remote.remote(1)
        for _ in range(5):
            ref = remote.remote(ref)
        assert api.get(ref) == 64

    def test_several_results(self) -> None:
        first, second = api.remote(num_returns=2)(lambda: (1, 2)).remote()
        assert api.get([second, first]) == [2, 1]
        with pytest.raises(ValueError, match="num_returns=2 but returned 3 values"):
            api.get(api.remote(num_returns=2)(lambda: (1, 2, 3)).remote()[0])

    def test_an_actor_keeps_its_state_and_its_order(self) -> None:
        counter = api.remote(Counter).remote(5)
        refs = [counter.add.remote() for _ in range(20)]
        assert api.get(refs) == list(range(6, 26))
        assert api.get(counter.pair.options(num_returns=2).remote()) == ["count", 25]

    def test_two_actors_do_not_share_state(self) -> None:
        one, two = (api.remote(Counter).remote() for _ in range(2))
        api.get([one.add.remote(3), two.add.remote(4)])
        assert api.get([one.add.remote(0), two.add.remote(0)]) == [3, 4]

    def test_arguments_are_copies(self) -> None:
        items: list[int] = []
        api.get(api.remote(Counter).remote().set.remote(items))
        assert items == []

    def test_an_actor_lives_on_after_an_error(self) -> None:
        counter = api.remote(Counter).remote()
        with pytest.raises(LookupError):
            api.get(counter.fail.remote())
        assert api.get(counter.add.remote()) == 1

    def test_a_failed_constructor_fails_every_call(self) -> None:
        actor = api.remote(Refuses).remote()
        for _ in range(2):
            with pytest.raises(OSError, match="no such device") as caught:
                api.get(actor.method.remote())
            assert caught.value.errno == 5
            assert isinstance(caught.value, ActorDiedError)

    def test_what_cannot_be_pickled_is_named(self) -> None:
        config = {"model": {"lock": threading.Lock()}}
        with pytest.raises(SerializationError, match=r"\['model'\]\['lock'\]"):
            api.remote(double).remote(config)
        with pytest.raises(SerializationError, match="the result of"):
            api.get(api.remote(threading.Lock).remote())

    def test_a_request_that_can_never_fit_fails_at_once(self) -> None:
        with pytest.raises(InfeasibleError, match="1000 CPU, but this machine has"):
            api.get(api.remote(num_cpus=1000)(double).remote(1))
        with pytest.raises(InfeasibleError, match="not enough GPU"):
            api.remote(num_gpus=100)(Counter).remote()
        with pytest.raises(InfeasibleError, match="dongle"):
            api.placement_group([{"CPU": 1, "dongle": 1}])

    def test_handles_to_one_actor_are_equal(self) -> None:
        one, other = api.remote(Counter).remote(), api.remote(Counter).remote()
        (again,) = api.get(api.put([one]))
        assert again == one
        assert hash(again) == hash(one)
        assert one != other

    def test_a_reference_has_a_name(self) -> None:
        one, other = api.put(1), api.put(1)
        assert one.hex() != other.hex()
        assert bytes.fromhex(one.hex()) == one.binary()

    def test_nothing_is_waited_for_at_once(self) -> None:
        assert api.wait([]) == ([], [])

    def test_modules_of_the_working_directory_can_be_imported(self, tmp_path: Path) -> None:
        (tmp_path / "lies_here.py").write_text("VALUE = 6")

        def value() -> int:
            import lies_here  # type: ignore[import-not-found]

            return int(lies_here.VALUE)

        remote = api.remote(runtime_env={"working_dir": str(tmp_path)})(value)
        assert api.get(remote.remote()) == 6

    def test_wait_keeps_the_order_and_the_count(self) -> None:
        refs = [api.put(i) for i in range(4)]
        ready, rest = api.wait(refs, num_returns=3)
        assert (ready, rest) == (refs[:3], refs[3:])

    @pytest.mark.parametrize("size", [10, 200_000])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_arrays_arrive_equal_and_read_only(self, size: int, order: Any) -> None:
        array = np.asarray(np.arange(2 * size, dtype=np.float64).reshape(2, size), order=order)
        back = api.get(api.put({"array": array, "text": "beside"}))
        np.testing.assert_array_equal(back["array"], array)
        assert not back["array"].flags.writeable
        assert api.get(api.remote(lambda a: a.sum()).remote(array)) == array.sum()

    @pytest.mark.parametrize("dtype", ["datetime64[ns]", "O", "U3", "complex64", "bool"])
    def test_arrays_of_any_type(self, dtype: str) -> None:
        array = np.array([0, 1, 0], dtype="int64").astype(dtype)
        back = api.get(api.put(array))
        assert back.dtype == array.dtype
        assert (back == array).all()

    @pytest.mark.parametrize("size", [4, 100_000])
    def test_what_is_sent_is_a_copy_of_that_moment(self, size: int) -> None:
        array = np.ones(size)
        ref = api.put(array)
        total = api.remote(lambda a: float(a.sum())).remote(array)
        array[:] = 7
        assert api.get(ref).sum() == size
        assert api.get(total) == size

    def test_a_reference_may_be_copied_and_nested(self) -> None:
        ref = api.put(np.ones(100_000))
        assert copy.deepcopy({"ref": ref})["ref"] is ref
        pending = api.remote(double).remote(2)
        (again,) = api.get(api.put([pending]))
        assert api.get(again) == 4
        assert api.get(ref).sum() == 100_000

    def test_a_list_that_holds_itself_travels(self) -> None:
        items: list[Any] = [1]
        items.append(items)
        back = api.get(api.put(items))
        assert back[1] is back

    def test_a_request_that_no_bundle_could_hold_is_refused(self) -> None:
        group = api.placement_group([{"CPU": 1}, {"CPU": 1}])
        with pytest.raises(InfeasibleError, match="2 CPU can never be met in this placement group"):
            api.remote(double).options(num_cpus=2, placement_group=group)
        assert group.wait(30)
        api.remove_placement_group(group)

    def test_a_placement_group_is_seen_from_inside(self) -> None:
        group = api.placement_group([{"CPU": 1}, {"cpu": 1}])
        assert group.wait(10)
        assert api.get(group.ready()) is None

        class Member:
            def bundles(self) -> Any:
                current = api.get_current_placement_group()
                return current and current.bundle_specs

        options = {"placement_group": group, "placement_group_bundle_index": 1, "num_cpus": 1}
        member = api.remote(Member).options(**options).remote()
        assert api.get(member.bundles.remote()) == [{"CPU": 1}, {"CPU": 1}]
        api.remove_placement_group(group)
        assert api.get_current_placement_group() is None

    def test_resources_are_told(self) -> None:
        assert api.cluster_resources()["CPU"] == 4
        assert api.available_resources()["CPU"] <= 4

    @needs("placement")
    def test_a_resource_that_is_used_up_is_not_among_the_available(self) -> None:
        group = api.placement_group([{"CPU": 4}])
        assert group.wait(60)
        assert eventually(lambda: "CPU" not in api.available_resources())
        api.remove_placement_group(group)
        assert eventually(lambda: api.available_resources().get("CPU") == 4)

    @needs("isolation")
    def test_the_object_store_is_a_resource(self) -> None:
        whole = api.cluster_resources()["object_store_memory"]
        ref = api.put(np.zeros(8 << 20, np.uint8))
        assert eventually(lambda: api.available_resources()["object_store_memory"] <= whole - (8 << 20))
        assert api.get(ref).size == 8 << 20

    def test_a_killed_actor_says_so(self) -> None:
        counter = api.remote(Counter).remote()
        api.get(counter.add.remote())
        api.kill(counter)
        api.kill(counter)
        with pytest.raises(ActorDiedError, match="kill"):
            api.get(counter.add.remote())
