"""reuse_actors=True: trials take over processes, and nothing that a trial must not find there is left."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, all_is_free, eventually
from trainkit import tune

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert eventually(all_is_free)


def tells_its_process(config):
    return {"pid": os.getpid(), "draw": random.random(), "x": config.get("x", 0)}


def pids(grid) -> list[int]:
    return [result.metrics["pid"] for result in grid]


def test_functions_share_processes_and_leave_none(fit):
    grid = fit(tells_its_process, num_samples=4 * SESSION_CPUS, reuse_actors=True)
    assert grid.num_terminated == 4 * SESSION_CPUS
    assert len(set(pids(grid))) <= SESSION_CPUS
    assert {result.metrics["training_iteration"] for result in grid} == {1}
    assert eventually(lambda: not any(map(is_alive, pids(grid))))


def test_a_stopped_function_ends_before_the_next_trial_begins(fit, tmp_path):
    log = tmp_path / "log"

    def trainable(config):
        try:
            for step in range(100):
                tune.report({"step": step})
        finally:
            with open(log, "a") as file:
                file.write(f"{tune.get_context().get_trial_id()}\n")

    grid = fit(
        trainable, num_samples=3, max_concurrent_trials=1, reuse_actors=True, run={"stop": {"step": 2}}
    )
    assert [result.metrics["step"] for result in grid] == [2, 2, 2]
    assert log.read_text().split() == [result.trial_id for result in grid]


def test_what_fails_or_is_killed_is_not_used_again(fit):
    def trainable(config):
        if config["x"] == 1:
            raise ValueError("no luck")
        if config["x"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        tune.report({"pid": os.getpid()})

    grid = fit(trainable, {"x": tune.grid_search(list(range(6)))}, max_concurrent_trials=1, reuse_actors=True)
    assert [result.status for result in grid] == [
        "TERMINATED",
        "ERROR",
        "TERMINATED",
        "ERROR",
        "TERMINATED",
        "TERMINATED",
    ]
    first, third, fifth, sixth = (result.metrics["pid"] for result in grid if result.metrics)
    assert fifth == sixth
    assert len({first, third, fifth}) == 3


class KillsFirst(tune.Callback):
    """Kills the process of the first trial once it has nothing to do, and leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def on_trial_complete(self, iteration, trials, trial, **info):
        if trial.index == 0:
            pid = trial.last_result["pid"]
            os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: not is_alive(pid))
            self.mark.touch()


class ThirdAfterSecond(tune.search.BasicVariantGenerator):
    """Gives the third configuration once the second trial has failed."""

    failed = False

    def suggest(self, trial_id):
        return None if trial_id.endswith("2") and not self.failed else super().suggest(trial_id)

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.failed |= error


def test_one_that_died_while_it_waited_costs_no_trial(fit, tmp_path):
    killed = tmp_path / "killed"

    def trainable(config):
        if config["x"] == 1:
            assert eventually(killed.exists), "the first was not killed"
            raise ValueError("its process serves no other")
        return {"pid": os.getpid()}

    grid = fit(
        trainable,
        {"x": tune.grid_search([0, 1, 2])},
        reuse_actors=True,
        search_alg=ThirdAfterSecond(),
        run={"callbacks": [KillsFirst(killed)]},
    )
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", "TERMINATED"]
    assert grid[0].metrics["pid"] != grid[2].metrics["pid"]


class Counting(tune.Trainable):
    """Says what object it is, and notes each call."""

    def setup(self, config):
        self.calls = [("setup", config["x"])]
        self.log = Path(config["log"])

    def step(self):
        return {
            "pid": os.getpid(),
            "object": id(self),
            "calls": [list(call) for call in self.calls],
            "config_x": self.config["x"],
            "folder": self.logdir,
            "own_iteration": self.iteration,
        }

    def cleanup(self):
        with open(self.log, "a") as file:
            file.write(f"{self.config['x']}\n")


class Resettable(Counting):
    def reset_config(self, new_config):
        if new_config["x"] == 2:
            return False
        self.calls.append(("reset", new_config["x"]))
        return True


