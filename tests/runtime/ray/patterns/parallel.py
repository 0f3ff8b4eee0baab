"""Whole methods: parameter servers, trees, pipelines, searches."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np

from tests.runtime.ray.patterns import program


def gradient(weights: Any, seed: int) -> Any:
    """Of the squared distance to a point; the data that the point is in depend on the seed."""
    return weights - np.arange(len(weights)) * (seed + 1)


@program
def a_call_given_what_calls_the_same_actor(ray: Any) -> None:
    @ray.remote
    class Server:
        def __init__(self):
            self.w = 0

        def weights(self):
            return self.w

        def apply(self, *grads):
            self.w += sum(grads)
            return self.w

    @ray.remote
    class Worker:
        def gradient(self, server):
            return ray.get(server.weights.remote()) + 1

    server = Server.remote()
    workers = [Worker.remote() for _ in range(2)]
    print(ray.get(server.apply.remote(*[worker.gradient.remote(server) for worker in workers])))


@program
def a_parameter_server_in_step(ray: Any) -> None:
    @ray.remote
    class Server:
        def __init__(self, size):
            self.weights = np.zeros(size)

        def apply(self, *gradients):
            self.weights = self.weights - 0.1 * np.mean(gradients, axis=0)
            return self.weights

        def get(self):
            return self.weights

    @ray.remote
    class Worker:
        def __init__(self, seed):
            self.seed = seed

        def compute(self, weights):
            return gradient(weights, self.seed)

    server = Server.remote(3)
    workers = [Worker.remote(seed) for seed in range(2)]
    weights = server.get.remote()
    for _ in range(10):
        weights = server.apply.remote(*[worker.compute.remote(weights) for worker in workers])
    print(np.round(ray.get(weights), 6).tolist())


@program
def a_parameter_server_out_of_step(ray: Any) -> None:
    @ray.remote
    class Server:
        def __init__(self, size):
            self.weights = np.zeros(size)
            self.applied = 0

        def apply(self, gradient):
            self.weights = self.weights - 0.05 * gradient
            self.applied += 1
            return self.weights

        def result(self):
            return self.applied, float(abs(self.weights - np.arange(3)).max())

    @ray.remote
    class Worker:
        def compute(self, weights):
            return gradient(weights, 0)

    server = Server.remote(3)
    workers = [Worker.remote() for _ in range(2)]
    start = np.zeros(3)
    pending = {worker.compute.remote(start): worker for worker in workers}
    for _ in range(60):
        (ready,), _ = ray.wait(list(pending))
        worker = pending.pop(ready)
        pending[worker.compute.remote(server.apply.remote(ready))] = worker
    applied, distance = ray.get(server.result.remote())
    print(applied, distance < 0.8)


@program
def tasks_that_add_up_in_one_actor(ray: Any) -> None:
    @ray.remote
    class Total:
        def __init__(self):
            self.value = 0

        def add(self, amount):
            self.value += amount
            return self.value

        def get(self):
            return self.value

    @ray.remote
    def spread(total, depth):
        if depth == 0:
            return ray.get(total.add.remote(1))
        ray.get([spread.remote(total, depth - 1) for _ in range(2)])
        return None

    total = Total.remote()
    ray.get(spread.remote(total, 2))
    print(ray.get(total.get.remote()))


@program
def a_tree_of_sums(ray: Any) -> None:
    @ray.remote
    def add(left, right):
        return left + right

    level = [ray.put(number) for number in range(16)]
    depth = 0
    while len(level) > 1:
        level = [add.remote(*level[start : start + 2]) for start in range(0, len(level), 2)]
        depth += 1
    print(depth, ray.get(level[0]))


@program
def a_pipeline_of_stages(ray: Any) -> None:
    @ray.remote
    def load(number):
        return list(range(number))

    @ray.remote
    def clean(rows):
        return [row for row in rows if row % 2]

    @ray.remote
    def count(rows):
        return len(rows)

    print(ray.get([count.remote(clean.remote(load.remote(number))) for number in (3, 10, 7)]))


@program
def a_pipeline_of_actors(ray: Any) -> None:
    @ray.remote
    class Stage:
        def __init__(self, offset):
            self.offset = offset
            self.seen = 0

        def run(self, value):
            self.seen += 1
            return value + self.offset

        def count(self):
            return self.seen

    first, second = Stage.remote(1), Stage.remote(100)
    results = [second.run.remote(first.run.remote(value)) for value in range(5)]
    print(ray.get(results), ray.get([first.count.remote(), second.count.remote()]))


@program
def words_counted_in_parts(ray: Any) -> None:
    text = "the ox and the cow and the calf".split()

    @ray.remote
    def count(words):
        return Counter(words)

    @ray.remote
    def merge(*counts):
        return sum(counts, Counter())

    parts = [count.remote(text[start::3]) for start in range(3)]
    print(sorted(ray.get(merge.remote(*parts)).items()))


@program
def shuffled_parts(ray: Any) -> None:
    @ray.remote(num_returns=2)
    def partition(numbers):
        return [n for n in numbers if n % 2 == 0], [n for n in numbers if n % 2]

    @ray.remote
    def reduce(*parts):
        return sorted(number for part in parts for number in part)

    columns = zip(*[partition.remote(range(start, start + 5)) for start in (0, 5, 10)], strict=True)
    print(ray.get([reduce.remote(*column) for column in columns]))


@program
def a_list_sorted_in_parts(ray: Any) -> None:
    @ray.remote
    def sort(numbers):
        if len(numbers) <= 25:
            return sorted(numbers)
        half = len(numbers) // 2
        left, right = ray.get([sort.remote(numbers[:half]), sort.remote(numbers[half:])])
        merged = []
        while left and right:
            merged.append((left if left[0] <= right[0] else right).pop(0))
        return merged + left + right

    numbers = random.Random(0).sample(range(1000), 50)
    print(ray.get(sort.remote(numbers)) == sorted(numbers))


@program
def an_estimate_of_pi_that_reports(ray: Any) -> None:
    @ray.remote
    class Progress:
        def __init__(self):
            self.done = {}

        def report(self, task, count):
            self.done[task] = count

        def total(self):
            return sum(self.done.values())

    @ray.remote
    def sample(task, count, progress):
        draw = random.Random(task)
        inside = 0
        for index in range(count):
            inside += draw.random() ** 2 + draw.random() ** 2 <= 1
            if (index + 1) % 500 == 0:
                progress.report.remote(task, index + 1)
        ray.get(progress.total.remote())
        return inside

    progress = Progress.remote()
    inside = sum(ray.get([sample.remote(task, 1000, progress) for task in range(4)]))
    print(inside, ray.get(progress.total.remote()))


@program
def a_graph_walked_in_waves(ray: Any) -> None:
    links = {"a": ["b", "c"], "b": ["d"], "c": ["d", "e"], "d": ["f"], "e": [], "f": ["a"]}
    graph = ray.put(links)

    @ray.remote
    def follow(graph, page):
        return page, graph[page]

    seen, wave = {"a"}, ["a"]
    order = []
    while wave:
        order.append(sorted(wave))
        found = ray.get([follow.remote(graph, page) for page in wave])
        wave = sorted({target for _, targets in found for target in targets} - seen)
        seen.update(wave)
    print(order)


@program
def predictions_of_a_batch_by_actors(ray: Any) -> None:
    @ray.remote
    class Predictor:
        def __init__(self, weights):
            self.weights = weights

        def predict(self, batch):
            return (batch @ self.weights).tolist()

    weights = ray.put(np.array([1.0, 2.0]))
    pool = ray.util.ActorPool([Predictor.remote(weights) for _ in range(2)])
    batches = np.arange(12.0).reshape(3, 2, 2)
    print(list(pool.map(lambda actor, batch: actor.predict.remote(batch), list(batches))))


@program
def results_as_they_are_completed(ray: Any) -> None:
    @ray.remote
    def square(value):
        return value * value

    refs = [square.remote(value) for value in range(12)]
    print(sorted(ray.util.as_completed(refs, chunk_size=5)))
    print(sorted(ray.util.map_unordered(square, range(12), backpressure_size=4)))


@program
def the_best_of_a_search(ray: Any) -> None:
    @ray.remote
    def loss(x, y):
        return (x - 3) ** 2 + (y + 1) ** 2

    @ray.remote
    class Best:
        def __init__(self):
            self.found = (float("inf"), None)

        def offer(self, value, point):
            self.found = min(self.found, (value, point))

        def get(self):
            return self.found

    best = Best.remote()
    offers = [best.offer.remote(loss.remote(x, y), (x, y)) for x in range(6) for y in range(-3, 3)]
    ray.get(offers)
    print(ray.get(best.get.remote()))
