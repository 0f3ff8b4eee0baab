"""Trials whose steps are tasks: each step in whichever process, and what becomes of those that die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import trainkit
from tests.conftest import all_is_free, eventually
from tests.node_losses import node_pids
from trainkit import tune
from trainkit.errors import SerializationError, WorkerDiedError
from trainkit.runtime import session
from trainkit.runtime.engine import Engine
from trainkit.runtime.session import start as start_session
from trainkit.tune.controller import events as ev
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.resources import DEFAULT_REQUEST, Bound
from trainkit.tune.core.trial import Trial
from trainkit.tune.executor.base import Executor
from trainkit.tune.executor.specs import SpecFactory
from trainkit.tune.executor.tasks import TaskExecutor
from trainkit.tune.trial.steps import SerializedTrainable

pytestmark = pytest.mark.usefixtures("runtime")


class Counts(SerializedTrainable):
    """Does what its configuration says, and counts its steps."""

    def setup(self, config: dict[str, Any], *, told: str = "") -> None:  # type: ignore[override]
        self._told = told
        self._count = 0

    @property
    def state(self) -> int:
        return self._count

    @state.setter
    def state(self, state: int) -> None:
        self._count = state

    def step(self) -> dict[str, Any]:
        match self.config.get("how"):
            case "raise":
                raise ValueError(f"at step {self._count}")
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "sleep":
                Path(self.config["path"]).write_text(str(os.getpid()))
                time.sleep(600)
        self._count += 1
        told = {"told": self._told, "cwd": os.getcwd()}
        return {"count": self._count, "done": self._count == self.config["steps"], **told}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., TaskExecutor]]:
    made = []

    def make(run: tune.RunConfig | None = None, **parameters: Any) -> TaskExecutor:
        specs = SpecFactory(tmp_path, run or tune.RunConfig(), lambda index: None)
        made.append(TaskExecutor(Bound(Counts, parameters=parameters, ahead=2), specs, now=time.monotonic))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def news(executor: Executor) -> list[ev.Event]:
    found: list[ev.Event] = []
    while not found:
        executor.wait(None)
        found = executor.collect()
    return found


def begin(executor: TaskExecutor, trial_id: str, **config: Any) -> None:
    trial = Trial(trial_id, 0, {"steps": 2, **config}, name=trial_id, dirname=trial_id)
    executor.carry_out([ev.Start(trial, 0, 0, None)])
    (started,) = news(executor)
    assert isinstance(started, ev.Started)
    assert started.trial_id == trial_id


def advance(executor: TaskExecutor, trial_id: str) -> ev.Event:
    executor.carry_out([ev.Advance(trial_id)])
    (event,) = news(executor)
    return event


def test_a_step_begins_with_the_state_of_the_one_before(make: Callable[..., TaskExecutor]) -> None:
    executor = make(told="all the same")
    begin(executor, "a")
    begin(executor, "b", steps=1)
    reports: list[Any] = [advance(executor, "a"), advance(executor, "b"), advance(executor, "a")]
    assert [(each.trial_id, each.iteration, each.metrics["count"], each.done) for each in reports] == [
        ("a", 1, 1, False),
        ("b", 1, 1, True),
        ("a", 2, 2, True),
    ]
    assert {each.metrics["told"] for each in reports} == {"all the same"}
    assert os.getpid() not in {each.metrics["pid"] for each in reports}
    first, _, second = (each.metrics["time_total_s"] for each in reports)
    assert first < second
    executor.carry_out([ev.Release("a"), ev.Release("b")])
    assert executor.idle
    assert executor.gone


def test_a_session_that_is_lost_while_it_is_renewed_is_told_too(
    make: Callable[..., TaskExecutor], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make()
    start = ev.Start(Trial("a", 0, {"steps": 1_000_000}, name="a", dirname="a"), 0, 0, None)
    executor.carry_out([start])
    assert [type(each) for each in executor.collect()] == [ev.Started]
    with monkeypatch.context() as patch:
        patch.setattr(session, "start", dying_start)
        kill_node()
        while not isinstance(advance(executor, "a"), ev.SessionLost):
            continue  # the process that waited for a further step has outlived the node by a moment
        for _ in range(2):
            executor.carry_out([ev.Renew(), start])
            assert [type(each) for each in executor.collect()] == [ev.SessionLost]
    executor.carry_out([ev.Renew(), start])
    assert [type(each) for each in executor.collect()] == [ev.Started]
    assert isinstance(advance(executor, "a"), ev.Reported)


def kill_node() -> None:
    assert eventually(node_pids)
    (pid,) = node_pids()
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not node_pids())


def dying_start(*arguments: Any) -> Engine:
    """Start a session whose node dies before it is of any use."""
    engine = start_session(*arguments)
    try:
        kill_node()
        engine.require_node()
        return engine
    finally:
        engine.close()


def test_a_trial_s_folder_is_there_when_it_has_started(
    make: Callable[..., TaskExecutor], tmp_path: Path
) -> None:
    executor = make()
    begin(executor, "a")
    assert (tmp_path / "a").is_dir()
    (tmp_path / "b").touch()
    trial = Trial("b", 0, {"steps": 2}, name="b", dirname="b")
    executor.carry_out([ev.Start(trial, 0, 0, None)])
    (event,) = news(executor)
    assert isinstance(event, ev.Failed)
    assert event.failure.kind == "FileExistsError"


def test_processes_go_with_the_experiment(make: Callable[..., TaskExecutor]) -> None:
    executor = make()
    begin(executor, "a")
    report: Any = advance(executor, "a")
    again: Any = advance(executor, "a")
    assert report.metrics["pid"] == again.metrics["pid"]
    executor.dismiss()
    assert eventually(lambda: not psutil.pid_exists(report.metrics["pid"]))
    assert eventually(all_is_free)


def test_between_two_steps_an_end_takes_no_process(make: Callable[..., TaskExecutor]) -> None:
    executor = make()
    begin(executor, "a")
    advance(executor, "a")
    executor.carry_out([ev.Stop("a", False)])
    (event,) = news(executor)
    assert isinstance(event, ev.Finished)
    assert event.iteration == 1


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [("raise", "ValueError", "at step 0"), ("kill", "WorkerDiedError", "was killed by SIGKILL")],
)
def test_a_failure_is_that_trial_s_alone(
    how: str, kind: str, words: str, make: Callable[..., TaskExecutor]
) -> None:
    executor = make()
    begin(executor, "bad", how=how)
    begin(executor, "good")
    executor.carry_out([ev.Advance("bad"), ev.Advance("good")])
    found: dict[str, Any] = {}
    while len(found) < 2:
        found |= {event.trial_id: event for event in news(executor)}  # type: ignore[union-attr]
    assert isinstance(found["bad"], ev.Failed)
    assert found["bad"].failure.kind == kind
    assert found["bad"].failure.retry
    assert words in found["bad"].failure.message
    assert isinstance(executor.errors["bad", 0], ValueError if how == "raise" else WorkerDiedError)
    assert isinstance(found["good"], ev.Reported)


def pid_in(path: Path) -> int:
    assert eventually(lambda: path.exists() and path.read_text() != "")
    return int(path.read_text())


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_step_that_never_ends_is_ended(end: str, make: Callable[..., TaskExecutor], tmp_path: Path) -> None:
    executor = make()
    begin(executor, "a", how="sleep", path=str(tmp_path / "pid"))
    executor.carry_out([ev.Advance("a")])
    pid = pid_in(tmp_path / "pid")
    if end == "kill":
        executor.carry_out([ev.Kill("a")])
    else:
        executor.close()
    assert executor.idle
    assert eventually(lambda: not psutil.pid_exists(pid))
    assert trainkit.get(trainkit.remote(abs).remote(-1), timeout=60) == 1


def test_what_cannot_be_sent_is_refused_by_name(make: Callable[..., TaskExecutor]) -> None:
    with pytest.raises(SerializationError, match=r"with_parameters\(told=...\)"):
        make(told=(number for number in range(3)))


def test_a_ledger_that_lets_trials_go_ahead_counts_no_more_than_there_is() -> None:
    ledger = ResourceLedger({"CPU": 2}, ahead=2)
    assert [ledger.reserve(str(trial), DEFAULT_REQUEST) for trial in range(5)] == [True] * 4 + [False]
    assert ledger.used() == {"CPU": 2}
    for trial in range(3):
        ledger.release(str(trial))
    assert ledger.used() == {"CPU": 1}
    ledger.release("3")
    assert ledger.used() == {}
