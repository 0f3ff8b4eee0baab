"""A sequential model of small programs: the numbers, or kinds of errors, that each value may come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.runtime import small_programs as lang

ANY = "any number"
_ANY_MOST = 1_000_000

Outcomes = frozenset[Any]


def _errors(outcomes: Outcomes) -> Outcomes:
    return frozenset(outcome for outcome in outcomes if isinstance(outcome, str) and outcome != ANY)


def _values(outcomes: Outcomes) -> Outcomes:
    return outcomes - _errors(outcomes)


def _sum(one: Outcomes, other: Outcomes) -> Outcomes:
    """One after the other: what fails first is what comes of it."""
    if not _values(one):
        return one
    sums = {ANY if ANY in (a, b) else a + b for a in _values(one) for b in _values(other)}
    return frozenset(_errors(one) | _errors(other) | sums)


@dataclass(frozen=True)
class Known:
    """The model's knowledge of an argument: its own outcome, and all that is behind it."""

    outer: Outcomes
    deep: Outcomes
    actor: int | None = None


class Model:
    """Runs a program step by step, each as soon as it is there.

    Attributes:
        deep: by step, the outcomes of its reference and all that this leads to.
        births: by actor, the outcomes of its constructor.
        totals: by actor, the least and the most that it may have counted.
    """

    def __init__(self, program: lang.Program) -> None:
        self.program = program
        self.outer: dict[int, Outcomes] = {}
        self.deep: dict[int, Outcomes] = {}
        self.births: dict[int, Outcomes] = {}
        self.totals: dict[int, tuple[int, int]] = {}
        self._callers = _callers(program)
        self._kills = {step.actor: at for at, step in enumerate(program) if isinstance(step, lang.Kill)}
        self._cancels = {step.step for step in program if isinstance(step, lang.Cancel)}
        # What is not waited for, as something else failed or was let go of, may be counted later.
        self._is_strict = not any(isinstance(step, (lang.Kill, lang.Cancel, lang.Drop)) for step in program)
        self._is_strict = self._is_strict and "Boom()" not in repr(program)
        self._now = 0
        self._extra: Outcomes = frozenset()
        for step, statement in enumerate(program):
            self._now = step
            self._extra = frozenset({"cancelled"} if step in self._cancels else ())
            self._step(step, statement)

    def killed_at(self, actor: int) -> int | None:
        """The step in which an actor is killed, if any does it."""
        return self._kills.get(actor)

    def _step(self, step: int, statement: Any) -> None:
        match statement:
            case lang.Put(value):
                self.outer[step] = self.deep[step] = frozenset({value})
            case lang.Task(body, args):
                self.outer[step], self.deep[step] = self._run(body, self._known(args), self._extra)
            case lang.Actor(_, start):
                (known,) = self._known([start])
                self.births[step] = known.outer | (known.deep if known.outer != known.deep else frozenset())
                numbers = [value for value in _values(known.deep) if value != ANY]
                high = _ANY_MOST if ANY in known.deep else max(numbers, default=0)
                self.totals[step] = (min(numbers, default=0), high)
            case lang.Call():
                self.outer[step], self.deep[step] = self._call(statement)

    def _known(self, args: Iterable[Any]) -> list[Known]:
        known = []
        for arg in args:
            if isinstance(arg, lang.Var):
                known.append(Known(self.outer[arg.step], self.deep[arg.step]))
            elif isinstance(arg, lang.Refs) and isinstance(self.program[arg.steps[0]], lang.Actor):
                known.append(Known(frozenset({0}), frozenset({0}), actor=arg.steps[0]))
            elif isinstance(arg, lang.Refs):
                deep: Outcomes = frozenset({0})
                for step in arg.steps:
                    deep = _sum(deep, self.deep[step])
                known.append(Known(frozenset({0}), deep))
            else:
                known.append(Known(frozenset({arg}), frozenset({arg})))
        return known

    def _call(self, call: lang.Call) -> tuple[Outcomes, Outcomes]:
        known = self._known(call.args if call.method != "do" else call.args[1:])
        extra = self._extra | self.fate(call.actor)
        if self._is_gone(call.actor):
            # It may fail for its arguments, or be cancelled, before it is sent.
            failed = frozenset({"died"}).union(self._extra, *(_errors(arg.outer) for arg in known))
            return failed, failed
        if call.method == "do":
            return self._run(call.args[0], known, extra | ({"owner"} if "died" in extra else frozenset()))
        (amount,) = known
        came = self._bump(call.actor, amount.outer, extra)
        if call.method == "bump":
            return came, came
        in_order = self.program[call.actor].kind == "plain" and self._callers[call.actor] == {"driver"}
        low, high = self.totals[call.actor]
        value = low if in_order and low == high and not _errors(came) else ANY
        came = _errors(came) | (frozenset({value}) if _values(came) else frozenset())
        return came, came

    def fate(self, actor: int) -> Outcomes:
        """The errors that a call of the actor may come to, whatever it does."""
        errors = _errors(self.births[actor])
        return errors | {"died"} if errors or actor in self._kills else errors

    def _is_gone(self, actor: int) -> bool:
        killed = self._kills.get(actor)
        return killed is not None and killed < self._now and self.program[actor].kind != "restartable"

    def _bump(self, actor: int, amounts: Outcomes, extra: Outcomes) -> Outcomes:
        came = amounts | extra
        numbers = [value for value in _values(amounts) if value != ANY]
        low, high = self.totals[actor]
        if numbers:
            high += max(numbers)
        if self._is_strict and numbers:
            low += min(numbers)
        if ANY in amounts:
            high += _ANY_MOST
        self.totals[actor] = low, high
        return came

    def _run(self, body: Any, args: list[Known], extra: Outcomes) -> tuple[Outcomes, Outcomes]:
        """Return the outcome of a task: errors of its arguments come first, in any order."""
        failed = frozenset().union(*(_errors(arg.outer) for arg in args))
        if any(not _values(arg.outer) for arg in args):
            return failed | extra, failed | extra
        args = [
            dataclasses.replace(
                arg, deep=_values(arg.deep) | (_errors(arg.deep) if arg.outer != arg.deep else frozenset())
            )
            for arg in args
        ]
        sure = failed | extra
        if isinstance(body, lang.Up):
            given = self._given(body.args, args, sure)
            _, deep = self._run(body.body, given, sure)
            # A pending argument is the inner task's; one that is worked out first may fail here.
            first = [
                known
                for arg, known in zip(body.args, given, strict=True)
                if not isinstance(arg, (lang.Pass, lang.Later))
            ]
            outer = frozenset({0}) | sure
            for known in first:
                outer = _sum(
                    outer, frozenset(0 if value in _values(known.outer) else value for value in known.outer)
                )
            return outer, (deep if _values(outer) else frozenset()) | _errors(outer)
        came = self._evaluate(body.of if isinstance(body, lang.Large) else body, args, sure)
        return came | sure, came | sure

    def _given(self, given: Iterable[Any], args: list[Known], sure: Outcomes) -> list[Known]:
        known = []
        for arg in given:
            if isinstance(arg, lang.Pass):
                known.append(args[arg.index])
            elif isinstance(arg, lang.Later):
                known.append(Known(*self._run(arg.body, self._given(arg.args, args, sure), sure)))
            else:
                came = self._evaluate(arg, args, sure)
                known.append(Known(came, came))
        return known

    def _evaluate(self, body: Any, args: list[Known], sure: Outcomes) -> Outcomes:
        match body:
            case lang.Int(value):
                return frozenset({value})
            case lang.Arg(index) | lang.Fetch(index):
                return args[index].deep
            case lang.Add(parts):
                total: Outcomes = frozenset({0})
                for part in parts:
                    if not _values(total):
                        break
                    total = _sum(total, self._evaluate(part, args, sure | _errors(total)))
                return total
            case lang.Do(inner, given):
                return self._run(inner, self._given(given, args, sure), sure)[1]
            case lang.Bump(index, part):
                actor = args[index].actor
                assert actor is not None
                (amount,) = self._given([part], args, sure)
                if self._is_gone(actor):
                    return frozenset({"died"}) | _errors(amount.outer) | sure
                return self._bump(actor, amount.outer, self.fate(actor) | sure)
            case lang.Boom():
                return frozenset({"boom"})
        raise TypeError(body)


def _callers(program: lang.Program) -> dict[int, set[str]]:
    """Return the callers of each actor: the driver, or those that were given its handle."""
    callers: dict[int, set[str]] = {
        step: set() for step, made in enumerate(program) if isinstance(made, lang.Actor)
    }
    for statement in program:
        if isinstance(statement, lang.Call):
            callers[statement.actor].add("driver")
        for arg in getattr(statement, "args", ()):
            if isinstance(arg, lang.Refs) and arg.steps[0] in callers:
                callers[arg.steps[0]].add("others")
    return callers
