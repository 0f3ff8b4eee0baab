"""Programs drawn at random come to what a sequential model says, end, and leave nothing; see `drawn`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trainkit
from tests.conftest import children, eventually, examples
from tests.runtime import drawn
from tests.runtime.program_model import (
    ANY,
    Known,
    Model,
)
from tests.runtime.small_programs import (
    Actor,
    Add,
    Arg,
    Boom,
    Bump,
    Call,
    Do,
    Fetch,
    Int,
    Kill,
    Later,
    Program,
    Put,
    Refs,
    Task,
    Up,
    Var,
)
from tests.suites.parts import BUILT_IN


@st.composite
def programs(draw: Any) -> Program:
    return drawn.drawn(lambda below: draw(st.integers(0, below - 1)))


@pytest.fixture(scope="module", params=BUILT_IN)
def session(request: pytest.FixtureRequest) -> Iterator[str]:
    before = children()
    trainkit.init(engine=request.param, **drawn.SESSION)
    yield request.param
    drawn.check_all_free()
    trainkit.shutdown()
    assert eventually(lambda: children() <= before)


@pytest.mark.slow
@pytest.mark.timeout(900)  # 300 programs of several processes each: 25 s where nothing else runs
@given(programs())
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
def test_programs_end_as_the_model_says(session: str, program: Program) -> None:
    drawn.check(program)


def outcomes(*program: Any) -> dict[int, Any]:
    return {step: set(allowed) for step, allowed in Model(program).deep.items()}


def test_the_model_itself() -> None:
    adds = Add((Arg(0), Fetch(1)))
    assert outcomes(Put(3), Put(4), Task(adds, (Var(0), Refs((0, 1)))))[2] == {10}
    assert outcomes(Task(Boom()), Task(Int(1), (Var(0),)), Task(Int(1), (Refs((0,)),))) == {
        0: {"boom"},
        1: {"boom"},
        2: {1},
    }
    assert outcomes(Task(Up(Do(Int(2))), ()), Task(Arg(0), (Var(0),)))[1] == {2}
    counted = (Actor("plain", 5), Call(0, "running", (1,)), Call(0, "running", (2,)))
    assert outcomes(*counted) == {1: {6}, 2: {8}}
    assert outcomes(*counted, Kill(0), Call(0, "bump", (1,))) == {
        1: {ANY, "died"},
        2: {ANY, "died"},
        4: {"died"},
    }
    shared = Task(Bump(0, Later(Int(4))), (Refs((0,)),))
    assert outcomes(*counted, shared) == {1: {ANY}, 2: {ANY}, 3: {4}}
    assert Model((*counted, shared)).totals[0] == (12, 12)


def test_a_wrong_result_is_found(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nine = Known(frozenset({9}), frozenset({9}))
    monkeypatch.setattr(Model, "_known", lambda self, args: [nine])
    with pytest.raises(AssertionError, match=r"step 0 came to 2, and may only come to \['9'\]"):
        drawn.check((Task(Arg(0), (2,)),))
