"""A process that has everything imported and forks drivers, which tests kill: `Garage` starts and asks it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trainkit
from trainkit import tune
from trainkit.tune.store.reader import ExperimentReader

STEPS = 8
SAMPLES = 5


# --- what the drivers run -------------------------------------------------------------------------


def acknowledge(trial_id: str, iteration: int, loss: float) -> None:
    """The trial's own list of what was promised to it; one line is one write."""
    folder = Path(os.environ["ACKNOWLEDGED"])
    with open(folder / trial_id, "a") as file:
        file.write(f"{iteration} {loss!r}\n")


def loss_of(x: float, step: int) -> float:
    """Falls, and rises again: the best is not the last."""
    return abs(step - 5) + x


def function(config):
    context = tune.get_context()
    scratch = Path(context.get_trial_dir(), "scratch")
    scratch.mkdir(exist_ok=True)
    checkpoint = tune.get_checkpoint()
    start = int(Path(checkpoint.path, "step").read_text()) if checkpoint else 0
    for step in range(start + 1, STEPS + 1):
        saved = None
        if step % 2 == 0:
            (scratch / "step").write_text(str(step))
            saved = tune.Checkpoint(scratch)
        loss = loss_of(config["x"], step)
        tune.report({"loss": loss, "step": step}, checkpoint=saved)
        acknowledge(context.get_trial_id(), step, loss)


class Stepping(tune.Trainable):
    def setup(self, config):
        self.x, self.told = config["x"], None

    def step(self):
        if self.told is not None:  # another step is asked for: the last one's report was committed
            acknowledge(self.trial_id, *self.told)
        number = self.iteration + 1
        loss = loss_of(self.x, number)
        self.told = (number, loss)
        return {"loss": loss, "step": number, "done": number == STEPS}

    def save_checkpoint(self, path):
        Path(path, "step").write_text(str(self.iteration))

    def load_checkpoint(self, path):
        assert int(Path(path, "step").read_text()) == self.iteration


def tuner(folder: Path, kind: str, scheduler: str, seed: int) -> tune.Tuner:
    """A new experiment, or the one that is there to go on with."""
    trainable: Any = function if kind == "function" else Stepping
    if tune.Tuner.can_restore(folder / "e"):
        return tune.Tuner.restore(folder / "e", trainable)
    schedulers = {
        "fifo": None,
        "asha": tune.schedulers.ASHAScheduler(max_t=STEPS, reduction_factor=2, brackets=2),
        # Two trials that run to the end, then three that pause at 2 until it is known that no fourth comes.
        "hyperband": tune.schedulers.HyperBandScheduler(max_t=STEPS, reduction_factor=4, narrow_first=True),
    }
    keep = {"num_to_keep": 2, "checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}
    if kind == "class":
        keep["checkpoint_frequency"] = 2
    return tune.Tuner(
        trainable,
        param_space={"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=SAMPLES,
            seed=seed,
            max_concurrent_trials=1,
            scheduler=schedulers[scheduler],
        ),
        run_config=tune.RunConfig(
            storage_path=folder, name="e", verbose=0, checkpoint_config=tune.CheckpointConfig(**keep)
        ),
    )


def outcome(folder: Path) -> list[dict[str, Any]]:
    """What must be the same however often the driver was killed."""
    with ExperimentReader(folder / "e") as reader:
        return [
            {
                "id": trial.trial_id,
                "config": trial.config,
                "status": str(trial.status),
                "reason": trial.reason,
                "losses": [row["loss"] for row in reader.history(trial.trial_id)],
                "iterations": [row["training_iteration"] for row in reader.history(trial.trial_id)],
                "decisions": sorted(
                    (each["iteration"], each["verdict"], str(each.get("rung")), str(each.get("rank")))
                    for each in _visible(reader.decisions(trial.trial_id))
                ),
                "checkpoints": [kept.iteration for kept in trial.checkpoints],
            }
            for trial in reader.trials()
        ]


def _visible(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each iteration that was run again, what was decided first: a rung judges a trial once."""
    first: dict[tuple[int, str], dict[str, Any]] = {}
    for each in decisions:
        first.setdefault((each["iteration"], each["verdict"]), each)
    return list(first.values())


# --- the process that forks them ------------------------------------------------------------------


class CallCounter:
    """Counts calls, of Python functions and of C's, and kills this process at the n-th.

    Args:
        kill_at: the n-th; None: only counts.
        files: ends of the names of files whose functions count; () for all.
    """

    def __init__(self, kill_at: int | None, files: Sequence[str] = ()) -> None:
        self.count = 0
        self._kill_at = kill_at
        self._files = tuple(files)

    def __call__(self, frame: Any, event: str, arg: Any) -> None:
        if event in ("call", "c_call", "c_return"):
            if self._files and not frame.f_code.co_filename.endswith(self._files):
                return
            self.count += 1
            if self.count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def drive(request: dict[str, Any]) -> int:
    """Run the experiment in this process; return how many calls that took."""
    folder = Path(request["folder"])
    os.environ["ACKNOWLEDGED"] = str(folder / "acknowledged")
    (folder / "acknowledged").mkdir(exist_ok=True)
    trainkit.init(engine="inline", num_cpus=2)
    counter = CallCounter(request.get("kill_at"), request.get("files", ()))
    sys.setprofile(counter)
    try:
        tuner(folder, request["kind"], request["scheduler"], request["seed"]).fit()
    finally:
        sys.setprofile(None)
    trainkit.shutdown()
    return counter.count


def serve() -> None:
    """Fork a driver for each line that comes in; answer with its end."""
    for line in sys.stdin:
        request = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            code = 1
            try:
                os.write(write, str(drive(request)).encode())
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(write)
        _, status = os.waitpid(pid, 0)
        with open(read, "rb") as pipe:
            calls = pipe.read(20) if os.waitstatus_to_exitcode(status) == 0 else b""
        answer = {"code": os.waitstatus_to_exitcode(status), "calls": int(calls or 0)}
        print(json.dumps(answer), flush=True)


class Garage:
    """Starts drivers and waits for their ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tune.experiment.driving"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(trainkit.__file__).parents[1],
        )

    def drive(self, folder: Path, kind: str, scheduler: str, seed: int, **how: Any) -> dict[str, int]:
        """Run an experiment, or go on with it, in a process of its own; return its exit code and calls."""
        request = {"folder": str(folder), "kind": kind, "scheduler": scheduler, "seed": seed, **how}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


if __name__ == "__main__":
    import numpy as np

    import tests.tune.experiment.driving as driving  # so that trainables are found by name
    from trainkit.tune.results import result_grid  # noqa: F401 - what a driver would import each time
    from trainkit.tune.sync import mirror  # noqa: F401 - what a driver would import each time

    tune.Tuner  # noqa: B018 - loads it
    np.random.default_rng(0)
    driving.serve()
