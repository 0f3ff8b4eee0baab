"""A language for small programs: objects, tasks, actors, and references on their way between them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import trainkit

LARGE = 40_000
"""Numbers in an array that goes to shared memory."""


@dataclass(frozen=True)
class Task:
    body: Any
    args: tuple[Any, ...] = ()


# What a task or a method does: an expression, whose value is a number.


@dataclass(frozen=True)
class Int:
    value: int


@dataclass(frozen=True)
class Arg:
    """The number that an argument stands for."""

    index: int


@dataclass(frozen=True)
class Add:
    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Fetch:
    """The sum of the references that an argument lists; after a `wait` for so many of them, if asked for."""

    index: int
    first: int = 0


class Do(Task):
    """The result of a task of its own, which is started and waited for."""


@dataclass(frozen=True)
class Bump:
    """An addition to the total of the actor that an argument holds."""

    index: int
    part: Any


@dataclass(frozen=True)
class Boom:
    """Raises a ValueError."""


# What a body may be besides.


@dataclass(frozen=True)
class Large:
    """The number as a large array."""

    of: Any


class Up(Task):
    """The reference of a task that may still run, in a list."""


# What is given to a task, besides expressions.


@dataclass(frozen=True)
class Pass:
    """An argument, handed on as it is."""

    index: int


class Later(Task):
    """The reference of a task that may still run."""


# What the program itself does, step by step; its variables are numbered by the steps.


@dataclass(frozen=True)
class Var:
    """An argument that is the value of a variable's reference."""

    step: int


@dataclass(frozen=True)
class Refs:
    """An argument that lists the references of variables, or holds the handle of one that is an actor."""

    steps: tuple[int, ...]


@dataclass(frozen=True)
class Put:
    value: int
    large: bool = False


@dataclass(frozen=True)
class Actor:
    kind: str
    start: Any = 0


@dataclass(frozen=True)
class Call:
    """Of the method `bump`, `running` or `do`; that one's first argument is a body."""

    actor: int
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Get:
    steps: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    steps: tuple[int, ...]
    first: int


@dataclass(frozen=True)
class Kill:
    actor: int


@dataclass(frozen=True)
class Cancel:
    step: int


@dataclass(frozen=True)
class Drop:
    step: int


Program = tuple[Any, ...]

# Running a program.


def number(value: Any) -> Generator[Any, Any, int]:
    """The number that a value, or all the references that it lists, stand for; yields those to get."""
    if isinstance(value, np.ndarray):
        return int(value[-1])
    if isinstance(value, list):
        total = 0
        for ref in value:
            total += yield from number((yield ref))
        return total
    return int(value)


def _given(arg: Any, args: Sequence[Any]) -> Generator[Any, Any, Any]:
    if isinstance(arg, Pass):
        return args[arg.index]
    if isinstance(arg, Later):
        return run_body.remote(arg.body, *(yield from _all_given(arg.args, args)))
    return (yield from _evaluate(arg, args))


def _all_given(given: Iterable[Any], args: Sequence[Any]) -> Generator[Any, Any, list[Any]]:
    values = []
    for arg in given:
        values.append((yield from _given(arg, args)))  # noqa: PERF401 - a comprehension can't yield
    return values


def _evaluate(body: Any, args: Sequence[Any]) -> Generator[Any, Any, Any]:
    match body:
        case Int(value):
            return value
        case Arg(index):
            return (yield from number(args[index]))
        case Add(parts):
            total = 0
            for part in parts:
                total += yield from _evaluate(part, args)
            return total
        case Fetch(index, first):
            if first:
                ready, _ = trainkit.wait(args[index], num_returns=first)
                assert len(ready) == first
            return (yield from number(args[index]))
        case Do(inner, given):
            ref = run_body.remote(inner, *(yield from _all_given(given, args)))
            return (yield from number((yield ref)))
        case Bump(index, part):
            (handle,) = args[index]
            return (yield handle.bump.remote((yield from _given(part, args))))
        case Large(of):
            return np.full(LARGE, (yield from _evaluate(of, args)))
        case Up(inner, given):
            return [run_body.remote(inner, *(yield from _all_given(given, args)))]
        case Boom():
            raise ValueError("boom")
    raise TypeError(body)


def _drive(steps: Generator[Any, Any, Any]) -> Any:
    try:
        ref = next(steps)
        while True:
            try:
                value = trainkit.get(ref)
            except Exception as error:
                ref = steps.throw(error)
            else:
                ref = steps.send(value)
    except StopIteration as end:
        return end.value


async def _drive_async(steps: Generator[Any, Any, Any]) -> Any:
    try:
        ref = next(steps)
        while True:
            try:
                value = await ref
            except Exception as error:
                ref = steps.throw(error)
            else:
                ref = steps.send(value)
    except StopIteration as end:
        return end.value


@trainkit.remote
def run_body(body: Any, *args: Any) -> Any:
    """The task that all tasks are: what its body comes to."""
    return _drive(_evaluate(body, args))


class Plain:
    def __init__(self, start: Any) -> None:
        self.total = _drive(number(start))

    def bump(self, value: Any) -> int:
        amount = int(_drive(number(value)))
        self.total += amount
        return amount

    def running(self, value: Any) -> int:
        self.bump(value)
        return self.total

    def do(self, body: Any, *args: Any) -> Any:
        return _drive(_evaluate(body, args))

    def read(self) -> int:
        return self.total


class Async:
    def __init__(self, start: Any) -> None:
        self.total = _drive(number(start))

    async def bump(self, value: Any) -> int:
        amount = int(await _drive_async(number(value)))
        self.total += amount
        return amount

    async def running(self, value: Any) -> int:
        await self.bump(value)
        return self.total

    async def do(self, body: Any, *args: Any) -> Any:
        return await _drive_async(_evaluate(body, args))

    async def read(self) -> int:
        return self.total


KINDS: dict[str, Any] = {
    "plain": trainkit.remote(Plain),
    "threaded": trainkit.remote(Plain).options(max_concurrency=3),
    "async": trainkit.remote(Async),
    "restartable": trainkit.remote(Plain).options(max_restarts=-1),
}
