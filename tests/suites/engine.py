"""What every engine keeps: run by tests/runtime/test_engines.py on each of them."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainkit
from tests.conftest import eventually
from tests.suites.base import Suite, needs
from trainkit.errors import (
    ActorDiedError,
    ConfigError,
    GetTimeoutError,
    InfeasibleError,
    SerializationError,
    TaskError,
    message_of,
)


class Counter:
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
    def __init__(self) -> None:
        raise OSError(5, "no such device")

    def method(self) -> None:
        return


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class Slotted(ValueError):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


def double(value: Any) -> Any:
    return value + value


def raise_(error: Exception) -> None:
    raise error


def raise_two_arguments() -> None:
    raise TwoArguments(7, "seven")


def raise_slotted() -> None:
    raise Slotted(7)


def raise_unprintable() -> None:
    raise Unprintable


def raise_with_lock() -> None:
    raise ValueError("locked", threading.Lock())


class EngineSuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone."""

    def test_a_task_returns_its_value(self) -> None:
        remote = trainkit.remote(double)
        assert trainkit.get(remote.remote(4)) == 8
        assert trainkit.get([remote.remote(i) for i in range(5)]) == [0, 2, 4, 6, 8]

    def test_a_lambda_and_a_closure_travel_by_value(self) -> None:
        offset = 10
        assert trainkit.get(trainkit.remote(lambda x: x + offset).remote(1)) == 11

    def test_a_reference_as_an_argument_is_resolved_and_one_in_a_list_is_not(self) -> None:
        ref = trainkit.put(3)
        assert trainkit.get(trainkit.remote(double).remote(ref)) == 6
        kinds = trainkit.remote(lambda refs: [type(ref).__mro__[-3].__name__ for ref in refs])
        assert trainkit.get(kinds.remote([ref])) == ["ObjectRef"]

    def test_a_task_waits_for_the_tasks_it_takes_values_from(self) -> None:
        remote = trainkit.remote(double)
        ref = remote.remote(1)
        for _ in range(5):
            ref = remote.remote(ref)
        assert trainkit.get(ref) == 64

    def test_several_results(self) -> None:
        first, second = trainkit.remote(num_returns=2)(lambda: (1, 2)).remote()
        assert trainkit.get([second, first]) == [2, 1]
        with pytest.raises(ValueError, match="num_returns=2 but returned 3 values"):
            trainkit.get(trainkit.remote(num_returns=2)(lambda: (1, 2, 3)).remote()[0])

    def test_an_actor_keeps_its_state_and_its_order(self) -> None:
        counter = trainkit.remote(Counter).remote(5)
        refs = [counter.add.remote() for _ in range(20)]
        assert trainkit.get(refs) == list(range(6, 26))
        assert trainkit.get(counter.pair.options(num_returns=2).remote()) == ["count", 25]

    def test_two_actors_do_not_share_state(self) -> None:
        one, two = (trainkit.remote(Counter).remote() for _ in range(2))
        trainkit.get([one.add.remote(3), two.add.remote(4)])
        assert trainkit.get([one.add.remote(0), two.add.remote(0)]) == [3, 4]

    def test_arguments_are_copies(self) -> None:
        items: list[int] = []
        trainkit.get(trainkit.remote(Counter).remote().set.remote(items))
        assert items == []

    def test_an_error_is_also_what_was_raised(self) -> None:
        with pytest.raises(LookupError, match="nothing here") as caught:
            trainkit.get(trainkit.remote(Counter).remote().fail.remote())
        assert isinstance(caught.value, TaskError)
        assert 'raise LookupError("nothing here")' in caught.value.remote_traceback
        assert "Counter.fail" in caught.value.remote_traceback
        assert type(caught.value.cause) is LookupError

    def test_an_actor_lives_on_after_an_error(self) -> None:
        counter = trainkit.remote(Counter).remote()
        with pytest.raises(LookupError):
            trainkit.get(counter.fail.remote())
        assert trainkit.get(counter.add.remote()) == 1

    def test_a_failed_constructor_fails_every_call(self) -> None:
        actor = trainkit.remote(Refuses).remote()
        for _ in range(2):
            with pytest.raises(OSError, match="no such device") as caught:
                trainkit.get(actor.method.remote())
            assert caught.value.errno == 5
            assert isinstance(caught.value, ActorDiedError)

    @pytest.mark.parametrize(
        ("function", "expected", "text"),
        [
            (raise_two_arguments, TwoArguments, "seven"),
            (raise_slotted, Slotted, "code 7"),
            (raise_unprintable, TaskError, "its __str__ raises"),
            (raise_with_lock, ValueError, "locked"),
        ],
    )
    def test_awkward_exceptions_survive(self, function: Any, expected: type[Exception], text: str) -> None:
        with pytest.raises(expected) as caught:
            trainkit.get(trainkit.remote(function).remote())
        assert isinstance(caught.value, TaskError)
        assert text in f"{caught.value} {caught.value.remote_traceback}"

    @pytest.mark.parametrize(
        "error",
        [
            KeyError("key"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            FileNotFoundError(2, "No such file", "data.txt"),
            ImportError("nothing", name="module", path="here"),
        ],
    )
    def test_built_in_exceptions_keep_their_fields(self, error: Exception) -> None:
        with pytest.raises(type(error)) as caught:
            trainkit.get(trainkit.remote(raise_).remote(error))
        assert message_of(caught.value) == str(error)
        assert caught.value.args == error.args
        for field in ("filename", "name", "path"):
            assert getattr(caught.value, field, None) == getattr(error, field, None)

    @pytest.mark.parametrize("error", [ValueError("bad", 7), SyntaxError("bad"), KeyError("bad")])
    @pytest.mark.parametrize("nested", [False, True])
    def test_the_text_of_an_error_says_where_it_was_raised(self, error: Exception, nested: bool) -> None:
        fail = trainkit.remote(raise_)

        def outer() -> None:
            trainkit.get(fail.remote(error))

        with pytest.raises(type(error)) as caught:
            trainkit.get(trainkit.remote(outer).remote() if nested else fail.remote(error))
        message, _, below = str(caught.value).partition("\n\n")
        assert (message, repr(caught.value)) == (str(error), repr(error))
        assert below == caught.value.remote_traceback
        printed = "".join(traceback.format_exception(caught.value))
        assert below.count("in raise_\n") == printed.count("in raise_\n") == 1
        copied = pickle.loads(pickle.dumps(caught.value))
        assert (str(copied), message_of(copied)) == (str(caught.value), message)

    def test_an_error_passes_through_a_nested_call(self) -> None:
        def outer() -> None:
            trainkit.get(trainkit.remote(raise_two_arguments).remote())

        with pytest.raises(TwoArguments) as caught:
            trainkit.get(trainkit.remote(outer).remote())
        assert caught.value.code == 7
        assert "raise_two_arguments" in caught.value.remote_traceback

    def test_what_cannot_be_pickled_is_named(self) -> None:
        config = {"model": {"lock": threading.Lock()}}
        with pytest.raises(SerializationError, match=r"\['model'\]\['lock'\]"):
            trainkit.remote(double).remote(config)
        with pytest.raises(SerializationError, match="the result of"):
            trainkit.get(trainkit.remote(threading.Lock).remote())

    def test_a_request_that_can_never_fit_is_refused_at_once(self) -> None:
        with pytest.raises(InfeasibleError, match="1000 CPU, but this machine has"):
            trainkit.remote(num_cpus=1000)(double).remote(1)
        with pytest.raises(InfeasibleError, match="not enough GPU"):
            trainkit.remote(num_gpus=100)(Counter).remote()
        with pytest.raises(InfeasibleError, match="dongle"):
            trainkit.placement_group([{"CPU": 1, "dongle": 1}])

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"num_cpu": 1}, "unknown option num_cpu"),
            ({"accelerator_type": "A100"}, r"resources=\{'A100': 1\}"),
            ({"accelerator_type": "A100", "num_cpu": 1}, "resources=.*; there are .*num_cpus"),
            ({"max_pending_calls": 9}, r"wait\(refs, num_returns=1\) before the next"),
            ({"num_cpus": -1}, "negative"),
            ({"num_gpus": 1.5}, "whole GPUs"),
            ({"num_returns": -1}, "num_returns=-1"),
            ({"resources": {"GPU": 1}}, "num_gpus"),
            ({"env": {"A": 1}}, "must be strings"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            trainkit.remote(**options)(double)

    @pytest.mark.parametrize(
        "options",
        [
            {"num_cpus": "2"},
            {"resources": ["a"]},
            {"name": 1},
            {"max_retries": "a"},
            {"max_calls": 1.5},
            {"num_returns": "x"},
            {"retry_exceptions": 3},
            {"scheduling_strategy": 4},
            {"runtime_env": 3},
        ],
    )
    def test_an_option_of_the_wrong_type_is_a_type_error(self, options: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match=next(iter(options)).replace("num_cpus", "CPU")) as caught:
            trainkit.remote(double).options(**options)
        assert isinstance(caught.value, ConfigError)

    def test_arguments_of_the_wrong_type_are_type_errors(self) -> None:
        ref: Any = trainkit.put(1)
        with pytest.raises(TypeError, match="num_returns"):
            trainkit.wait([ref], num_returns="1")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timeout"):
            trainkit.wait([ref], timeout="1")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout=-1"):
            trainkit.wait([ref], timeout=-1)
        assert trainkit.get([ref], timeout=-1) == [trainkit.get(ref)]  # without end, as in Ray
        for verb in (trainkit.put, trainkit.kill, lambda _: trainkit.cancel(1), lambda _: trainkit.remote(3)):
            with pytest.raises(TypeError):
                verb(ref)

    def test_older_words_for_a_call(self) -> None:
        assert trainkit.get(trainkit.remote(double)._remote(args=[2], num_cpus=1)) == 4
        assert trainkit.get(trainkit.remote(double)._remote((), {"value": 3})) == 6
        counter = trainkit.remote(Counter)._remote(kwargs={"start": 5}, num_cpus=0)
        assert trainkit.get(counter.add._remote([2])) == 7
        assert trainkit.get(counter.pair._remote(num_returns=2)) == ["count", 7]

    def test_calling_a_remote_directly_says_how(self) -> None:
        with pytest.raises(TypeError, match=r"\.remote\("):
            trainkit.remote(double)(1)
        with pytest.raises(AttributeError, match="no method 'missing'"):
            trainkit.remote(Counter).remote().missing.remote()

    @pytest.mark.parametrize(
        "call",
        [
            lambda: trainkit.remote(double).remote(),
            lambda: trainkit.remote(double).remote(1, 2),
            lambda: trainkit.remote(double).remote(valeu=1),
            lambda: trainkit.remote(Counter).remote(1, 2),
            lambda: trainkit.remote(Counter).remote().add.remote(1, 2),
            lambda: trainkit.remote(Counter).remote().add.remote(1, amount=2),
            lambda: trainkit.remote(Counter).remote().add.remote(amuont=2),
            lambda: trainkit.remote(Counter).remote().set.remote(),
            lambda: trainkit.remote(Counter).remote().set.remote(itens=[]),
        ],
    )
    def test_arguments_that_do_not_fit_are_refused_where_they_are_given(self, call: Any) -> None:
        with pytest.raises(TypeError):
            call()

    def test_a_coroutine_function_is_no_task(self) -> None:
        async def work() -> None:
            return

        with pytest.raises(ConfigError, match="async def"):
            trainkit.remote(work)

    def test_handles_to_one_actor_are_equal(self) -> None:
        one, other = trainkit.remote(Counter).remote(), trainkit.remote(Counter).remote()
        (again,) = trainkit.get(trainkit.put([one]))
        assert again == one
        assert hash(again) == hash(one)
        assert one != other

    def test_a_reference_has_a_name(self) -> None:
        one, other = trainkit.put(1), trainkit.put(1)
        assert one.hex() != other.hex()
        assert bytes.fromhex(one.hex()) == one.binary()

    def test_nothing_is_waited_for_at_once(self) -> None:
        assert trainkit.wait([]) == ([], [])

    def test_modules_of_the_working_directory_can_be_imported(self, tmp_path: Path) -> None:
        (tmp_path / "lies_here.py").write_text("VALUE = 6")

        def value() -> int:
            import lies_here  # type: ignore[import-not-found]

            return int(lies_here.VALUE)

        remote = trainkit.remote(runtime_env={"working_dir": str(tmp_path)})(value)
        assert trainkit.get(remote.remote()) == 6

    def test_get_and_wait_refuse_what_is_no_reference(self) -> None:
        ref: Any = trainkit.put(1)
        for verb, wrong in (
            (trainkit.get, 3),
            (trainkit.get, [3]),
            (trainkit.wait, ref),
            (trainkit.wait, [3]),
        ):
            with pytest.raises(ConfigError, match="takes references") as caught:
                verb(wrong)
            assert isinstance(caught.value, TypeError)
        with pytest.raises(ConfigError, match="same reference twice"):
            trainkit.wait([ref, ref])

    def test_wait_keeps_the_order_and_the_count(self) -> None:
        refs = [trainkit.put(i) for i in range(4)]
        ready, rest = trainkit.wait(refs, num_returns=3)
        assert (ready, rest) == (refs[:3], refs[3:])

    @pytest.mark.parametrize("size", [10, 200_000])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_arrays_arrive_equal_and_read_only(self, size: int, order: Any) -> None:
        array = np.asarray(np.arange(2 * size, dtype=np.float64).reshape(2, size), order=order)
        back = trainkit.get(trainkit.put({"array": array, "text": "beside"}))
        np.testing.assert_array_equal(back["array"], array)
        assert not back["array"].flags.writeable
        assert trainkit.get(trainkit.remote(lambda a: a.sum()).remote(array)) == array.sum()

    @pytest.mark.parametrize("dtype", ["datetime64[ns]", "O", "U3", "complex64", "bool"])
    def test_arrays_of_any_type(self, dtype: str) -> None:
        array = np.array([0, 1, 0], dtype="int64").astype(dtype)
        back = trainkit.get(trainkit.put(array))
        assert back.dtype == array.dtype
        assert (back == array).all()

    @pytest.mark.parametrize("size", [4, 100_000])
    def test_what_is_sent_is_a_copy_of_that_moment(self, size: int) -> None:
        array = np.ones(size)
        ref = trainkit.put(array)
        total = trainkit.remote(lambda a: float(a.sum())).remote(array)
        array[:] = 7
        assert trainkit.get(ref).sum() == size
        assert trainkit.get(total) == size

    @pytest.mark.parametrize("size", [4, 100_000])
    def test_a_tensor_is_the_readers_own(self, size: int) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.ones(size)
        ref = trainkit.put([tensor])
        trainkit.get(ref)[0].zero_()
        assert trainkit.get(ref)[0].sum() == size
        assert tensor.sum() == size

    def test_a_reference_may_be_copied_and_nested(self) -> None:
        ref = trainkit.put(np.ones(100_000))
        assert copy.deepcopy({"ref": ref})["ref"] is ref
        pending = trainkit.remote(double).remote(2)
        (again,) = trainkit.get(trainkit.put([pending]))
        assert trainkit.get(again) == 4
        assert trainkit.get(ref).sum() == 100_000

    def test_an_application_of_fastapi_travels(self) -> None:
        fastapi = pytest.importorskip("fastapi")
        app = fastapi.FastAPI()
        app.state.value = 3
        assert trainkit.get(trainkit.put(app)).state.value == 3
        assert trainkit.get(trainkit.remote(lambda made: made.state.value).remote(app)) == 3

    def test_an_error_of_pydantic_1_keeps_its_class(self) -> None:
        v1 = pytest.importorskip("pydantic.v1")

        class Model(v1.BaseModel):  # type: ignore[misc, name-defined]
            value: int

        with pytest.raises(v1.ValidationError) as caught:
            trainkit.get(trainkit.remote(lambda: Model(value="many")).remote())
        assert caught.value.errors()[0]["loc"] == ("value",)

    def test_a_list_that_holds_itself_travels(self) -> None:
        items: list[Any] = [1]
        items.append(items)
        back = trainkit.get(trainkit.put(items))
        assert back[1] is back

    def test_a_request_that_no_bundle_could_hold_is_refused(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 1}])
        with pytest.raises(InfeasibleError, match="2 CPU can never be met in this placement group"):
            trainkit.remote(double).options(num_cpus=2, placement_group=group)
        assert group.wait(30)
        trainkit.remove_placement_group(group)

    def test_a_placement_group_is_seen_from_inside(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"cpu": 1}])
        assert group.wait(10)
        assert trainkit.get(group.ready()) is None

        class Member:
            def bundles(self) -> Any:
                current = trainkit.get_current_placement_group()
                return current and current.bundle_specs

        options = {"placement_group": group, "placement_group_bundle_index": 1, "num_cpus": 1}
        member = trainkit.remote(Member).options(**options).remote()
        assert trainkit.get(member.bundles.remote()) == [{"CPU": 1}, {"CPU": 1}]
        trainkit.remove_placement_group(group)
        assert trainkit.get_current_placement_group() is None

    def test_resources_are_told(self) -> None:
        assert trainkit.cluster_resources()["CPU"] == 4
        assert trainkit.available_resources()["CPU"] <= 4

    @needs("placement")
    def test_a_resource_that_is_used_up_is_not_among_the_available(self) -> None:
        group = trainkit.placement_group([{"CPU": 4}])
        assert group.wait(60)
        assert eventually(lambda: "CPU" not in trainkit.available_resources())
        trainkit.remove_placement_group(group)
        assert eventually(lambda: trainkit.available_resources().get("CPU") == 4)

    @needs("isolation")
    def test_the_object_store_is_a_resource(self) -> None:
        whole = trainkit.cluster_resources()["object_store_memory"]
        ref = trainkit.put(np.zeros(8 << 20, np.uint8))
        assert eventually(lambda: trainkit.available_resources()["object_store_memory"] <= whole - (8 << 20))
        assert trainkit.get(ref).size == 8 << 20

    def test_a_killed_actor_says_so(self) -> None:
        counter = trainkit.remote(Counter).remote()
        trainkit.get(counter.add.remote())
        trainkit.kill(counter)
        trainkit.kill(counter)
        with pytest.raises(trainkit.errors.ActorDiedError, match="kill"):
            trainkit.get(counter.add.remote())

    def test_initializing_twice_is_refused(self) -> None:
        with pytest.raises(RuntimeError):
            trainkit.init()
        with pytest.raises(ConfigError, match="already running"):
            trainkit.init()
        trainkit.init(ignore_reinit_error=True)

    def test_a_timeout_leaves_the_result_to_come(self) -> None:
        ref = trainkit.put(1)
        assert trainkit.get(ref, timeout=0) == 1
        assert issubclass(GetTimeoutError, TimeoutError)