def run_class(fit, trainable, tmp_path, **settings):
    space = {"x": tune.grid_search([0, 1, 2, 3]), "log": str(tmp_path / "cleaned")}
    run = {"stop": {"training_iteration": 2}, **settings.pop("run", {})}
    return fit(trainable, space, max_concurrent_trials=1, reuse_actors=True, run=run, **settings)


def test_a_class_without_reset_config_is_made_anew_in_the_same_process(fit, tmp_path):
    grid = run_class(fit, Counting, tmp_path)
    assert len(set(pids(grid))) == 1
    assert [result.metrics["calls"] for result in grid] == [[["setup", x]] for x in range(4)]
    assert (tmp_path / "cleaned").read_text().split() == ["0", "1", "2", "3"]


def test_a_class_with_reset_config_goes_on_as_the_same_object(fit, tmp_path):
    grid = run_class(fit, Resettable, tmp_path)
    assert len(set(pids(grid))) == 1
    assert [result.metrics["calls"] for result in grid] == [
        [["setup", 0]],
        [["setup", 0], ["reset", 1]],
        [["setup", 2]],  # it declined: a new object, after the clean-up of the old one
        [["setup", 2], ["reset", 3]],
    ]
    for x, result in enumerate(grid):
        assert [report["training_iteration"] for report in result.history] == [1, 2]
        assert result.metrics["config_x"] == x
        assert result.metrics["folder"] == result.path
    # One object each time, cleaned up once, as the last trial that it was.
    assert (tmp_path / "cleaned").read_text().split() == ["1", "3"]


def test_a_reset_that_raises_fails_its_trial_alone(fit, tmp_path):
    class Raising(Resettable):
        def reset_config(self, new_config):
            if new_config["x"] == 1:
                raise ValueError("not that one")
            return super().reset_config(new_config)

    grid = run_class(fit, Raising, tmp_path)
    assert [result.status for result in grid] == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert "not that one" in str(grid[1].error)
    assert (tmp_path / "cleaned").read_text().split() == ["0", "3"]


def test_checkpoints_are_the_trials_own_and_a_restore_goes_on_with_reuse(fit, restore, tmp_path):
    class Saving(Resettable):
        def save_checkpoint(self, checkpoint_dir):
            Path(checkpoint_dir, "x").write_text(str(self.config["x"]))

        def load_checkpoint(self, checkpoint_dir):
            self.calls.append(("load", int(Path(checkpoint_dir, "x").read_text())))

        def step(self):
            if self.iteration == 2 and not (self.log.parent / "mended").exists():
                raise RuntimeError("broken")
            return super().step()

    run = {
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
        "stop": {"training_iteration": 4},
    }
    grid = run_class(fit, Saving, tmp_path, run=run)
    assert grid.num_errors == 4
    assert [Path(result.checkpoint.path, "x").read_text() for result in grid] == ["0", "1", "2", "3"]
    (tmp_path / "mended").touch()
    again = restore(Saving, resume_errored=True)
    assert again.num_errors == 0
    assert len(set(pids(again))) == 1
    assert [report["training_iteration"] for report in again[3].history] == [1, 2, 3, 4]
    assert [result.metrics["calls"][-1] for result in again] == [["load", x] for x in range(4)]


def test_trials_that_need_something_else_do_not_wait_for_what_is_kept(fit):
    def cpus(config):
        return {"cpu": config["cpus"]}

    def trainable(config):
        return {"pid": os.getpid()}

    order = [1, SESSION_CPUS, 1, SESSION_CPUS]
    grid = fit(tune.with_resources(trainable, cpus), {"cpus": tune.grid_search(order)}, reuse_actors=True)
    assert grid.num_terminated == 4


def test_what_a_trial_starts_may_have_the_cpus_that_are_kept(fit):
    """The first trial's process waits for another; the second wants all CPUs for tasks of its own."""

    def trainable(config):
        if config["x"] == 0:
            return 0.0
        time.sleep(0.2)  # the first has ended, and its process waits
        task = trainkit.remote(num_cpus=SESSION_CPUS - 1)(os.getpid)
        return float(trainkit.get(task.remote(), timeout=60) > 0)

    grid = fit(trainable, {"x": tune.grid_search([0, 1])}, reuse_actors=True)
    assert grid.num_terminated == 2


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
