"""What every engine keeps: run by tests/runtime/test_engines.py on each of them."""

from __future__ import annotations

import copyreg
import pickle
import threading
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.suites.parts import Keeper
from trainkit.errors import (
    ArgumentTypeError,
    ConfigError,
    SerializationError,
    TaskError,
    message_of,
)
from trainkit.plugins.testing import engine
from trainkit.plugins.testing.engine import Counter, api, double


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


class Filed(FileNotFoundError):
    def __init__(self, name: str) -> None:
        super().__init__(2, "No such file", name)


class OwnNames(Exception):
    """Has attributes that errors of other processes have, too."""

    function_name = "mine"

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.pid = self.error_msg = pid


class FailsToStart:
    def __init__(self) -> None:
        raise OwnNames(7)

    def call(self) -> None:
        pass


class Ringed(Exception):
    """Refers to another, which refers to it."""

    def __init__(self, code: int, other: Ringed | None = None) -> None:
        super().__init__(f"code {code}")
        self.code, self.seen = code, {"other": other or Ringed(code + 1, self)}


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


class Described(Exception):
    def __init__(self, *words: str) -> None:
        super().__init__(*words)


class Registered(Coded):
    """Travels as `copyreg` says."""


class Unreadable:
    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __reduce__(self) -> Any:
        return _note_and_fail, (self.notes,)


def _note_and_fail(notes: Path) -> None:
    with notes.open("a") as file:
        file.write("x")
    raise ValueError("not to be read")


def raise_(error: Exception) -> None:
    raise error


WRONG_OPTIONS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    # what is remote, its options, the error and its text
    (double, {"num_cpu": 1}, ConfigError, "unknown option num_cpu;.*Did you mean 'num_cpus'"),
    (double, {"accelerator_type": "A100"}, ConfigError, r"resources=\{'A100': 1\}"),
    (
        double,
        {"accelerator_type": "A100", "num_cpu": 1},
        ConfigError,
        "resources=.*; the options are .*num_cpus",
    ),
    (double, {"max_pending_calls": 9}, ConfigError, r"wait\(refs, num_returns=1\) before the next call"),
    (double, {"num_cpus": -1}, ConfigError, "negative"),
    (double, {"num_gpus": 1.5}, ConfigError, "whole GPUs"),
    (double, {"num_returns": -1}, ConfigError, "num_returns must be .* not -1"),
    (double, {"num_returns": "many"}, ConfigError, "num_returns must be .* not 'many'"),
    (double, {"resources": {"GPU": 1}}, ConfigError, "num_gpus"),
    (double, {"env": {"A": 1}}, ConfigError, "must be strings"),
    (double, {"max_retries": -2}, ConfigError, "max_retries must be .* not -2"),
    (double, {"max_calls": -1}, ConfigError, "max_calls must be .* not -1"),
    (double, {"retry_exceptions": ["KeyError"]}, ConfigError, "list of classes"),
    (double, {"max_restarts": 1}, ConfigError, "only remote classes have the option max_restarts"),
    (double, {"runtime_env": {"pip": ["numpy"]}}, ConfigError, "pip"),
    (double, {"runtime_env": {"working_dir": "/no/such/folder"}}, ConfigError, "not a folder"),
    (double, {"num_cpus": "2"}, TypeError, "CPU"),
    (double, {"resources": ["a"]}, TypeError, "resources"),
    (double, {"name": 1}, TypeError, "name"),
    (double, {"max_retries": "a"}, TypeError, "max_retries"),
    (double, {"max_calls": 1.5}, TypeError, "max_calls"),
    (double, {"num_returns": "x"}, TypeError, "num_returns"),
    (double, {"retry_exceptions": 3}, TypeError, "retry_exceptions"),
    (double, {"scheduling_strategy": 4}, TypeError, "scheduling_strategy"),
    (double, {"runtime_env": 3}, TypeError, "runtime_env"),
    (Counter, {"name": ""}, ConfigError, "name must not be an empty string"),
    (Counter, {"get_if_exists": True}, ConfigError, "needs a name"),
    (Counter, {"lifetime": "for ever"}, ConfigError, "'detached'"),
    (Counter, {"max_concurrency": 0}, ConfigError, "max_concurrency must be .* not 0"),
    (Counter, {"concurrency_groups": 3}, ConfigError, "concurrency_groups must .* not 3"),
    (Counter, {"get_if_exists": 3}, ConfigError, "get_if_exists must .* not 3"),
    (Counter, {"namespace": 1}, ConfigError, "namespace must be a string, not 1"),
    (Counter, {"max_restarts": -2}, ConfigError, "max_restarts must be .* not -2"),
    (Counter, {"max_task_retries": -2}, ConfigError, "max_task_retries must be .* not -2"),
    (Counter, {"num_returns": 2}, ConfigError, "only remote functions have the option num_returns"),
]

