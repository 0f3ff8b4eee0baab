"""What the suites share: a session of the engine under test, and tests that depend on its promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import pytest

import trainkit
from tests.conftest import SESSION_CPUS
from trainkit.runtime.engine import PROMISES
from trainkit.runtime.session import ENGINES

F = TypeVar("F", bound=Callable[..., Any])

BUILT_IN = ("local", "inline")
"""The engines that need nothing but this package, the one that promises all first."""


def promising(*promises: str) -> list[str]:
    """The built-in engines that make all these promises, to parametrize a test with."""
    return [engine for engine in BUILT_IN if set(promises) <= PROMISES[engine]]


def needs(*promises: str) -> Callable[[F], F]:
    """Of a test: it is one only for engines that make all these promises."""
    return _depending("needs", promises)


def lacks(*promises: str) -> Callable[[F], F]:
    """Of a test: it is one only for engines that make none of these, and tells what they do instead."""
    return _depending("lacks", promises)


def _depending(how: str, promises: tuple[str, ...]) -> Callable[[F], F]:
    unknown = set(promises) - set().union(*PROMISES.values())
    if unknown:
        raise ValueError(f"no engine promises {unknown}")

    def mark(test: F) -> F:
        setattr(test, f"_{how}", frozenset(promises))
        return test

    return mark


class Suite:
    """Inherit, and name the engine: its session lasts for the class.

    Attributes:
        engine: whose promises decide which tests there are; "" for a suite that is not to be run itself.
        settings: of the session.
    """

    engine: ClassVar[str] = ""
    settings: ClassVar[Mapping[str, Any]] = {"num_cpus": SESSION_CPUS}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not cls.engine:
            return
        made = PROMISES.get(cls.engine) or ENGINES.get(cls.engine).promises
        for name in dir(cls):
            test = getattr(cls, name)
            if getattr(test, "_needs", frozenset()) - made or getattr(test, "_lacks", frozenset()) & made:
                setattr(cls, name, None)  # no test of this class any more

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def session(cls) -> Iterator[None]:
        trainkit.init(engine=cls.engine, **cls.settings)
        yield
        trainkit.shutdown()
