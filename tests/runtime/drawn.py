"""Small programs, drawn at random: a language for them, a sequential model, and what runs them on an engine.

A program makes objects, tasks and actors, hands references down and up, pending ones too, waits, kills
and cancels. The model says which results each value may have. Programs in which a waiting actor would
need itself are not drawn; so one that doesn't end, or ends otherwise, shows a defect.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import trainkit
from tests.runtime import small_programs as lang
from tests.runtime.program_model import ANY, Model
from trainkit.errors import (
    ActorDiedError,
    GetTimeoutError,
    OwnerDiedError,
    TaskCancelledError,
)

PATIENCE_S = 60
SESSION: dict[str, Any] = {
    "num_cpus": 2,
    "log_to_driver": False,
    "preload": ["tests.runtime.small_programs"],
}


class Hang(AssertionError):
    """A program did not go on."""


def _kind_of(error: BaseException) -> str:
    for cls, kind in _KINDS_OF_ERRORS:
        if isinstance(error, cls):
            return kind
    raise error


_KINDS_OF_ERRORS: list[tuple[type[BaseException], str]] = [
    (ActorDiedError, "died"),
    (OwnerDiedError, "owner"),
    (TaskCancelledError, "cancelled"),
    (ValueError, "boom"),
]


def _settle(ref: Any) -> Any:
    """The number that a reference stands for, or the kind of error that it comes to."""
    steps = lang.number([ref])
    try:
        value = next(steps)
        while True:
            try:
                value = steps.send(trainkit.get(value, timeout=PATIENCE_S))
            except GetTimeoutError as error:
                raise Hang(f"{value!r} did not come") from error
    except StopIteration as end:
        return end.value
    except Hang:
        raise
    except Exception as error:
        return _kind_of(error)


class Run:
    """One program on the engine in use, compared with the model as it goes."""

    def __init__(self, program: lang.Program) -> None:
        self.program = program
        self.model = Model(program)
        self.held: dict[int, Any] = {}

    def run(self) -> None:
        for step, statement in enumerate(self.program):
            self._step(step, statement)
        for step, statement in enumerate(self.program):
            if step in self.held and not isinstance(statement, lang.Actor):
                self._check(step)
        for step, statement in enumerate(self.program):
            if step in self.held and isinstance(statement, lang.Actor) and not self.model.killed_at(step):
                low, high = self.model.totals[step]
                found = _settle(self.held[step].read.remote())
                if found in self.model.fate(step):
                    continue
                if not (isinstance(found, int) and low <= found <= high):
                    raise AssertionError(f"actor {step} has {found}, not {low} to {high}")

    def _args(self, args: Iterable[Any]) -> list[Any]:
        values: list[Any] = []
        for arg in args:
            if isinstance(arg, lang.Var):
                values.append(self.held[arg.step])
            elif isinstance(arg, lang.Refs):
                values.append([self.held[step] for step in arg.steps])
            else:
                values.append(arg)
        return values

    def _step(self, step: int, statement: Any) -> None:
        held = self.held
        match statement:
            case lang.Put(value, large):
                held[step] = trainkit.put(np.full(lang.LARGE, value) if large else value)
            case lang.Task(body, args):
                held[step] = lang.run_body.remote(body, *self._args(args))
            case lang.Actor(kind, start):
                held[step] = lang.KINDS[kind].remote(*self._args([start]))
            case lang.Call(actor, method, args):
                held[step] = getattr(held[actor], method).remote(*self._args(args))
            case lang.Get(steps):
                for wanted in steps:
                    self._check(wanted)
            case lang.Wait(steps, first):
                refs = [held[wanted] for wanted in steps]
                ready, rest = trainkit.wait(refs, num_returns=first, timeout=PATIENCE_S)
                if len(ready) != first:
                    raise Hang(f"step {step}: {len(ready)} of {first} are ready")
                if sorted(map(id, ready + rest)) != sorted(map(id, refs)):
                    raise AssertionError(f"step {step}: wait made something else of its references")
            case lang.Kill(actor):
                trainkit.kill(held[actor], no_restart=self.program[actor].kind != "restartable")
            case lang.Cancel(wanted):
                trainkit.cancel(held[wanted])
            case lang.Drop(wanted):
                del held[wanted]

    def _check(self, step: int) -> None:
        found, allowed = _settle(self.held[step]), self.model.deep[step]
        if found not in allowed and not (isinstance(found, int) and ANY in allowed):
            raise AssertionError(
                f"step {step} came to {found!r}, and may only come to {sorted(map(str, allowed))}"
            )


# Drawing a program.

Choose = Callable[[int], int]
"""A number below another one."""


@dataclass
class Drawer:
    """Draws a program, step by step.

    Attributes:
        needs: by step, the actors without which its value never comes.
        queued: by actor, those that its calls so far may have to wait for.
    """

    choose: Choose
    program: list[Any] = field(default_factory=list)
    needs: dict[int, frozenset[int]] = field(default_factory=dict)
    queued: dict[int, frozenset[int]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    lists: set[int] = field(default_factory=set)

    def draw(self) -> lang.Program:
        for _ in range(2 + self.choose(8)):
            self._draw_step()
        return tuple(self.program)

    def _pick(self, items: Sequence[Any]) -> Any:
        return items[self.choose(len(items))]

    def _refs(self) -> list[int]:
        return [step for step in self.needs if step not in self.gone]

    def _actors(self, below: int | None = None) -> list[int]:
        return [step for step in self.queued if step not in self.gone and (below is None or step < below)]

    def _draw_step(self) -> None:
        refs, actors = self._refs(), self._actors()
        kinds = ["put", "task", "task", "task", "actor", "actor"]
        kinds += ["call"] * 5 if actors else []
        kinds += ["get", "wait", "cancel", "drop"] if refs else []
        kinds += ["kill", "drop actor"] if actors else []
        step, kind = len(self.program), self._pick(kinds)
        if kind == "put":
            self._add(lang.Put(1 + self.choose(9), large=self.choose(3) == 0), frozenset())
        elif kind == "task":
            args, needs = self._args(below=None)
            self._add_body(lang.Task(self._body(args, top=True), tuple(args)), needs)
        elif kind == "actor":
            start: Any = 1 + self.choose(9)
            plain = [ref for ref in refs if ref not in self.lists]
            self.queued[step] = frozenset({step})
            if plain and self.choose(4) == 0:
                start = lang.Var(self._pick(plain))
                self.queued[step] |= self.needs[start.step]
            self.program.append(lang.Actor(self._pick(list(lang.KINDS)), start))
        elif kind == "call":
            self._draw_call(self._pick(actors))
        elif kind == "get":
            self.program.append(lang.Get((self._pick(refs),)))
        elif kind == "wait":
            some = tuple(ref for ref in refs if self.choose(2)) or (refs[0],)
            self.program.append(lang.Wait(some, 1 + self.choose(len(some))))
        elif kind == "cancel":
            tasks = [ref for ref in refs if isinstance(self.program[ref], (lang.Task, lang.Call))]
            self.program.append(lang.Cancel(self._pick(tasks)) if tasks else lang.Get((refs[0],)))
        elif kind == "kill":
            actor = self._pick(actors)
            if not any(isinstance(done, lang.Kill) and done.actor == actor for done in self.program):
                self.program.append(lang.Kill(actor))
        else:
            dropped = self._pick(actors if kind == "drop actor" else refs)
            self.gone.add(dropped)
            self.program.append(lang.Drop(dropped))

    def _add(self, statement: Any, needs: frozenset[int]) -> None:
        self.needs[len(self.program)] = needs
        self.program.append(statement)

    def _add_body(self, statement: Any, needs: frozenset[int]) -> None:
        body = statement.body if isinstance(statement, lang.Task) else statement.args[0]
        if isinstance(body, lang.Up):
            self.lists.add(len(self.program))
        self._add(statement, needs)

    def _draw_call(self, actor: int) -> None:
        method = self._pick(["bump", "running", "do"])
        if method == "do":
            args, needs = self._args(below=actor)
            call = lang.Call(actor, "do", (self._body(args, top=True), *args))
        else:
            plain = [ref for ref in self._refs() if ref not in self.lists]
            given = lang.Var(self._pick(plain)) if plain and self.choose(2) else 1 + self.choose(9)
            needs = self.needs[given.step] if isinstance(given, lang.Var) else frozenset()
            call = lang.Call(actor, method, (given,))
        self.queued[actor] |= needs
        if method == "do":
            self._add_body(call, self.queued[actor])
        else:
            self._add(call, self.queued[actor])

    def _args(self, below: int | None) -> tuple[list[Any], frozenset[int]]:
        """Arguments; what an actor waits for inside may only need actors made before it."""
        args: list[Any] = []
        needs: frozenset[int] = frozenset()
        for _ in range(self.choose(4)):
            inside = [
                ref
                for ref in self._refs()
                if below is None or all(actor < below for actor in self.needs[ref])
            ]
            plain = [ref for ref in self._refs() if ref not in self.lists]
            ways = ["number"] + ["value"] * 2 * bool(plain) + ["references"] * 2 * bool(inside)
            actors = [
                actor
                for actor in self._actors(below)
                if below is None or all(needed < below for needed in self.queued[actor])
            ]
            ways += ["handle"] * 2 * bool(actors)
            way = self._pick(ways)
            if way == "number":
                args.append(1 + self.choose(9))
            elif way == "value":
                args.append(lang.Var(self._pick(plain)))
                needs |= self.needs[args[-1].step]
            elif way == "references":
                args.append(
                    lang.Refs(tuple(dict.fromkeys(self._pick(inside) for _ in range(1 + self.choose(3)))))
                )
                needs = needs.union(*(self.needs[step] for step in args[-1].steps))
            else:
                args.append(lang.Refs((self._pick(actors),)))
                needs |= self.queued[args[-1].steps[0]]
        return args, needs

    def _body(self, args: Sequence[Any], *, top: bool = False) -> Any:
        kinds = [
            "number"
            if not isinstance(arg, lang.Refs)
            else "handle"
            if arg.steps[0] in self.queued
            else f"references {len(arg.steps)}"
            for arg in args
        ]
        if top:
            way = self.choose(6)
            if way == 0:
                return lang.Large(self._expression(kinds, 2))
            if way == 1:
                return lang.Up(*self._inner(kinds, 2))
        return self._expression(kinds, 3)

    def _expression(self, kinds: Sequence[str], depth: int) -> Any:
        numbers = [at for at, kind in enumerate(kinds) if kind == "number"]
        lists = [at for at, kind in enumerate(kinds) if kind.startswith("references")]
        handles = [at for at, kind in enumerate(kinds) if kind == "handle"]
        ways = ["int"] + ["arg"] * 2 * bool(numbers) + ["fetch"] * 3 * bool(lists)
        if depth:
            ways += ["add"] * 2 + ["do"] * 2 + ["bump"] * 3 * bool(handles)
            ways += ["boom"] if self.choose(6) == 0 else []
        way = self._pick(ways)
        if way == "int":
            return lang.Int(1 + self.choose(9))
        if way == "arg":
            return lang.Arg(self._pick(numbers))
        if way == "fetch":
            at = self._pick(lists)
            return lang.Fetch(at, self.choose(int(kinds[at].split()[1]) + 1))
        if way == "add":
            return lang.Add(tuple(self._expression(kinds, depth - 1) for _ in range(2)))
        if way == "do":
            return lang.Do(*self._inner(kinds, depth))
        if way == "bump":
            part = (
                lang.Later(*self._inner(kinds, depth))
                if self.choose(2)
                else self._expression(kinds, depth - 1)
            )
            return lang.Bump(self._pick(handles), part)
        return lang.Boom()

    def _inner(self, kinds: Sequence[str], depth: int) -> tuple[Any, tuple[Any, ...]]:
        """A body within a body, and what it is given."""
        given: list[Any] = []
        inner: list[str] = []
        for _ in range(self.choose(3)):
            way = self.choose(3)
            if way == 0 and kinds:
                given.append(lang.Pass(self.choose(len(kinds))))
                inner.append(kinds[given[-1].index])
            elif way == 1 and depth > 1:
                given.append(lang.Later(*self._inner(kinds, depth - 1)))
                inner.append("number")
            else:
                given.append(self._expression(kinds, depth - 1))
                inner.append("number")
        return self._expression(inner, depth - 1), tuple(given)


def drawn(choose: Choose) -> lang.Program:
    """A program."""
    return Drawer(choose).draw()


def check(program: lang.Program) -> None:
    """Run it on the engine in use; it must come to what the model says, and leave nothing.

    Raises:
        AssertionError: it does not.
    """
    run = Run(program)
    try:
        run.run()
    finally:
        run.held.clear()
    from tests.conftest import eventually

    if not _nothing_left():
        gc.collect()  # a caught error holds the frames that it passed, and they the references
        if not eventually(_nothing_left, PATIENCE_S):
            raise AssertionError(f"left: {_living()}, {_objects()}")


def check_all_free() -> None:
    """A task that needs all CPUs must run, whoever has kept some of them for tasks of its own."""
    whole = lang.run_body.options(num_cpus=trainkit.cluster_resources()["CPU"]).remote(lang.Int(7))
    if _settle(whole) != 7:
        raise AssertionError("a task that needs all CPUs came to nothing")


def _objects() -> list[Any]:
    return trainkit.list_objects() if "listings" in trainkit.runtime.context.promises() else []


def _living() -> list[Any]:
    return [actor for actor in trainkit.list_actors() if actor["state"] != "DEAD"]


def _nothing_left() -> bool:
    return not _living() and not _objects()
