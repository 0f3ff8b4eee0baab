"""The node is killed under all kinds of work, which ends as if nothing had happened; see `node_losses`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from sklearn.linear_model import Ridge

import trainkit
from tests import node_losses
from tests.conftest import eventually
from trainkit import tune
from trainkit.errors import GangError, NodeDiedError
from trainkit.runtime import session
from trainkit.sklearn import TuneGridSearchCV
from trainkit.tune.store.reader import ExperimentReader


@pytest.mark.slow
@pytest.mark.parametrize("group", node_losses.GROUPS)
def test_killed_at_once_or_at_any_moment_it_ends_as_if_undisturbed(group: str) -> None:
    """Results, suggestions, decisions and best are equal; no failure is counted, nothing is left."""
    turn = int(group == "trainers")
    scenarios = len(node_losses.GROUPS[group])
    node_losses.check(group, [[number % 2] for number in range(turn, turn + scenarios)])


def test_a_node_that_dies_again_and_again_ends_the_experiment_and_a_plain_restore_finishes_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    trainkit.init(num_cpus=1)
    try:
        tuner = tune.Tuner(
            node_losses.murderous,
            param_space={"x": tune.uniform(0, 1), "while": str(flag)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=3, seed=1),
            run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
        )
        with pytest.raises(NodeDiedError, match=r"killed by signal 9\), for the 4th time in a row"):
            tuner.fit()
        assert "0 of the running trials resume from their checkpoints, and 1 start over" in caplog.text
        with ExperimentReader(tmp_path / "e") as reader:
            (trial,) = reader.trials()
        assert (str(trial.status), trial.failures, trial.iteration) == ("PENDING", 0, 1)
        flag.unlink()
        trainkit.init(num_cpus=1)
        grid = tune.Tuner.restore(tmp_path / "e", node_losses.murderous).fit()
        assert [(str(result.status), len(result.history)) for result in grid] == [("TERMINATED", 3)] * 3
    finally:
        trainkit.shutdown()


class Keeping:
    """Actor that holds a checkpoint."""

    def __init__(self) -> None:
        self.kept = tune.Checkpoint.from_dict({"x": 1})

    def path(self) -> str:
        return self.kept.path


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["actor", "node"])
def test_a_checkpoint_of_a_killed_actor_is_on_the_disk_and_goes_with_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "disk"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "memory"))
    for name in ("disk", "memory"):
        (tmp_path / name).mkdir()
    trainkit.init(num_cpus=1)
    try:
        keeping = trainkit.remote(Keeping).remote()
        path = Path(trainkit.get(keeping.path.remote()))
        assert path.parent == tmp_path / "disk" and path.is_dir()
        with session.linked(tmp_path / "ours"):
            (tmp_path / "ours").mkdir()
            if killed == "node":
                (node,) = trainkit.nodes()
                os.kill(node["pid"], signal.SIGKILL)
                assert eventually(lambda: not path.exists())
                assert (tmp_path / "ours").exists(), "this program goes on"
            else:
                trainkit.kill(keeping)
                with pytest.raises(trainkit.errors.ActorDiedError):
                    trainkit.get(keeping.path.remote())
                assert path.is_dir()
    finally:
        trainkit.shutdown()
    assert not path.exists()


def few(config: dict[str, Any]) -> None:
    for _ in range(8):
        time.sleep(0.05)
        tune.report({"loss": config["x"]})


class Slow(Ridge):
    """An estimator that takes its time."""

    def fit(self, *arguments: Any) -> Slow:
        time.sleep(0.1)
        super().fit(*arguments)
        return self


@contextlib.contextmanager
def killed_templates(seed: int) -> Iterator[None]:
    """Kill templates at drawn moments while the block runs."""
    draw, over = random.Random(seed), threading.Event()

    def kill() -> None:
        for _ in range(3):  # a template that is killed before it is ready starts nothing
            if over.wait(draw.uniform(0, 4)):
                return
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name() == "trainkit-tmpl" and draw.random() < 0.8:
                        child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join()


@pytest.mark.slow
def test_a_killed_template_is_nobody_s_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @trainkit.remote(max_retries=0)
    def task(number: int) -> int:
        time.sleep(0.02)
        return number

    @trainkit.remote
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    trainkit.init(num_cpus=2)
    try:
        with killed_templates(0):
            counter = Counter.options(num_cpus=0).remote()
            turn = 0
            while turn < 4:
                turn += 1
                named = task.options(name=f"task{turn}")
                calls = [named.remote(number) for number in range(10)]
                late = Counter.options(num_cpus=0).remote()
                assert trainkit.get(calls, timeout=120) == list(range(10))
                assert trainkit.get([counter.add.remote(), late.add.remote()], timeout=120) == [turn, 1]
            grid = tune.Tuner(
                few,
                param_space={"x": tune.grid_search([1, 2, 3, 4])},
                run_config=tune.RunConfig(storage_path=tmp_path, verbose=0),
            ).fit()
            assert [(result.error, len(result.history)) for result in grid] == [(None, 8)] * 4
            data = np.arange(60.0).reshape(30, 2)
            search = TuneGridSearchCV(
                Slow(), {"alpha": [1.0, 2.0, 3.0]}, cv=3, refit=False, error_score="raise"
            )
            search.fit(data, data[:, 0])
            assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    finally:
        trainkit.shutdown()
    assert "Traceback" not in capfd.readouterr().err


def test_templates_that_end_at_once_fail_what_is_asked_of_them_and_nothing_else() -> None:
    @trainkit.remote(num_cpus=0)
    class Counter:
        def add(self) -> int:
            return 1

    over = threading.Event()

    def kill(node: psutil.Process) -> None:
        while not over.wait(0.001):
            for child in node.children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if not child.name().startswith("tk-"):
                        child.kill()

    def is_told_why() -> bool:
        try:
            trainkit.get(Counter.remote().add.remote(), timeout=60)
        except trainkit.errors.ActorDiedError as error:
            return "end during their start" in str(error)
        return False

    trainkit.init(num_cpus=1)
    try:
        bystander = Counter.remote()
        assert trainkit.get(bystander.add.remote(), timeout=60) == 1
        (node,) = trainkit.nodes()
        killer = threading.Thread(target=kill, args=(psutil.Process(node["pid"]),))
        killer.start()
        try:
            assert eventually(lambda: len(psutil.Process(node["pid"]).children()) <= 1)
            assert eventually(is_told_why, 180), "a busy machine may let a template live now and then"
        finally:
            over.set()
            killer.join()
        late = Counter.remote()
        assert trainkit.get([bystander.add.remote(), late.add.remote()], timeout=60) == [1, 1]
    finally:
        trainkit.shutdown()


@pytest.fixture(scope="module")
def trainers() -> Iterator[None]:
    """A session for trainers, on whichever node it has by then."""
    trainkit.init(num_cpus=2, preload=node_losses.TRAINERS)
    yield
    trainkit.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["apply", "train"])
@pytest.mark.usefixtures("trainers")
def test_what_is_not_to_be_run_again_raises_and_the_workers_are_formed_again(
    tmp_path: Path, how: str
) -> None:
    from tests.train.workers.killed_operator import KilledOperator
    from trainkit.train import TorchTrainer

    begun = tmp_path / "begun"

    def once() -> int:
        with begun.open("a") as file:
            file.write("x")
        (node,) = trainkit.nodes()
        if len(begun.read_text()) == 1:
            os.kill(node["pid"], signal.SIGKILL)
            time.sleep(600)
        return 1

    class Once(KilledOperator):
        def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
            if batch_info["batch_idx"] == 0:
                once()
            return super().train_batch(batch, batch_info)

    with TorchTrainer(
        training_operator_cls=Once, config={}, use_gpu=False, scheduler_step_freq="epoch"
    ) as trainer:

        def act() -> Any:
            return trainer.apply_all_workers(once) if how == "apply" else trainer.train(max_retries=0)

        with pytest.raises(GangError, match=r"is not retried automatically. All workers restart"):
            act()
        assert begun.read_text() == "x"
        assert act()
        assert begun.read_text() == "xx"


@pytest.mark.slow
@pytest.mark.usefixtures("trainers")
def test_a_trainer_without_a_snapshot_says_that_its_state_is_lost() -> None:
    from tests.train.operators import Digits  # what no other test here waits for in its workers
    from trainkit.train import TorchTrainer

    with TorchTrainer(training_operator_cls=Digits, config={"samples": 40}, use_gpu=False) as trainer:
        trainer.train(max_retries=0)
        (pid,) = node_losses.node_pids()
        os.kill(pid, signal.SIGKILL)
        assert eventually(lambda: pid not in node_losses.node_pids())
        with pytest.raises(GangError, match="no snapshot of the workers' state exists: make a new"):
            trainer.train()
        with pytest.raises(GangError, match="have ended"):
            trainer.train()
