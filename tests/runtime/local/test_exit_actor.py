"""Actors that end themselves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

import trainkit
from tests.conftest import eventually
from tests.runtime.local.performers import Leaver

pytestmark = pytest.mark.usefixtures("runtime")

REASON = r"Leaver \(pid \d+\) was ended: it ended itself by exit_actor\(\)"


def test_the_call_and_those_behind_it_fail_with_the_reason() -> None:
    actor = trainkit.remote(Leaver).remote()
    pid = trainkit.get(actor.pid.remote())
    before = actor.pid.remote()
    refs = [actor.leave.remote(), actor.pid.remote(), actor.pid.remote()]
    assert trainkit.get(before) == pid, "what it had answered arrives"
    for ref in refs:
        with pytest.raises(trainkit.errors.ActorDiedError, match=REASON) as caught:
            trainkit.get(ref, timeout=60)
        assert caught.value.pid == pid
    assert caught.value.exit_code == 0
    assert eventually(lambda: not psutil.pid_exists(pid))
    with pytest.raises(trainkit.errors.ActorDiedError, match=REASON):
        trainkit.get(actor.pid.remote(), timeout=60)


def test_it_ends_as_a_program_does(tmp_path: Path) -> None:
    actor = trainkit.remote(Leaver).remote()
    actor.leave.remote(tmp_path / "at_exit")
    assert eventually((tmp_path / "at_exit").exists)


def test_in_the_constructor() -> None:
    with pytest.raises(trainkit.errors.ActorDiedError, match=REASON):
        trainkit.get(trainkit.remote(Leaver).remote(at_once=True).pid.remote(), timeout=60)