WRONG_CALLS: list[tuple[Callable[[Any], Any], tuple[type[Exception], ...], str]] = [
    # what is called with a reference, the classes of the error, and its text
    (lambda ref: trainkit.get_actor(None), (ValueError,), r"get_actor\(None\)"),  # type: ignore[arg-type]
    (lambda ref: trainkit.get_actor("nobody"), (ConfigError,), "nobody"),
    (lambda ref: trainkit.exit_actor(), (TypeError, ConfigError), r"exit_actor\(\)"),
    (lambda ref: trainkit.get(api.remote(trainkit.exit_actor).remote()), (ConfigError,), "actor"),
    (lambda ref: api.wait([ref], num_returns="1"), (TypeError,), "num_returns"),
    (lambda ref: api.wait([ref], num_returns=2), (ConfigError,), "num_returns=2"),
    (lambda ref: api.wait([ref], timeout="1"), (TypeError,), "timeout"),
    (lambda ref: api.wait([ref], timeout=-1), (ValueError,), "timeout=-1"),
    (lambda ref: api.wait([ref, ref]), (ConfigError,), "same reference twice"),
    (api.wait, (ConfigError, TypeError), r"takes a list of references: give wait\(\[ref\]\)"),
    (lambda ref: api.wait([3]), (ConfigError, TypeError), "takes references"),
    (lambda ref: api.get(3), (ConfigError, TypeError), "takes references"),
    (lambda ref: api.get([3]), (ConfigError, TypeError), "takes references"),
    (
        lambda ref: api.get(ref, timeout="soon"),
        (ConfigError, TypeError),
        r"get\(timeout='soon'\): give seconds",
    ),
    (trainkit.put, (ConfigError, TypeError), "reference"),
    (trainkit.kill, (ConfigError, TypeError), "handle"),
    (lambda ref: api.cancel("ref"), (ConfigError, TypeError), "takes a reference"),
    (lambda ref: api.cancel(counter().add.remote(), force=True), (ConfigError,), "force"),
    (lambda ref: api.remote(3), (TypeError,), "a function or a class, not 3"),
    (lambda ref: api.remote(asynchronous), (ConfigError,), "async def"),
    (lambda ref: api.remote(double)(1), (TypeError,), r"\.remote\("),
    (lambda ref: types.new_class("More", (api.remote(Counter),)), (TypeError,), "extend the plain class"),
    (lambda ref: counter().pear.remote(), (AttributeError,), r"no method 'pear'\. Did you mean 'pair'\?"),
    # arguments that do not fit are refused where they are given
    (lambda ref: api.remote(double).remote(), (TypeError,), "missing a required argument: 'value'"),
    (lambda ref: api.remote(double).remote(1, 2), (TypeError,), "too many positional arguments"),
    (lambda ref: api.remote(double).remote(valeu=1), (TypeError,), "missing a required argument: 'value'"),
    (lambda ref: api.remote(Counter).remote(1, 2), (TypeError,), "too many positional arguments"),
    (lambda ref: counter().add.remote(1, 2), (TypeError,), "too many positional arguments"),
    (lambda ref: counter().add.remote(1, amount=2), (TypeError,), "multiple values for argument 'amount'"),
    (lambda ref: counter().add.remote(amuont=2), (TypeError,), "unexpected keyword argument 'amuont'"),
    (lambda ref: counter().set.remote(), (TypeError,), "missing a required argument: 'items'"),
    (lambda ref: counter().set.remote(itens=[]), (TypeError,), "missing a required argument: 'items'"),
]


async def asynchronous() -> None:
    """Do nothing."""


def counter() -> Any:
    return api.remote(Counter).remote()


