"""Work whose node is killed at random moments, each from a seed: it ends as if nothing had happened.

All moments by hand: python -m tests.node_losses [--moments 50] [--first 0] [GROUP ...]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

import trainkit
from tests.conftest import session_processes
from trainkit import tune
from trainkit.runtime.local.system import process
from trainkit.tune.store.reader import ExperimentReader

STEPS = 6
PAUSE_S = 0.01


# --- what is run ------------------------------------------------------------------------------------


def objective(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
    scratch = Path(tune.get_context().get_trial_dir(), "scratch")
    scratch.mkdir(exist_ok=True)
    for step in range(start + 1, STEPS + 1):
        time.sleep(PAUSE_S)
        saved = None
        if step % 2 == 0:
            (scratch / "step").write_text(str(step))
            saved = tune.Checkpoint(scratch)
        tune.report({"loss": abs(step - 4) + config["x"]}, checkpoint=saved)


class Stepping(tune.Trainable):
    """Saves after every second step, and takes other trials over."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x = config["x"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.x = new_config["x"]
        return True

    def step(self) -> dict[str, Any]:
        time.sleep(PAUSE_S)
        number = self.iteration + 1
        return {"loss": abs(number - 4) + self.x, "done": number == STEPS}

    def save_checkpoint(self, path: str) -> None:
        Path(path, "step").write_text(str(self.iteration))

    def load_checkpoint(self, path: str) -> None:
        assert int(Path(path, "step").read_text()) == self.iteration


def tuned(folder: Path, trainable: Any, *, samples: int = 5, frequency: int = 0, **settings: Any) -> Any:
    """Return an experiment's suggestions, results, decisions and best, after a check that none failed."""
    tuner = tune.Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=samples, seed=3, max_concurrent_trials=1, **settings
        ),
        run_config=tune.RunConfig(
            storage_path=folder,
            name="e",
            verbose=0,
            stop={"training_iteration": STEPS},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_frequency=frequency),
        ),
    )
    best = tuner.fit().get_best_result()
    with ExperimentReader(folder / "e") as reader:
        trials = reader.trials()
        assert not any(trial.failures for trial in trials), [trial.reason for trial in trials]
        told = [
            (
                trial.trial_id,
                trial.config,
                str(trial.status),
                trial.reason,
                [(row["training_iteration"], row["loss"]) for row in reader.history(trial.trial_id)],
                sorted({(each["iteration"], each["verdict"]) for each in reader.decisions(trial.trial_id)}),
            )
            for trial in trials
        ]
    return told, best.config, best.metrics["loss"]


def plain(folder: Path) -> Any:
    return tuned(folder, objective)


def reused(folder: Path) -> Any:
    return tuned(folder, Stepping, reuse_actors=True, frequency=2)


def asha(folder: Path) -> Any:
    scheduler = tune.schedulers.ASHAScheduler(max_t=STEPS, reduction_factor=2, brackets=2)
    return tuned(folder, Stepping, scheduler=scheduler, samples=8, frequency=2)


def trainers_as_trials(folder: Path) -> Any:
    from tests.train.workers.killed_operator import KilledOperator
    from trainkit.train import TorchTrainer

    arguments = {"num_workers": 2, "use_gpu": False, "scheduler_step_freq": "epoch"}

    class Trained(TorchTrainer.as_trainable(training_operator_cls=KilledOperator, **arguments)):
        def step(self) -> dict[str, Any]:
            result = super().step()
            return {"loss": result["val_loss"]}

    return tuned(folder, Trained, samples=2, frequency=1)


def trainer(folder: Path) -> Any:
    import torch

    from tests.train.workers.killed_operator import KilledOperator
    from trainkit.train import TorchTrainer

    torch.manual_seed(7)
    numbers = []
    with TorchTrainer(
        training_operator_cls=KilledOperator,
        num_workers=2,
        use_gpu=False,
        scheduler_step_freq="epoch",
        config={},
    ) as gang:
        for _ in range(3):
            numbers += [gang.train(), gang.validate()]
            gang.save(folder / "c")
        state = gang.state_dict()
    weights = {name: tensor.tolist() for name, tensor in state["models"][0].items()}
    return numbers, weights


def search(folder: Path) -> Any:
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression

    from trainkit.sklearn import TuneGridSearchCV

    X, y = make_classification(300, 8, random_state=0)
    found = TuneGridSearchCV(
        LogisticRegression(), {"C": [0.01, 0.1, 1.0, 10.0, 100.0]}, cv=4, early_stopping=False, verbose=0
    ).fit(X, y)
    return list(found.cv_results_["mean_test_score"]), found.best_params_


