"""What every engine keeps of calls: several results, streams, awaiting, late and cancelled calls, retries."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.suites.engine_actors import is_known
from tests.suites.parts import (
    SOON_S,
    Courier,
    Keeper,
    await_file,
    cancel_first,
    descend,
    endless,
    fail_until,
    made,
    note,
    note_late,
    numbers,
    numbers_behind,
    sleep_and_clean_up,
    start_and_wait_for,
    start_one_that_sleeps,
    started_with,
    surroundings,
    wait_for,
)
from trainkit.errors import (
    ActorDiedError,
    ConfigError,
    GetTimeoutError,
    InfeasibleError,
    TaskCancelledError,
    TaskError,
)
from trainkit.plugins.testing.engine import Suite, lacks, needs
from trainkit.runtime.refs import ObjectRefGenerator


def _same(value: Any) -> Any:
    return value


class CallSuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone."""

    # arguments and results

    def test_wait_on_thousands(self, tmp_path: Path) -> None:
        """Of tasks in turn, of calls of one actor, and of one that comes late."""

        class Echo:
            def same(self, value: int) -> int:
                return value

        half = 100 if self.engine == "ray" else 700  # Ray takes a second for some hundred tasks
        count = 2 * half
        actor, late = trainkit.remote(Echo).remote(), tmp_path / "late"
        same = trainkit.remote(num_cpus=0.5)(_same)
        refs = [same.remote(number) for number in range(half)]
        refs += [actor.same.remote(number) for number in range(half, count)]
        ready, pending = trainkit.wait(refs, num_returns=count, timeout=SOON_S)
        assert (ready, pending) == (refs, [])
        assert trainkit.get(ready) == list(range(count))
        assert trainkit.wait(refs, num_returns=half, timeout=0) == (refs[:half], refs[half:])
        if self.engine != "inline":  # there nothing is late
            slow = trainkit.remote(num_cpus=0)(wait_for).remote(late)
            refs = [slow, *(same.remote(number) for number in range(count))]
            ready, pending = trainkit.wait(refs, num_returns=count, timeout=SOON_S)
            assert (ready, pending) == (refs[1:], [slow])
            assert trainkit.wait(refs, num_returns=count + 1, timeout=0.05)[1] == [slow]
            late.touch()
            assert trainkit.get(slow, timeout=SOON_S) == "waited"

    # whoever owes a result and is done

    def test_tasks_that_return_references_to_tasks_of_their_own(self) -> None:
        value = descend(6, SESSION_CPUS)
        while isinstance(value, trainkit.ObjectRef):
            value = trainkit.get(value, timeout=SOON_S)
        assert value == "bottom"

    def test_a_task_whose_process_ends_keeps_what_it_owes(self, tmp_path: Path) -> None:
        go = self.go_after_maker(tmp_path)
        (ref,) = trainkit.get(trainkit.remote(max_calls=1)(started_with).remote(7, go))
        trainkit.get(trainkit.remote(max_calls=1)(os.getpid).remote())  # by now the maker could have ended
        go.touch()
        assert trainkit.get(ref, timeout=SOON_S) == 7

    def test_an_actor_whose_last_handle_is_gone_keeps_what_it_owes(self, tmp_path: Path) -> None:
        go = self.go_after_maker(tmp_path)
        actor = trainkit.remote(Keeper).options(name="owes").remote(7)
        (ref,) = trainkit.get(actor.started.remote(go))
        del actor
        assert eventually(lambda: not is_known("owes"))
        go.touch()
        assert trainkit.get(ref, timeout=SOON_S) == 7

    def test_an_actor_that_a_task_has_made_outlives_the_process_of_the_task(self) -> None:
        pid, actor = trainkit.get(trainkit.remote(max_calls=1)(made).remote(7))
        if self.engine == "local":  # inline it is this process, and Ray keeps it as long as the actor
            assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))
        assert trainkit.get(actor.get.remote(), timeout=SOON_S) == 7

    @needs("near")
    def test_a_task_that_nobody_has_a_reference_to_is_run(self, tmp_path: Path) -> None:
        noted, go = tmp_path / "noted", self.go_after_maker(tmp_path)
        trainkit.get(trainkit.remote(max_calls=1)(note_late).remote(noted, go))
        go.touch()
        assert eventually(noted.exists)

    def go_after_maker(self, folder: Path) -> Path:
        """A file that a task waits for; there already where a call ends before it has a reference."""
        go = folder / "go"
        if self.engine == "inline":
            go.touch()
        return go

    def test_a_call_that_is_given_a_failure_fails_with_it(self) -> None:
        failing = trainkit.remote(fail_until).options(max_retries=0)
        ref = failing.remote(Path(os.devnull), 1, LookupError("nothing here"))
        with pytest.raises(LookupError, match="nothing here"):
            trainkit.get(trainkit.remote(lambda value: value).remote(ref))
        with pytest.raises(LookupError, match="nothing here"):
            trainkit.get(trainkit.remote(Keeper).remote(ref).get.remote())

    def test_variables_and_folder_are_what_was_asked_for(self, tmp_path: Path) -> None:
        here = os.getcwd()
        folder = str(tmp_path.resolve())
        seen = trainkit.remote(surroundings)
        assert trainkit.get(seen.remote("SUITE_A")) == (None, here)
        assert trainkit.get(seen.options(env={"SUITE_A": "1"}).remote("SUITE_A")) == ("1", here)
        asked = {"env_vars": {"SUITE_A": "2"}, "working_dir": folder}
        assert trainkit.get(seen.options(runtime_env=asked).remote("SUITE_A")) == ("2", folder)
        assert (os.environ.get("SUITE_A"), os.getcwd()) == (None, here)

    # several results

    @pytest.mark.parametrize("how", ["task", "method", "async method"])
    def test_a_generator_gives_several_results(self, how: str) -> None:
        assert trainkit.get(self.results(how, 3, 3)) == [0, 1, 2]
        assert trainkit.get(self.results(how, 2, 3)) == [0, 1], "the rest is not asked for"

    @pytest.mark.parametrize("how", ["task", "async method"])
    def test_the_first_results_of_a_generator_are_there_if_a_later_one_is_not(self, how: str) -> None:
        first, second, third, fourth = self.results(how, 4, 4, 2)
        assert trainkit.get([first, second]) == [0, 1]
        for ref in (third, fourth):
            with pytest.raises(LookupError, match="no number 2"):
                trainkit.get(ref)
        first, missing = self.results(how, 2, 1)
        assert trainkit.get(first) == 0
        with pytest.raises(ValueError, match="num_returns=2") as raised:
            trainkit.get(missing)
        assert "trainkit/runtime" not in str(raised.value), "frames of trainkit"

    @pytest.mark.parametrize("how", ["task", "method", "async method"])
    def test_a_call_without_results(self, how: str, tmp_path: Path) -> None:
        if how == "task":
            assert trainkit.remote(num_returns=0)(note).remote(tmp_path / "noted") is None
        else:
            actor = trainkit.remote(Keeper if how == "method" else Courier).remote()
            assert actor.note.options(num_returns=0).remote(tmp_path / "noted") is None
            trainkit.get(actor.note.remote(tmp_path / "other"))
        assert eventually((tmp_path / "noted").exists, SOON_S)

    @pytest.mark.parametrize("how", ["task", "async method"])
    def test_one_reference_to_as_many_results_as_there_are(self, how: str) -> None:
        if (self.engine, how) == ("ray", "async method"):  # Ray has it for plain generators alone
            with pytest.raises(ValueError, match="must return a generator"):
                trainkit.get(self.results(how, "dynamic", 3))
            return
        values = trainkit.get(self.results(how, "dynamic", 3))
        assert len(values) == 3
        assert [trainkit.get(ref) for ref in values] == [0, 1, 2]
        assert list(values) == []
        first, second, last = trainkit.get(self.results(how, "dynamic", 4, 2))
        assert trainkit.get([first, second]) == [0, 1]
        with pytest.raises(LookupError, match="no number 2"):
            trainkit.get(last)

    def test_such_a_reference_is_an_argument_as_others(self) -> None:
        total = trainkit.remote(lambda refs: sum(trainkit.get(list(refs))))
        assert trainkit.get(total.remote(self.results("task", "dynamic", 4))) == 6

    def results(self, how: str, num_returns: Any, *args: Any) -> Any:
        if how == "task":
            return trainkit.remote(num_returns=num_returns)(numbers).remote(*args)
        actor = trainkit.remote(Keeper if how == "method" else Courier).remote()
        return actor.numbers.options(num_returns=num_returns).remote(*args)

    # streams

    @pytest.mark.parametrize("how", ["task", "method", "async method"])
    def test_a_generator_hands_out_its_values_one_by_one(self, how: str) -> None:
        stream = self.stream(how, 3)
        assert isinstance(stream, ObjectRefGenerator)
        assert [trainkit.get(ref) for ref in stream] == [0, 1, 2]
        with pytest.raises(StopIteration):
            next(stream)
        assert trainkit.get(stream.completed()) is None
        assert list(self.stream(how, 0)) == []
        assert repr(stream) == f"ObjectRefGenerator({stream.completed().hex()})"

    def test_an_error_in_the_middle_is_the_last_reference(self) -> None:
        first, second, last, *more = self.stream("method", 4, 2)
        assert trainkit.get([first, second]) == [0, 1]
        with pytest.raises(LookupError, match="no number 2") as caught:
            trainkit.get(last)
        assert isinstance(caught.value, TaskError)
        assert not more

    @needs("verdicts")
    def test_the_end_of_a_failing_stream_fails(self) -> None:
        stream = trainkit.remote(numbers).remote(4, 2)
        with pytest.raises(LookupError, match="no number 2"):
            trainkit.get(stream.completed())
        assert len(list(stream)) == 3, "what it yielded is still there"

    @lacks("verdicts")
    def test_the_end_of_a_failing_stream_tells_only_that_it_ended(self) -> None:
        stream = trainkit.remote(numbers).remote(4, 2)
        assert trainkit.get(stream.completed()) is None
        assert len(list(stream)) == 3

    def test_what_cannot_be_called_gives_a_stream_of_one_failure(self) -> None:
        (ref,) = trainkit.remote(numbers).remote("no number")
        with pytest.raises(TypeError):
            trainkit.get(ref)
        actor = trainkit.remote(Keeper).remote()
        trainkit.get(actor.get.remote())
        trainkit.kill(actor)
        (ref,) = actor.numbers.remote(3)
        with pytest.raises(ActorDiedError):
            trainkit.get(ref)

    def test_streamed_references_are_references_as_others(self) -> None:
        squares = [trainkit.remote(lambda n: n * n).remote(ref) for ref in trainkit.remote(numbers).remote(4)]
        assert trainkit.get(squares) == [0, 1, 4, 9]

    def test_large_values_are_streamed(self) -> None:
        def arrays() -> Any:
            for size in (10, 200_000):
                yield np.ones(size)

        assert [trainkit.get(ref).sum() for ref in trainkit.remote(arrays).remote()] == [10, 200_000]

    def test_a_stream_is_read_on_an_event_loop(self) -> None:
        async def main() -> list[int]:
            return [await ref async for ref in self.stream("async method", 3)]

        assert asyncio.run(main()) == [0, 1, 2]

    def test_an_actor_goes_on_behind_a_stream(self) -> None:
        actor = trainkit.remote(Keeper).remote("kept")
        assert len(list(actor.numbers.remote(5))) == 5
        assert trainkit.get(actor.get.remote()) == "kept"

    def stream(self, how: str, *args: Any) -> Any:
        if how == "task":
            return trainkit.remote(numbers).remote(*args)
        return trainkit.remote(Keeper if how == "method" else Courier).remote().numbers.remote(*args)

    # waiting on an event loop

    def test_references_are_awaited(self) -> None:
        double = trainkit.remote(lambda value: 2 * value)
        courier = trainkit.remote(Courier).remote()

        async def main() -> Any:
            first = await double.remote(1)
            rest = await asyncio.gather(*(double.remote(number) for number in range(5)))
            with pytest.raises(LookupError, match="nothing here"):
                await courier.fail.remote()
            return first, rest, await trainkit.put("kept"), await courier.post.remote(1)

        assert asyncio.run(main()) == (2, [0, 2, 4, 6, 8], "kept", 1)

    def test_a_reference_has_a_future(self) -> None:
        ref = trainkit.remote(lambda: 5).remote()
        assert ref.future().result(timeout=SOON_S) == 5
        assert ref.future().result(timeout=SOON_S) == 5
        failing = trainkit.remote(Courier).remote().fail.remote().future()
        assert isinstance(failing.exception(timeout=SOON_S), LookupError)

    def test_a_callback_of_a_future_may_use_the_verbs(self) -> None:
        double = trainkit.remote(lambda value: 2 * value)
        keeper = trainkit.remote(Keeper).remote(3)
        found: Future[int] = Future()

        def go_on(future: Future[int]) -> None:
            value = double.remote(double.remote(future.result()))
            found.set_result(trainkit.get(value) + trainkit.get(keeper.get.remote()))

        double.remote(1).future().add_done_callback(go_on)
        assert found.result(timeout=SOON_S) == 11

    @needs("background")
    def test_an_event_loop_goes_on_while_a_reference_is_awaited(self, tmp_path: Path) -> None:
        async def main() -> str:
            waiting = asyncio.ensure_future(_awaited(trainkit.remote(wait_for).remote(tmp_path / "go")))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            (tmp_path / "go").touch()
            return await asyncio.wait_for(waiting, SOON_S)

        assert asyncio.run(main()) == "waited"

    # waiting for the next of a stream

    @needs("background")
    def test_a_generator_is_done_while_its_next_reference_is_there(self, tmp_path: Path) -> None:
        stream = trainkit.remote(numbers_behind).remote(tmp_path / "go")
        other = trainkit.put("other")
        assert trainkit.wait([stream, other], num_returns=2, timeout=0.05) == ([other], [stream])
        (tmp_path / "go").touch()
        assert trainkit.wait([stream], timeout=SOON_S) == ([stream], [])
        assert trainkit.get(next(stream)) == 0
        assert trainkit.wait([stream, other], num_returns=2, timeout=SOON_S) == ([stream, other], [])
        with pytest.raises(ConfigError, match="the same reference twice"):
            trainkit.wait([stream, stream])
        with pytest.raises(StopIteration):
            next(stream)

    @lacks("background")
    def test_the_next_of_a_stream_is_there_when_it_is_asked_for(self) -> None:
        stream = trainkit.remote(numbers).remote(1)
        assert trainkit.wait([stream], timeout=0) == ([stream], [])
        assert trainkit.get(next(stream)) == 0

    # references by hand

    def test_a_reference_that_is_pickled_by_hand_takes_its_value_along(self) -> None:
        ref = trainkit.remote(_same).remote(np.arange(200_000))
        data = cloudpickle.dumps({"ref": ref})
        assert trainkit.get(ref)[-1] == trainkit.get(pickle.loads(data)["ref"])[-1] == 199_999
        read = trainkit.remote(lambda data: trainkit.get(pickle.loads(data)["ref"]).sum())
        assert trainkit.get(read.remote(data)) == 199_999 * 100_000

    # what can never run

    @needs("near")
    @pytest.mark.parametrize("count", [1, 2])
    def test_a_task_that_can_never_run_fails_with_the_reason(self, count: int) -> None:
        task = trainkit.remote(_same).options(num_cpus=SESSION_CPUS + 1, num_returns=count)
        refs = task.remote(1) if count > 1 else [task.remote(1)]
        for ref in refs:
            with pytest.raises(InfeasibleError, match="not enough CPU"):
                trainkit.get(ref, timeout=SOON_S)
        (failed,) = trainkit.remote(numbers).options(num_cpus=SESSION_CPUS + 1).remote(1)
        with pytest.raises(InfeasibleError, match="not enough CPU"):
            trainkit.get(failed, timeout=SOON_S)

    # what is late

    @needs("background")
    def test_what_is_not_there_in_time_comes_later(self, tmp_path: Path) -> None:
        ref = trainkit.remote(wait_for).remote(tmp_path / "go")
        with pytest.raises(GetTimeoutError):
            trainkit.get(ref, timeout=0.05)
        assert trainkit.wait([ref], timeout=0.05) == ([], [ref])
        (tmp_path / "go").touch()
        assert trainkit.wait([ref], timeout=SOON_S) == ([ref], [])
        assert trainkit.get(ref, timeout=SOON_S) == "waited"

    @lacks("background")
    def test_a_call_has_finished_when_its_reference_exists(self, tmp_path: Path) -> None:
        (tmp_path / "go").touch()
        ref = trainkit.remote(wait_for).remote(tmp_path / "go")
        assert trainkit.wait([ref], timeout=0) == ([ref], [])
        assert trainkit.get(ref, timeout=0) == "waited"

    # cancelling

    def test_what_is_done_stays_done(self) -> None:
        ref, failed = trainkit.remote(lambda: 5).remote(), trainkit.remote(lambda: 1 // 0).remote()
        trainkit.wait([ref, failed], num_returns=2)
        trainkit.cancel(ref)
        trainkit.cancel(failed)
        assert trainkit.get(ref) == 5
        with pytest.raises(ZeroDivisionError):
            trainkit.get(failed)

    def test_a_cancel_in_the_moment_a_result_is_there_changes_nothing(self) -> None:
        five = trainkit.remote(lambda: 5)
        for _ in range(200):  # Ray alone aborts the driver within a few dozen
            ref = five.remote()
            trainkit.wait([ref])
            trainkit.cancel(ref)
            assert trainkit.get(ref) == 5

    @needs("background")
    def test_a_running_task_is_stopped_and_cleans_up(self, tmp_path: Path) -> None:
        started, cleaned = tmp_path / "started", tmp_path / "cleaned"
        ref = trainkit.remote(sleep_and_clean_up).remote(started, cleaned)
        await_file(started)
        trainkit.cancel(ref)
        with pytest.raises(TaskCancelledError):
            trainkit.get(ref, timeout=SOON_S)
        await_file(cleaned)

    @needs("background")
    def test_a_running_task_is_ended_by_force(self, tmp_path: Path) -> None:
        started = tmp_path / "started"
        ref = trainkit.remote(start_and_wait_for).remote(started, tmp_path / "never")
        await_file(started)
        trainkit.cancel(ref, force=True)
        with pytest.raises(TaskCancelledError):
            trainkit.get(ref, timeout=SOON_S)

    @needs("background")
    def test_a_waiting_task_never_begins(self, tmp_path: Path) -> None:
        started, go, ran = tmp_path / "started", tmp_path / "go", tmp_path / "ran"
        running = trainkit.remote(num_cpus=4)(start_and_wait_for).remote(started, go)
        await_file(started)
        waiting = trainkit.remote(num_cpus=4)(note).remote(ran)
        trainkit.cancel(waiting)
        with pytest.raises(TaskCancelledError):
            trainkit.get(waiting, timeout=SOON_S)
        go.touch()
        assert trainkit.get(running, timeout=SOON_S) == "waited"
        assert trainkit.get(trainkit.remote(num_cpus=4)(ran.exists).remote(), timeout=SOON_S) is False

    @needs("background", "unharmed")
    def test_a_waiting_method_never_begins_and_a_running_one_goes_on(self, tmp_path: Path) -> None:
        actor, running, waiting = self.cancelled_methods(tmp_path)
        with pytest.raises(TaskCancelledError):
            trainkit.get(waiting, timeout=SOON_S)
        assert trainkit.get(running, timeout=SOON_S) == "waited"
        trainkit.get(actor.get.remote(), timeout=SOON_S)
        assert not (tmp_path / "ran").exists()

    @lacks("unharmed")
    def test_cancelled_methods_have_no_result(self, tmp_path: Path) -> None:
        _, running, waiting = self.cancelled_methods(tmp_path)
        for ref in (running, waiting):
            with pytest.raises(TaskCancelledError):
                trainkit.get(ref, timeout=SOON_S)

    def cancelled_methods(self, folder: Path) -> tuple[Any, Any, Any]:
        """An actor, and the references of its methods that were cancelled while one ran and one waited."""
        actor = trainkit.remote(Keeper).remote()
        running = actor.wait_for.remote(folder / "started", folder / "go")
        await_file(folder / "started")
        waiting = actor.note.remote(folder / "ran")
        trainkit.cancel(waiting)
        trainkit.cancel(running)
        if self.engine == "local":  # its node, by which both go, answers when it has passed them on
            trainkit.available_resources()
        else:
            time.sleep(1)  # Ray's takes a moment to arrive, and nothing tells that it has
        (folder / "go").touch()
        return actor, running, waiting

    @needs("background")
    def test_a_running_async_method_is_cancelled_as_asyncio_does_it(self, tmp_path: Path) -> None:
        courier = trainkit.remote(Courier).remote()
        ref = courier.sleep.remote(tmp_path / "started")
        await_file(tmp_path / "started")
        trainkit.cancel(ref)
        with pytest.raises(TaskCancelledError):
            trainkit.get(ref, timeout=SOON_S)
        assert trainkit.get(courier.plain.remote()) == "plain"

    def test_a_cancelled_stream_ends(self, tmp_path: Path) -> None:
        stream = trainkit.remote(endless).remote(tmp_path / "cleaned")
        assert trainkit.get(next(stream)) == 0
        trainkit.cancel(stream)
        *_, last = stream  # what it had yielded by then comes first
        with pytest.raises(TaskCancelledError):
            trainkit.get(last)
        assert eventually((tmp_path / "cleaned").exists)

    @needs("background")
    @pytest.mark.parametrize(
        ("task", "handed_on"), [(sleep_and_clean_up, True), (start_one_that_sleeps, False)]
    )
    def test_who_is_given_a_reference_may_cancel_it(self, task: Any, handed_on: bool, tmp_path: Path) -> None:
        started, cleaned = tmp_path / "started", tmp_path / "cleaned"
        ref = trainkit.remote(task).remote(started, cleaned)
        await_file(started)
        one, other = trainkit.remote(Keeper).remote(), trainkit.remote(Keeper).remote()
        cancel = one.__ray_call__.remote(
            lambda _, *given: cancel_first(*given), [ref], other if handed_on else None
        )
        trainkit.get(cancel, timeout=SOON_S)
        with pytest.raises(TaskCancelledError):
            trainkit.get(ref, timeout=SOON_S)
        await_file(cleaned)

    # running again

    @pytest.mark.parametrize("which", [True, [LookupError], [OSError, KeyError]])
    def test_a_task_that_raises_is_run_again_if_that_is_asked_for(self, which: Any, tmp_path: Path) -> None:
        task = trainkit.remote(retry_exceptions=which)(fail_until)
        assert trainkit.get(task.remote(tmp_path / "runs", 2, KeyError("not yet"))) == 2

    @pytest.mark.parametrize(
        ("options", "runs"),
        [
            ({}, 1),
            ({"retry_exceptions": [OSError]}, 1),
            ({"retry_exceptions": True, "max_retries": 0}, 1),
            ({"retry_exceptions": True, "max_retries": 1}, 2),
        ],
    )
    def test_a_task_is_not_run_again_for_another_reason_or_too_often(
        self, options: dict[str, Any], runs: int, tmp_path: Path
    ) -> None:
        counted = tmp_path / "runs"
        with pytest.raises(KeyError):
            trainkit.get(trainkit.remote(**options)(fail_until).remote(counted, 9, KeyError("never")))
        assert len(counted.read_text().splitlines()) == runs

    def test_a_task_may_be_run_again_without_end(self, tmp_path: Path) -> None:
        task = trainkit.remote(retry_exceptions=True, max_retries=-1)(fail_until)
        assert trainkit.get(task.remote(tmp_path / "runs", 5, OSError("busy"))) == 5

    @pytest.mark.parametrize("how", ["method", "async method", "restartable"])
    def test_a_method_that_raises_is_called_again_if_that_is_asked_for(
        self, how: str, tmp_path: Path
    ) -> None:
        options = {"max_restarts": 1} if how == "restartable" else {}
        actor = trainkit.remote(Courier if how == "async method" else Keeper).options(**options).remote()
        method = actor.fail_until.options(retry_exceptions=True, max_task_retries=2)
        assert trainkit.get(method.remote(tmp_path / "runs", 3, KeyError("not yet"))) == 3
        with pytest.raises(KeyError, match="never"):
            trainkit.get(method.remote(tmp_path / "too often", 9, KeyError("never")))
        assert len((tmp_path / "too often").read_text().splitlines()) == 3
        other = actor.fail_until.options(retry_exceptions=[OSError], max_task_retries=-1)
        assert trainkit.get(other.remote(tmp_path / "no end", 9, OSError("busy"))) == 9
        with pytest.raises(KeyError):
            trainkit.get(other.remote(tmp_path / "another", 2, KeyError("no reason")))

    def test_the_actor_and_the_method_say_how_often(self, tmp_path: Path) -> None:
        actor = trainkit.remote(Keeper).options(max_task_retries=1, name="often").remote()
        for number, handle in enumerate((actor, trainkit.get_actor("often"))):
            assert trainkit.get(handle.fail_once.remote(tmp_path / f"runs {number}")) == 2
        (own,) = trainkit.get(actor.fail_once_later.remote(tmp_path / "its own"))
        assert trainkit.get(own, timeout=SOON_S) == 2
        with pytest.raises(KeyError):
            trainkit.get(trainkit.remote(Keeper).remote().fail_once.remote(tmp_path / "once"))

    @needs("isolation")
    def test_a_worker_ends_after_so_many_calls(self) -> None:
        task = trainkit.remote(max_calls=1)(os.getpid)
        assert len({trainkit.get(task.remote()) for _ in range(3)}) == 3


async def _awaited(ref: Any) -> Any:
    return await ref