class EngineSuite(engine.EngineSuite):
    """The shipped suite, and further promises; every test uses the public verbs alone."""

    def test_an_error_is_also_what_was_raised(self) -> None:
        with pytest.raises(LookupError, match="nothing here") as caught:
            trainkit.get(trainkit.remote(Counter).remote().fail.remote())
        assert isinstance(caught.value, TaskError)
        assert 'raise LookupError("nothing here")' in caught.value.remote_traceback
        assert "Counter.fail" in caught.value.remote_traceback
        assert type(caught.value.cause) is LookupError
        error: Any = caught.value
        assert error.traceback_str == error.remote_traceback
        assert error.function_name == "Counter.fail" and isinstance(error.pid, int | None)
        assert error.as_instanceof_cause() is error

    @pytest.mark.parametrize(
        ("function", "expected", "text"),
        [
            (lambda: raise_(TwoArguments(7, "seven")), TwoArguments, "seven"),
            (lambda: raise_(Slotted(7)), Slotted, "code 7"),
            (lambda: raise_(Unprintable()), TaskError, "its __str__ raises"),
            (lambda: raise_(ValueError("locked", threading.Lock())), ValueError, "locked"),
        ],
    )
    def test_awkward_exceptions_survive(self, function: Any, expected: type[Exception], text: str) -> None:
        with pytest.raises(expected) as caught:
            trainkit.get(trainkit.remote(function).remote())
        assert isinstance(caught.value, TaskError)
        assert text in f"{caught.value} {caught.value.remote_traceback}"

    @pytest.mark.parametrize("way", ["put", "returned", "given", "in an actor"])
    @pytest.mark.parametrize("error", [TwoArguments(7, "seven"), Slotted(7), Filed("a.txt")])
    def test_exceptions_are_values_too(self, error: Any, way: str) -> None:
        error.__notes__ = ["a note"]
        if way == "put":
            (found,) = trainkit.get(trainkit.put([error]))
        elif way == "in an actor":
            found = trainkit.get(trainkit.remote(Keeper).remote(error).get.remote())
        else:
            same = trainkit.remote(lambda value: value).remote(error if way == "given" else [error])
            found = trainkit.get(same) if way == "given" else trainkit.get(same)[0]
        assert type(found) is type(error)
        for name in ("args", "code", "filename", "errno", "__notes__"):
            assert getattr(found, name, None) == getattr(error, name, None), name
        assert str(found) == str(error)

    def test_exceptions_are_whole_beside_tblib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        support = pytest.importorskip("tblib.pickling_support", reason="Dask brings it along")
        monkeypatch.setitem(copyreg.dispatch_table, types.TracebackType, support.pickle_traceback)
        for kind in (Slotted, Coded):
            monkeypatch.setitem(copyreg.dispatch_table, kind, support.pickle_exception)
        assert trainkit.get(trainkit.put(Slotted(7))).code == 7
        try:
            raise Coded(8) from KeyError("cause")
        except Coded as error:
            found = trainkit.get(trainkit.put(error))
        assert (found.code, str(found.__cause__)) == (8, "'cause'"), "tblib keeps the cause"

    def test_exceptions_may_refer_to_one_another(self) -> None:
        found = trainkit.get(trainkit.put(Ringed(1)))
        other = found.seen["other"]
        assert (str(found), str(other), other.code) == ("code 1", "code 2", 2)
        assert other.seen["other"] is found
        with pytest.raises(Ringed, match="code 1") as caught:
            trainkit.get(trainkit.remote(raise_).remote(Ringed(1)))
        assert caught.value.seen["other"].code == 2

    def test_exceptions_travel_as_copyreg_says(self) -> None:
        copyreg.pickle(Registered, lambda error: (Registered, (error.code + 1,)))  # type: ignore[arg-type, return-value]
        assert trainkit.get(trainkit.put(Registered(1))).code == 2
        copyreg.pickle(Described, BaseException.__reduce__)  # type: ignore[arg-type]
        assert trainkit.get(trainkit.put(Described("a", "b"))).args == ("a", "b")

    @pytest.mark.parametrize("way", ["put", "returned", "given"])
    def test_a_value_that_cant_be_read_says_why(self, way: str, tmp_path: Path) -> None:
        value = Unreadable(tmp_path / "notes")
        with pytest.raises(
            SerializationError,
            match=r"cannot be unpickled.*not to be read.*Give the value's class a __reduce",
        ) as caught:
            if way == "put":
                trainkit.get(trainkit.put([value]))
            elif way == "given":
                trainkit.get(trainkit.remote(id).remote(value))
            else:
                trainkit.get(trainkit.remote(lambda: {"a": value}).remote())
        assert "Path" not in message_of(caught.value), "names a class that is not at fault"
        if way == "put":
            assert value.notes.read_text() == "x", "what makes the value ran more than once"

    @pytest.mark.parametrize(
        "error",
        [
            KeyError("key"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            MemoryError("too large"),
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

    @pytest.mark.parametrize(
        ("error", "nested"),
        [(ValueError("bad", 7), False), (SyntaxError("bad"), True), (KeyError("bad"), True)],
    )
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

    def test_an_error_of_trainkit_is_told_once_however_many_calls_it_passes(self) -> None:
        def wrong() -> None:
            trainkit.get(3)  # type: ignore[call-overload]

        def outer() -> None:
            trainkit.get(trainkit.remote(wrong).remote())

        with pytest.raises(ArgumentTypeError, match=r"\(\), not 3") as caught:
            trainkit.get(trainkit.remote(outer).remote())
        printed = "".join(traceback.format_exception(caught.value))
        assert printed.count("in wrong\n") == 1
        assert printed.count("The above exception was the direct cause") <= 1

    def test_an_error_keeps_attributes_that_errors_of_calls_have_too(self) -> None:
        for ref in (
            trainkit.remote(raise_).remote(OwnNames(7)),
            trainkit.remote(FailsToStart).remote().call.remote(),
        ):
            with pytest.raises(OwnNames) as caught:
                trainkit.get(ref)
            assert (caught.value.pid, caught.value.error_msg) == (7, 7)
        with pytest.raises(OwnNames) as caught:
            trainkit.get(trainkit.remote(raise_).remote(OwnNames(7)))
        assert caught.value.function_name == "mine"

    @pytest.mark.parametrize(
        "values", [(1, 2), [1], (each for each in (1, 2))], ids=["more", "less", "yielded"]
    )
    def test_a_wrong_number_of_results_is_the_functions_error(self, values: Any) -> None:
        given = list(values)
        function = (lambda: (each for each in given)) if len(given) == 2 else (lambda: given)
        refs = trainkit.remote(num_returns=3)(function).remote()
        with pytest.raises(ValueError, match="num_returns=3") as caught:
            trainkit.get(refs[-1])
        assert isinstance(caught.value, TaskError)

    @pytest.mark.parametrize(("what", "options", "error", "text"), WRONG_OPTIONS)
    def test_wrong_options_are_refused(
        self, what: Any, options: dict[str, Any], error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error, match=text) as caught:
            trainkit.remote(what).options(**options)
        assert isinstance(caught.value, ConfigError)

    @pytest.mark.parametrize(("call", "errors", "text"), WRONG_CALLS)
    def test_wrong_calls_are_refused(self, call: Any, errors: Any, text: str) -> None:
        with pytest.raises(errors[0], match=text) as caught:
            call(trainkit.put(1))
        assert all(isinstance(caught.value, error) for error in errors)

    def test_a_negative_timeout_of_get_has_no_end_as_in_ray(self) -> None:
        assert trainkit.get([trainkit.put(1)], timeout=-1) == [1]

    def test_older_words_for_a_call(self) -> None:
        assert trainkit.get(trainkit.remote(double)._remote(args=[2], num_cpus=1)) == 4
        assert trainkit.get(trainkit.remote(double)._remote((), {"value": 3})) == 6
        counter = trainkit.remote(Counter)._remote(kwargs={"start": 5}, num_cpus=0)
        assert trainkit.get(counter.add._remote([2])) == 7
        assert trainkit.get(counter.pair._remote(num_returns=2)) == ["count", 7]

    @pytest.mark.parametrize("size", [4, 100_000])
    def test_a_tensor_is_the_readers_own(self, size: int) -> None:
        torch = pytest.importorskip("torch")
        tensor = torch.ones(size)
        ref = trainkit.put([tensor])
        trainkit.get(ref)[0].zero_()
        assert trainkit.get(ref)[0].sum() == size
        assert tensor.sum() == size

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

    def test_initializing_twice_is_refused(self) -> None:
        with pytest.raises(RuntimeError):
            trainkit.init()
        with pytest.raises(ConfigError, match="already running"):
            trainkit.init()
        trainkit.init(ignore_reinit_error=True)

    def test_the_id_of_a_reference_is_there_as_text_and_as_bytes(self) -> None:
        refs = [trainkit.remote(abs).remote(number) for number in range(64)]  # some begin with a zero
        assert [bytes.fromhex(ref.hex()) for ref in refs] == [ref.binary() for ref in refs]
        assert {ref.size() for ref in refs} == {len(refs[0].binary())}
        assert not any(ref.is_nil() for ref in refs)
