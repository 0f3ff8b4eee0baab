"""The rules by which actors are made anew and calls made again, without any process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.runtime.restart_policy import (
    ExitRecord,
    describe,
    restart_delay_s,
    retries_after_restart,
    should_restart,
)

KILLED = ExitRecord(pid=7, code=-9)


@pytest.mark.parametrize(
    ("exit_", "again"),
    [
        (KILLED, True),
        (ExitRecord(pid=7, code=3), True),
        (ExitRecord(pid=7, code=-9, out_of_memory=True), True),
        (ExitRecord(reason="fork failed"), True),
        (ExitRecord(pid=7, code=0), True),
        (ExitRecord(pid=7, code=-9, requested=True, reason="its owner ended"), False),
        (ExitRecord(pid=7, code=-9, requested=True, reason="kill(no_restart=False)", may_restart=True), True),
        (ExitRecord(requested=True, reason="killed before it had a process", may_restart=True), True),
    ],
)
def test_what_is_made_anew(exit_: ExitRecord, again: bool) -> None:
    assert should_restart(exit_, 1) is again
    assert should_restart(exit_, -1) is again
    assert not should_restart(exit_, 0)


@given(st.integers(0, 10_000))
def test_a_delay_grows_up_to_a_limit(deaths: int) -> None:
    assert restart_delay_s(0) == 0
    assert 0 <= restart_delay_s(deaths) <= restart_delay_s(deaths + 1) <= 0.2


@given(st.integers(0, 20))
def test_a_call_is_sent_as_often_as_asked(retries: int) -> None:
    left, sent = retries_after_restart(False, retries), 0
    while left is not None:
        sent += 1
        left = retries_after_restart(True, left)
    assert sent == retries + 1


def test_what_follows_is_told_before_the_last_words() -> None:
    exit_ = ExitRecord(pid=7, code=2, stderr_tail="oh")
    text = describe(exit_, "A", "; it is being made anew")
    assert text == (
        "A (pid 7) ended by itself with exit code 2; it is being made anew\nIts last lines of stderr:\n  oh"
    )