def search_by_portions(folder: Path) -> Any:
    from sklearn.datasets import make_classification
    from sklearn.linear_model import SGDClassifier

    from trainkit.sklearn import TuneSearchCV

    X, y = make_classification(300, 8, random_state=0)
    found = TuneSearchCV(
        SGDClassifier(random_state=0),
        {"alpha": (1e-4, 1e-1)},
        n_trials=4,
        max_iters=4,
        early_stopping=True,
        random_state=0,
        n_jobs=1,
        cv=3,
        verbose=0,
    ).fit(X, y)
    return list(found.cv_results_["mean_test_score"]), found.best_params_


def murderous(config: dict[str, Any]) -> None:
    """Kills its own node, as long as a file is there."""
    for step in range(3):
        if Path(config["while"]).exists() and step == 1:
            (node,) = trainkit.nodes()
            os.kill(node["pid"], signal.SIGKILL)
            time.sleep(600)
        tune.report({"loss": config["x"] + step})


SCENARIOS: dict[str, Callable[[Path], Any]] = {
    each.__name__: each
    for each in (
        plain,
        reused,
        asha,
        trainers_as_trials,
        trainer,
        search,
        search_by_portions,
    )
}


TRAINERS = ["torch", "tests.train.workers.killed_operator"]
"""What the workers of a session of trainers are forked with."""

GROUPS = {
    "trials": ("plain", "reused", "asha"),
    "trainers": ("trainers_as_trials", "trainer"),
    "searches": ("search", "search_by_portions"),
}
"""The scenarios, by what their workers are forked with."""

PRELOADS = {"trials": [], "trainers": TRAINERS, "searches": ["sklearn", "sklearn.linear_model"]}
"""What the workers of each group are forked with, those after a kill too."""


# --- what happens to it -----------------------------------------------------------------------------


def node_pids() -> list[int]:
    """Of the nodes that this process has started."""
    return [child.pid for child in psutil.Process().children() if _is_node(child)]


def _is_node(child: psutil.Process) -> bool:
    try:
        return child.name() == "trainkit-node" and child.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Killer:
    """Kills the node, once, so long after it was first seen; as a thread, for the time of a `with`.

    Without any delay it is dead before the block begins.

    Attributes:
        killed: whether it did.
    """

    def __init__(self, after_s: float) -> None:
        self.killed = False
        self._after_s = after_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not node_pids():
            if self._over.wait(0.002):
                return
        if self._over.wait(self._after_s):
            return
        for pid in node_pids():
            process.kill(pid, signal.SIGKILL)
            self.killed = True

    def __enter__(self) -> Killer:
        self._thread.start()
        while not self._after_s and (self._thread.is_alive() or node_pids()):
            time.sleep(0.002)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def run_once(scenario: str, kill_after_s: float | None = None) -> tuple[Any, bool, float]:
    """Return the scenario's outcome, whether its node was killed, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        if kill_after_s is None:
            return SCENARIOS[scenario](Path(folder)), False, time.monotonic() - began
        with Killer(kill_after_s) as killer:
            came_to = SCENARIOS[scenario](Path(folder))
        return came_to, killer.killed, time.monotonic() - began


def check(group: str, moments: Sequence[Sequence[int]]) -> None:
    """Kill the node at these moments of each scenario of a group.

    A scenario has a session of its own: the next one would end what the last has left.
    """
    for scenario, chosen in zip(GROUPS[group], moments, strict=True):
        trainkit.init(num_cpus=2, preload=PRELOADS[group])
        try:
            kill_in(scenario, chosen)
        finally:
            trainkit.shutdown()
        deadline = time.monotonic() + 60
        while left := session_processes():
            assert time.monotonic() < deadline, f"{scenario} left running: {left}"
            time.sleep(0.01)


def kill_in(scenario: str, moments: Sequence[int]) -> None:
    """Kill the node at these moments of a scenario; moment 0 is at once, the others are at random."""
    expected, _, length_s = run_once(scenario)
    for moment in moments:
        chance = random.Random(f"{scenario} {moment}")
        after_s = chance.uniform(0, length_s) if moment else 0.0
        came_to, killed, _ = run_once(scenario, after_s)
        while not killed:  # it ended before: this time it was faster
            assert after_s > 0, f"moment {moment}: no node was seen"
            after_s = after_s / 2 if after_s > PAUSE_S else 0.0
            came_to, killed, _ = run_once(scenario, after_s)
        assert came_to == expected, f"{scenario}, moment {moment}: {came_to}\ninstead of {expected}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], default=[])
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    os.environ.setdefault("TRAINKIT_TEST_RUN", str(os.getpid()))
    import tests.node_losses as losses  # so that trainables are found by name

    for name in chosen.groups or GROUPS:
        began = time.monotonic()
        moments = range(chosen.first, chosen.first + chosen.moments)
        losses.check(name, [moments] * len(GROUPS[name]))
        seconds = time.monotonic() - began
        sys.stdout.write(f"{name}: killed at {chosen.moments} moments, and as undisturbed, {seconds:.0f} s\n")
        sys.stdout.flush()
