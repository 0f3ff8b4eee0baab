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
from tests.runtime import small_programs as lang
from tests.runtime.program_model import ANY, Known, Model
from tests.suites.parts import BUILT_IN


@st.composite
def programs(draw: Any) -> lang.Program:
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
def test_programs_end_as_the_model_says(session: str, program: lang.Program) -> None:
    drawn.check(program)


def outcomes(*program: Any) -> dict[int, Any]:
    return {step: set(allowed) for step, allowed in Model(program).deep.items()}


def test_the_model_itself() -> None:
    adds = lang.Add((lang.Arg(0), lang.Fetch(1)))
    assert outcomes(lang.Put(3), lang.Put(4), lang.Task(adds, (lang.Var(0), lang.Refs((0, 1)))))[2] == {10}
    assert outcomes(
        lang.Task(lang.Boom()),
        lang.Task(lang.Int(1), (lang.Var(0),)),
        lang.Task(lang.Int(1), (lang.Refs((0,)),)),
    ) == {
        0: {"boom"},
        1: {"boom"},
        2: {1},
    }
    assert outcomes(lang.Task(lang.Up(lang.Do(lang.Int(2))), ()), lang.Task(lang.Arg(0), (lang.Var(0),)))[
        1
    ] == {2}
    counted = (lang.Actor("plain", 5), lang.Call(0, "running", (1,)), lang.Call(0, "running", (2,)))
    assert outcomes(*counted) == {1: {6}, 2: {8}}
    assert outcomes(*counted, lang.Kill(0), lang.Call(0, "bump", (1,))) == {
        1: {ANY, "died"},
        2: {ANY, "died"},
        4: {"died"},
    }
    shared = lang.Task(lang.Bump(0, lang.Later(lang.Int(4))), (lang.Refs((0,)),))
    assert outcomes(*counted, shared) == {1: {ANY}, 2: {ANY}, 3: {4}}
    assert Model((*counted, shared)).totals[0] == (12, 12)


def test_a_wrong_result_is_found(session: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nine = Known(frozenset({9}), frozenset({9}))
    monkeypatch.setattr(Model, "_known", lambda self, args: [nine])
    with pytest.raises(AssertionError, match=r"step 0 came to 2, and may only come to \['9'\]"):
        drawn.check((lang.Task(lang.Arg(0), (2,)),))
