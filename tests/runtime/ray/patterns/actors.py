"""Actors: what they keep, how they are found and called, and how their calls go on beside each other."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.runtime.ray.patterns import program


@program
def a_counter(ray: Any) -> None:
    @ray.remote
    class Counter:
        def __init__(self, start=0):
            self.value = start

        def add(self, amount=1):
            self.value += amount
            return self.value

    counter, other = Counter.remote(), Counter.remote(start=10)
    print(ray.get([counter.add.remote() for _ in range(5)]), ray.get(other.add.remote(amount=5)))


@program
def one_actor_for_many_tasks(ray: Any) -> None:
    @ray.remote
    class Totals:
        def __init__(self):
            self.sums = {}

        def add(self, name, amount):
            self.sums[name] = self.sums.get(name, 0) + amount

        def all(self):
            return dict(sorted(self.sums.items()))

    @ray.remote
    def work(totals, name):
        ray.get([totals.add.remote(name, amount) for amount in range(4)])

    totals = Totals.remote()
    ray.get([work.remote(totals, name) for name in ("a", "b", "a")])
    print(ray.get(totals.all.remote()))


@program
def a_tree_of_actors(ray: Any) -> None:
    @ray.remote(num_cpus=0)
    class Leaf:
        def __init__(self, number):
            self.number = number

        def value(self):
            return self.number

    @ray.remote(num_cpus=0)
    class Branch:
        def __init__(self, numbers):
            self.leaves = [Leaf.remote(number) for number in numbers]

        def total(self):
            return sum(ray.get([leaf.value.remote() for leaf in self.leaves]))

    branches = [Branch.remote([1, 2]), Branch.remote([10, 20])]
    print(ray.get([branch.total.remote() for branch in branches]))


@program
def a_name_finds_an_actor(ray: Any) -> None:
    @ray.remote
    class Named:
        def __init__(self, text):
            self.text = text

        def get(self):
            return self.text

    @ray.remote
    def visit(name):
        return ray.get(ray.get_actor(name).get.remote())

    first = Named.options(name="patterns-named", get_if_exists=True).remote("first")
    again = Named.options(name="patterns-named", get_if_exists=True).remote("second")
    print(ray.get([again.get.remote(), visit.remote("patterns-named")]), first == again)
    try:
        Named.options(name="patterns-named").remote("third")
    except ValueError:
        print("the name is taken")
    try:
        ray.get_actor("patterns-nobody")
    except ValueError:
        print("nobody has that name")


@program
def a_detached_actor_in_a_namespace(ray: Any) -> None:
    @ray.remote
    class Keeper:
        def get(self):
            return "kept"

    options = {"name": "patterns-kept", "namespace": "patterns", "lifetime": "detached"}
    keeper = Keeper.options(**options).remote()
    ray.get(keeper.get.remote())
    del keeper
    found = ray.get_actor("patterns-kept", namespace="patterns")
    print(ray.get(found.get.remote()))
    ray.kill(found)


@program
def async_methods_beside_each_other(ray: Any) -> None:
    @ray.remote
    class Signal:
        def __init__(self):
            self.event = asyncio.Event()
            self.waiting = 0

        async def wait(self):
            self.waiting += 1
            if self.waiting == 3:
                self.event.set()
            await self.event.wait()
            return self.waiting

    signal = Signal.remote()
    print(ray.get([signal.wait.remote() for _ in range(3)]))


@program
def an_async_actor_awaits_tasks(ray: Any) -> None:
    @ray.remote
    def square(value):
        return value * value

    @ray.remote
    class Collector:
        async def collect(self, values):
            return await asyncio.gather(*[square.remote(value) for value in values])

        async def of_a_list(self, refs):
            return [await ref for ref in refs]

    collector = Collector.remote()
    print(ray.get(collector.collect.remote([1, 2, 3])))
    print(ray.get(collector.of_a_list.remote([square.remote(4), ray.put(5)])))


@program
def a_program_with_an_event_loop(ray: Any) -> None:
    @ray.remote
    def square(value):
        return value * value

    async def main():
        return await asyncio.gather(square.remote(2), square.remote(3).as_future())

    print(asyncio.run(main()))


@program
def threads_of_one_actor(ray: Any) -> None:
    @ray.remote(max_concurrency=3)
    class Meeting:
        def __init__(self):
            self.barrier = threading.Barrier(3)

        def arrive(self):
            self.barrier.wait(60)
            return "met"

    meeting = Meeting.remote()
    print(ray.get([meeting.arrive.remote() for _ in range(3)]))


@program
def groups_of_methods(ray: Any) -> None:
    @ray.remote(concurrency_groups={"io": 2, "control": 1})
    class Grouped:
        def __init__(self):
            self.gate = threading.Event()

        @ray.method(concurrency_group="io")
        def read(self):
            return self.gate.wait(60)

        @ray.method(concurrency_group="control")
        def open(self):
            self.gate.set()
            return "open"

        def name(self):
            return threading.current_thread() is not None

    grouped = Grouped.remote()
    reading = [grouped.read.remote() for _ in range(2)]
    print(ray.get(grouped.name.remote()), ray.get(grouped.open.remote()), ray.get(reading))


@program
def a_blocking_method_of_one_group_stops_no_other(ray: Any) -> None:
    @ray.remote(concurrency_groups={"slow": 1, "quick": 1})
    class Grouped:
        def __init__(self):
            self.gate = threading.Event()

        @ray.method(concurrency_group="slow")
        async def block(self):
            return self.gate.wait(60)

        @ray.method(concurrency_group="quick")
        async def release(self):
            self.gate.set()
            return "released"

    grouped = Grouped.remote()
    blocked = grouped.block.remote()
    print(ray.get(grouped.release.remote()), ray.get(blocked))


@program
def methods_that_yield(ray: Any) -> None:
    @ray.remote
    class Source:
        def numbers(self, count):
            for number in range(count):  # noqa: UP028 - Ray sends into what is yielded from
                yield number

    @ray.remote
    class AsyncSource:
        async def numbers(self, count):
            for number in range(count):
                await asyncio.sleep(0)
                yield number * 10

    plain = Source.remote().numbers.options(num_returns="streaming").remote(3)
    print([ray.get(ref) for ref in plain])
    print([ray.get(ref) for ref in AsyncSource.remote().numbers.options(num_returns="streaming").remote(3)])


@program
def methods_with_several_results(ray: Any) -> None:
    @ray.remote
    class Pair:
        @ray.method(num_returns=2)
        def both(self, value):
            return value, -value

    pair = Pair.remote()
    plus, minus = pair.both.remote(3)
    print(ray.get(minus), ray.get(plus))
    pool = ray.util.ActorPool([pair])
    print(list(pool.map(lambda actor, value: actor.both.remote(value), [1, 2])))


@program
def an_attribute_with_the_name_of_a_method(ray: Any) -> None:
    @ray.remote
    class Job:
        def __init__(self):
            self.done = False

        def finish(self):
            self.done = True

        def done(self):
            return self.done

    job = Job.remote()
    before = ray.get(job.done.remote())
    job.finish.remote()
    print(before, ray.get(job.done.remote()))


@program
def a_class_that_inherits(ray: Any) -> None:
    class Base:
        def __init__(self, name):
            self.name = name

        def greet(self):
            return f"hello from {self.name}"

    @ray.remote
    class Louder(Base):
        def greet(self):
            return super().greet().upper()

    print(ray.get(Louder.remote("here").greet.remote()))


@program
def an_actor_hands_on_itself(ray: Any) -> None:
    @ray.remote
    class Registry:
        def __init__(self):
            self.members = {}

        def join(self, name, member):
            self.members[name] = member
            return len(self.members)

        def members_of(self):
            return self.members

    @ray.remote
    class Member:
        def __init__(self, name):
            self.name = name

        def enter(self, registry):
            me = ray.get_runtime_context().current_actor
            return ray.get(registry.join.remote(self.name, me))

        def hello(self):
            return f"hello, {self.name}"

    registry = Registry.remote()
    members = [Member.remote("ann"), Member.remote("bob")]
    print([ray.get(member.enter.remote(registry)) for member in members])
    found = ray.get(registry.members_of.remote())
    print([ray.get(found[name].hello.remote()) for name in sorted(found)], found["ann"] == members[0])


@program
def wait_until_actors_are_ready(ray: Any) -> None:
    @ray.remote
    class Slow:
        def __init__(self):
            self.ready = True

        def is_ready(self):
            return self.ready

    actors = [Slow.remote() for _ in range(2)]
    print(ray.get([actor.__ray_ready__.remote() for actor in actors]))
    print(ray.get([actor.is_ready.remote() for actor in actors]))


@program
def calls_of_one_caller_in_their_order(ray: Any) -> None:
    @ray.remote
    class Log:
        def __init__(self):
            self.lines = []

        def add(self, line):
            self.lines.append(line)

        def get(self):
            return self.lines

    log = Log.remote()
    for number in range(10):
        log.add.remote(number)
    print(ray.get(log.get.remote()))


@program
def a_queue_between_producers_and_a_consumer(ray: Any) -> None:
    import importlib

    Queue = importlib.import_module(f"{ray.__name__}.util.queue").Queue
    queue = Queue(maxsize=3)

    @ray.remote
    def produce(queue, start):
        for value in range(start, start + 5):
            queue.put(value)
        return start

    @ray.remote
    def consume(queue, count):
        return sorted(queue.get() for _ in range(count))

    taken = consume.remote(queue, 10)
    print(ray.get([produce.remote(queue, start) for start in (0, 100)]), ray.get(taken), queue.empty())
    queue.shutdown()


@program
def a_pool_of_actors(ray: Any) -> None:
    @ray.remote
    class Doubler:
        def double(self, value):
            return 2 * value

    pool = ray.util.ActorPool([Doubler.remote() for _ in range(2)])
    print(list(pool.map(lambda actor, value: actor.double.remote(value), range(6))))
    print(sorted(pool.map_unordered(lambda actor, value: actor.double.remote(value), range(6))))
    pool.submit(lambda actor, value: actor.double.remote(value), 50)
    print(pool.has_next(), pool.get_next(), pool.has_next())
