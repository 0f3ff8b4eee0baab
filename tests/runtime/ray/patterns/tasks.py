"""Tasks: what they are given, what they return, and how their results are waited for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from tests.runtime.ray.patterns import program


@program
def squares_of_a_list(ray: Any) -> None:
    @ray.remote
    def square(value):
        return value * value

    print(ray.get([square.remote(value) for value in range(8)]))


@program
def results_passed_on_without_a_get(ray: Any) -> None:
    @ray.remote
    def add(left, right):
        return left + right

    total = add.remote(1, 2)
    for value in (3, 4):
        total = add.remote(total, right=value)
    print(ray.get(total))


@program
def references_in_a_list_stay_references(ray: Any) -> None:
    @ray.remote
    def look(alone, listed):
        return alone, [isinstance(item, ray.ObjectRef) for item in listed], ray.get(listed)

    print(ray.get(look.remote(ray.put("a"), [ray.put("b"), ray.put("c")])))


@program
def several_results_of_one_call(ray: Any) -> None:
    @ray.remote(num_returns=3)
    def split(text):
        return text.split("-")

    first, second, third = split.remote("x-y-z")
    print(ray.get(third), ray.get([first, second]))
    print(ray.get(split.options(num_returns=1).remote("x-y")))


@program
def several_results_of_a_generator(ray: Any) -> None:
    @ray.remote(num_returns=3)
    def parts():
        for number in range(3):
            yield np.full(2, number)

    print([part.tolist() for part in ray.get(parts.remote())])


@program
def first_results_of_a_generator_that_fails(ray: Any) -> None:
    @ray.remote(num_returns=3, max_retries=0)
    def parts():
        yield "one"
        yield "two"
        raise KeyError("three")

    first, second, third = parts.remote()
    print(ray.get([first, second]))
    try:
        ray.get(third)
    except KeyError:
        print("the third failed")


@program
def as_many_results_as_there_are(ray: Any) -> None:
    @ray.remote(num_returns="dynamic")
    def words(text):
        yield from text.split()

    print([ray.get(ref) for ref in ray.get(words.remote("as many as there are"))])


@program
def a_task_without_a_result(ray: Any) -> None:
    @ray.remote(num_returns=0)
    def nothing():
        return None

    print(nothing.remote())


@program
def results_one_by_one(ray: Any) -> None:
    @ray.remote
    def rows(count):
        for number in range(count):
            yield {"row": number}

    print([ray.get(ref)["row"] for ref in rows.remote(5)])


@program
def results_one_by_one_until_one_fails(ray: Any) -> None:
    @ray.remote(max_retries=0)
    def rows():
        yield 1
        yield 2
        raise LookupError("no third row")

    seen = []
    try:
        for ref in rows.remote():
            seen.append(ray.get(ref))  # noqa: PERF401
    except LookupError:
        print("ended after", seen)


@program
def tasks_that_start_tasks(ray: Any) -> None:
    @ray.remote
    def leaf(value):
        return value + 1

    @ray.remote
    def middle(value):
        return sum(ray.get([leaf.remote(value), leaf.remote(value * 10)]))

    @ray.remote
    def root(values):
        return ray.get([middle.remote(value) for value in values])

    print(ray.get(root.remote([1, 2, 3])))


@program
def a_reference_that_leads_to_a_reference(ray: Any) -> None:
    @ray.remote
    def descend(depth):
        return "bottom" if depth == 0 else descend.remote(depth - 1)

    found = descend.remote(4)
    while not isinstance(found, str):
        found = ray.get(found)
    print(found)


@program
def a_recursion_of_tasks(ray: Any) -> None:
    @ray.remote
    def fibonacci(number):
        if number < 2:
            return number
        return sum(ray.get([fibonacci.remote(number - 1), fibonacci.remote(number - 2)]))

    print(ray.get(fibonacci.remote(4)))


@program
def results_taken_as_they_come(ray: Any) -> None:
    @ray.remote
    def job(number):
        return number, sum(range(number * 1000))

    pending = [job.remote(number) for number in range(10)]
    done = {}
    while pending:
        ready, pending = ray.wait(pending)
        done.update(ray.get(ready))
    print(sorted(done.items()))


@program
def few_tasks_at_a_time(ray: Any) -> None:
    @ray.remote
    def job(number):
        return number % 7

    pending, results, most = [], [], 0
    for number in range(40):
        if len(pending) >= 5:
            ready, pending = ray.wait(pending, num_returns=1)
            results += ray.get(ready)
        pending.append(job.remote(number))
        most = max(most, len(pending))
    results += ray.get(pending)
    print(most, sorted(Counter(results).items()))


@program
def a_wait_that_times_out(ray: Any) -> None:
    @ray.remote
    class Signal:
        def __init__(self):
            import asyncio

            self.event = asyncio.Event()

        async def send(self):
            self.event.set()

        async def wait(self):
            await self.event.wait()

    @ray.remote
    def after(signal, value):
        ray.get(signal.wait.remote())
        return value

    signal = Signal.remote()
    slow = after.remote(signal, "late")
    ready, rest = ray.wait([slow], timeout=0.2)
    print(len(ready), rest == [slow])
    try:
        ray.get(slow, timeout=0.2)
    except ray.exceptions.GetTimeoutError as error:
        print(isinstance(error, TimeoutError))
    ray.get(signal.send.remote())
    print(ray.get(slow))


@program
def a_large_argument_is_put_once(ray: Any) -> None:
    @ray.remote
    def part(array, index):
        return int(array[index::4].sum())

    whole = np.arange(200_000)
    ref = ray.put(whole)
    parts = ray.get([part.remote(ref, index) for index in range(4)])
    print(sum(parts) == int(whole.sum()), parts[0])


@program
def arrays_arrive_read_only(ray: Any) -> None:
    @ray.remote
    def double(array):
        try:
            array *= 2
        except ValueError:
            array = array * 2
            return "read-only", float(array.sum())
        return "writable", float(array.sum())

    print(ray.get(double.remote(ray.put(np.ones(100_000)))))


@program
def what_a_function_sees_of_its_module_is_a_copy(ray: Any) -> None:
    settings = {"value": 1}

    @ray.remote
    def change():
        settings["value"] += 1
        return settings["value"]

    print(ray.get(change.remote()), settings["value"])


@program
def a_function_that_holds_a_large_value_by_reference(ray: Any) -> None:
    table = ray.put({number: number**2 for number in range(1000)})

    @ray.remote
    def look_up(keys):
        found = ray.get(table)
        return [found[key] for key in keys]

    print(ray.get([look_up.remote([1, 2]), look_up.remote([30])]))


@program
def many_small_pieces_in_batches(ray: Any) -> None:
    @ray.remote
    def batch(values):
        return [value + 1 for value in values]

    values = list(range(1000))
    pieces = ray.get([batch.remote(values[start : start + 250]) for start in range(0, 1000, 250)])
    print(sum(map(sum, pieces)), [len(piece) for piece in pieces])


@program
def one_remote_function_with_other_options(ray: Any) -> None:
    @ray.remote
    def here():
        context = ray.get_runtime_context()
        return context.get_assigned_resources()["CPU"], context.get_task_name()

    print(ray.get(here.options(num_cpus=2, name="wide").remote()))


@program
def get_takes_nothing_too(ray: Any) -> None:
    print(ray.get([]), ray.get([ray.put(None)]))


@program
def what_is_refused(ray: Any) -> None:
    @ray.remote
    def double(value):
        return value * 2

    for mistake in (lambda: double(2), lambda: double.remote(1, 2), lambda: ray.wait(double.remote(1))):
        try:
            mistake()
        except TypeError:
            print("TypeError")
    try:
        ray.wait([double.remote(1)], num_returns=2)
    except ValueError:
        print("ValueError")
