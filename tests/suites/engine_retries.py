"""Calls that are made again, whoever keeps the handle and the reference meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.suites.parts import SOON_S, Keeper, await_file, fail_until, note, wait_for
from trainkit.plugins.testing.engine import Suite, needs
from trainkit.runtime.api import end_processes


def die_until(path: Path, count: int) -> int:
    """Note that it ran; die if it has run less than `count` times."""
    runs = note(path)
    if runs < count:
        os.kill(os.getpid(), signal.SIGKILL)
    return runs


def runs(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def has_run(path: Path, count: int) -> bool:
    return eventually(lambda: runs(path) == count, SOON_S)


def wait_and_fail_until(started: Path, gate: Path, path: Path, count: int, _: Any = None) -> int:
    started.touch()
    await_file(gate)
    return fail_until(path, count, KeyError("not yet"))


class Frail(Keeper):
    """Fails, or dies, when it is told to."""

    def fail_later(self, *given: Any) -> int:
        return wait_and_fail_until(*given)

    def die_until(self, path: Path, count: int) -> int:
        return die_until(path, count)

    def die_later(self, started: Path | str, gate: Path | str, path: Path | str, count: int) -> int:
        Path(started).touch()
        await_file(Path(gate))
        return die_until(Path(path), count)


def fail_later(actor: Any, *given: Any) -> None:
    actor.fail_later.options(retry_exceptions=True, max_task_retries=-1).remote(*given)


def frail(**options: Any) -> Any:
    return trainkit.remote(Frail).options(**options).remote()


def die_later(actor: Any, small: bool, *given: Any) -> None:
    actor.die_later.remote(*(map(_plain, given) if small else given))


def _plain(value: Any) -> Any:
    """Return a path as text, which goes with a small call."""
    return str(value) if isinstance(value, Path) else value


class RetrySuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone."""

    # what raises

    @pytest.mark.parametrize(("options", "elsewhere"), [({}, True), ({"max_restarts": 1}, False)])
    def test_a_method_that_raises_is_called_again_though_its_handle_is_gone(
        self, options: dict[str, Any], elsewhere: bool, tmp_path: Path
    ) -> None:
        actor = frail(**options)
        other = trainkit.remote(Keeper).remote([actor] if elsewhere else [])
        trainkit.get(other.get.remote())
        method = actor.fail_until.options(retry_exceptions=True, max_task_retries=2)
        ref = method.remote(tmp_path / "runs", 3, KeyError("not yet"))
        del actor, method
        assert trainkit.get(ref, timeout=SOON_S) == 3

    @pytest.mark.parametrize(("options", "handle_too"), [({}, True), ({"max_restarts": 1}, False)])
    def test_a_method_that_raises_is_called_again_though_nobody_waits(
        self, options: dict[str, Any], handle_too: bool, tmp_path: Path
    ) -> None:
        actor = frail(**options)
        method = actor.fail_until.options(retry_exceptions=True, max_task_retries=2)
        method.remote(tmp_path / "runs", 3, KeyError("not yet"))
        if handle_too:
            del actor, method
        assert has_run(tmp_path / "runs", 3)

    @needs("background")
    def test_a_method_that_raises_is_called_again_though_the_process_that_called_it_ends(
        self, tmp_path: Path
    ) -> None:
        actor, gate, path = frail(), tmp_path / "go", tmp_path / "runs"
        waiting = trainkit.remote(num_cpus=0)(wait_for).remote(gate)
        trainkit.get(
            trainkit.remote(max_calls=1)(fail_later).remote(actor, tmp_path / "started", gate, path, 3)
        )
        assert trainkit.wait([waiting], timeout=0.5)[0] == []
        gate.touch()
        assert has_run(path, 3)

    def test_a_task_that_raises_is_run_again_though_nobody_waits(self, tmp_path: Path) -> None:
        task = trainkit.remote(retry_exceptions=True)(fail_until)
        for name in ("first", "with a process that is there"):
            task.remote(tmp_path / name, 3, KeyError("not yet"))
            assert has_run(tmp_path / name, 3)

    @needs("background")
    def test_tasks_are_run_though_their_processes_were_let_go(self, tmp_path: Path) -> None:
        task = trainkit.remote(num_cpus=SESSION_CPUS, retry_exceptions=True)(wait_and_fail_until)
        gate, started = tmp_path / "go", tmp_path / "started"
        refs = [task.remote(started, gate, tmp_path / name, 2) for name in ("begun", "queued")]
        late = trainkit.remote(num_cpus=0)(wait_for).remote(gate)
        refs.append(task.remote(started, gate, tmp_path / "late", 2, late))
        await_file(started)
        end_processes(task)
        end_processes(trainkit.remote(note))  # others
        gate.touch()
        assert trainkit.get(refs, timeout=SOON_S) == [2, 2, 2]
        assert trainkit.get(task.remote(started, gate, tmp_path / "after", 2), timeout=SOON_S) == 2

    # what dies

    @needs("survives")
    def test_a_task_that_dies_is_run_again_though_nobody_waits(self, tmp_path: Path) -> None:
        task = trainkit.remote(die_until)
        for name in ("first", "with a process that is there"):
            task.remote(tmp_path / name, 2)
            assert has_run(tmp_path / name, 2)
            assert trainkit.get(task.remote(tmp_path / name, 0), timeout=SOON_S) == 3

    @needs("restarts")
    @pytest.mark.parametrize("small", [False, True])
    def test_a_method_whose_process_dies_is_called_again_though_the_process_that_called_it_ends(
        self, small: bool, tmp_path: Path
    ) -> None:
        actor = frail(max_restarts=-1, max_task_retries=-1)
        gate, path = tmp_path / "go", tmp_path / "runs"
        waiting = trainkit.remote(num_cpus=0)(wait_for).remote(gate)
        given = [tmp_path / "started", gate, path, 3]
        trainkit.get(trainkit.remote(max_calls=1)(die_later).remote(actor, small, *given))
        assert trainkit.wait([waiting], timeout=0.5)[0] == []
        gate.touch()
        assert has_run(path, 3)

    @needs("restarts")
    @pytest.mark.parametrize("kept", ["reference", "nothing"])
    def test_a_method_whose_process_dies_is_called_again_whatever_is_kept(
        self, kept: str, tmp_path: Path
    ) -> None:
        actor = frail(max_restarts=-1, max_task_retries=-1)
        gate, path, behind = tmp_path / "go", tmp_path / "runs", tmp_path / "behind"
        refs = [actor.die_later.remote(tmp_path / "started", gate, path, 3), actor.note.remote(behind)]
        del actor
        if kept != "reference":
            del refs
        await_file(tmp_path / "started")
        gate.touch()
        assert has_run(path, 3)
        assert eventually(lambda: runs(behind) >= 1, SOON_S)  # Ray may make it twice
        if kept == "reference":
            dies, notes = trainkit.get(refs, timeout=SOON_S)
            assert dies == 3
            assert notes >= 1
