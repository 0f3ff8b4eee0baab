"""Each line that ends in `# error` is one that type checkers must refuse, and they refuse no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

import trainkit
from trainkit import ObjectRef
from trainkit.train import Result, RunConfig, ScalingConfig, TorchTrainer, TrainingOperator
from trainkit.train.torch import TorchTrainer as OfFunctions
from trainkit.util.sgd.torch import TorchTrainer as OfOperators


@trainkit.remote
def scale(value: int, factor: float = 1.0, *, digits: int = 2) -> float:
    return round(value * factor, digits)


@trainkit.remote(num_cpus=1)
def count_to(end: int) -> Iterator[int]:
    yield from range(end)


class Counter:
    def __init__(self, start: int) -> None:
        self.total = start

    @trainkit.method
    def add(self, amount: int) -> int:
        self.add("1")  # error
        return self.total + amount

    @trainkit.method(max_task_retries=1)
    async def slow(self, amount: int) -> int:
        return amount

    def unmarked(self) -> int:
        return 0


RemoteCounter = trainkit.remote(Counter)
text = trainkit.put("text")
number = trainkit.put(1)

# Arguments of functions, as values and as references.
scale(1)  # error
scale.remote()  # error
scale.remote("1")  # error
scale.remote(1, 2.0, 3)  # error
scale.remote(1, size=3)  # error
scale.remote(1, digits="3")  # error
scale.remote(text)  # error
scale.remote(1, text)  # error
scale.remote(number, text)  # error
scale.remote([number])  # error
count_to.remote("3")  # error

# Results.
wrong: str = trainkit.get(scale.remote(1))  # error
also_wrong: list[str] = trainkit.get([scale.remote(1)])  # error
not_a_list: ObjectRef[int] = count_to.remote(3)  # error
trainkit.get(3)  # error
trainkit.get([3])  # error
trainkit.wait(scale.remote(1))  # error

# Options.
scale.options(num_cpu=1)  # error
scale.options(max_restarts=1)  # error
trainkit.remote(num_gpus="1")  # error
trainkit.remote(cpus=1)  # error
RemoteCounter.options(max_calls=1)  # error
trainkit.method(returns=1)  # error

# Actors.
RemoteCounter.remote()  # error
RemoteCounter.remote("1")  # error
RemoteCounter.remote(text)  # error
counter = RemoteCounter.remote(number)
counter.add.remote()  # error
counter.add.remote("1")  # error
counter.add.remote(text)  # error
counter.add.remote(1, 2)  # error
counter.add.options(num_cpus=1)  # error
counter.missing.remote()  # error
counter.unmarked.remote()  # error
assert_type(counter.slow.remote(1), ObjectRef[str])  # error
name: str = trainkit.get(counter.slow.remote(1))  # error


# Trainers, of a function or of an operator.
def train_line(config: dict[str, float]) -> None: ...


class Line(TrainingOperator): ...


class Logged(TorchTrainer):
    def fit(self) -> Result:
        return super().fit()


assert_type(OfFunctions(train_line, scaling_config=ScalingConfig(num_workers=2)).fit(), Result)
OfOperators(training_operator_cls=Line, num_workers=2).train()
Logged(train_line, run_config=RunConfig(name="line")).fit()
Logged(training_operator_cls=Line).shutdown()
TorchTrainer(train_line, num_workers=2)  # error
TorchTrainer(training_operator_cls=Line, run_config=RunConfig())  # error
TorchTrainer(training_operator_cls=train_line)  # error
TorchTrainer()  # error
