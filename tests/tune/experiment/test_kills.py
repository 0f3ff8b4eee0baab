"""A driver that is killed at any moment loses nothing, and its experiment ends as if nothing had happened.

The inline engine runs trials in the driver, which is killed at its n-th call of any function, Python's or
C's, so the same moments come in every run. `benchmarks.kills` kills drivers whose trials are processes.
"""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tune.experiment.driving import SAMPLES, Garage, loss_of, outcome

KINDS = ["function", "class"]
SCHEDULERS = ["fifo", "asha", "hyperband"]
KILLS = 10
"""In one experiment; with 18 of them, 180 moments."""


@pytest.fixture(scope="module")
def garage() -> Iterator[Garage]:
    made = Garage()
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(garage, tmp_path_factory):
    """By kind, scheduler and seed: what comes out, and how many calls that takes."""
    known = {}

    def run(kind: str, scheduler: str, seed: int):
        if (kind, scheduler, seed) not in known:
            folder = tmp_path_factory.mktemp("whole")
            end = garage.drive(folder, kind, scheduler, seed)
            assert end["code"] == 0
            known[kind, scheduler, seed] = outcome(folder), end["calls"]
        return known[kind, scheduler, seed]

    return run


def check_promises(folder: Path) -> int:
    """Nothing acknowledged is missing, no report is there twice, and no more checkpoints than may be."""
    promises = 0
    if not (folder / "e" / "experiment.sqlite").exists():
        assert not list((folder / "acknowledged").iterdir())
        return 0
    trials = {trial["id"]: trial for trial in outcome(folder)}
    for trial in trials.values():
        assert trial["iterations"] == list(range(1, len(trial["iterations"]) + 1))
    for path in (folder / "acknowledged").iterdir():
        for line in path.read_text().splitlines():
            iteration, loss = line.split()
            assert trials[path.name]["losses"][int(iteration) - 1] == float(loss)
            promises += 1
    # Row 1.10: the two best, the latest to go on from, and the one that is just being handed over.
    for trial_dir in (folder / "e").glob("*_*"):
        assert len(list(trial_dir.glob("checkpoint_*"))) <= 4
    return promises


def check_end(folder: Path, expected) -> None:
    assert outcome(folder) == expected
    for trial in expected:
        (trial_dir,) = (folder / "e").glob(f"*{trial['id']}*")
        # Row 1.10: what num_to_keep says, the best among them; row 1.5: logs without gaps or repetitions.
        assert len(list(trial_dir.glob("*checkpoint_*"))) == len(trial["checkpoints"]) <= 2
        saved = [step for step in trial["iterations"] if step % 2 == 0]
        if saved:
            assert min(saved, key=lambda step: loss_of(0, step)) in trial["checkpoints"]
        lines = [json.loads(line) for line in (trial_dir / "result.json").read_text().splitlines()]
        assert [line["training_iteration"] for line in lines] == trial["iterations"]
        rows = (trial_dir / "progress.csv").read_text().splitlines()
        assert len(rows) == len(trial["iterations"]) + 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_call_it_ends_as_if_undisturbed(garage, undisturbed, tmp_path, kind, scheduler, seed):
    """Rows 1.5 and 1.12: one trial at a time, the same suggestions, decisions and best."""
    expected, calls = undisturbed(kind, scheduler, seed)
    assert len(expected) == SAMPLES
    rng, kept, kills = random.Random(f"{kind} {scheduler} {seed}"), 0, 0
    while kills < KILLS:
        # About half of the moments lie in the start or the restore, the others while trials run.
        end = garage.drive(tmp_path, kind, scheduler, seed, kill_at=rng.randrange(1, calls * 2 // 5))
        assert end["code"] in (0, -signal.SIGKILL)  # it may be at its end before
        kills += end["code"] != 0
        promises = check_promises(tmp_path)
        assert promises >= kept
        kept = promises
    assert garage.drive(tmp_path, kind, scheduler, seed)["code"] == 0
    check_promises(tmp_path)
    check_end(tmp_path, expected)


WRITERS = ["tune/checkpoint.py", "shutil.py"]


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_each_write_point_of_a_checkpoint(garage, undisturbed, tmp_path, kind):
    """Row 1.12: a restore finds the checkpoint whole, or not at all."""
    expected, _ = undisturbed(kind, "fifo", 0)
    whole = tmp_path / "whole"
    whole.mkdir()
    calls = garage.drive(whole, kind, "fifo", 0, files=WRITERS)["calls"]
    saves = sum(len([step for step in trial["iterations"] if step % 2 == 0]) for trial in expected)
    # All that writes the third checkpoint and deletes what it replaces, in 8 steps.
    first, each = 3 * calls // saves, calls // saves
    for place in range(first, first + each, max(1, each // 8)):
        folder = tmp_path / str(place)
        folder.mkdir()
        end = garage.drive(folder, kind, "fifo", 0, kill_at=place, files=WRITERS)
        assert end["code"] == -signal.SIGKILL
        check_promises(folder)
        for path in folder.glob("e/*/checkpoint_*"):
            assert int((path / "step").read_text()) % 2 == 0
        assert garage.drive(folder, kind, "fifo", 0)["code"] == 0
        check_end(folder, expected)


LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM results").fetchone()[0])
connection.close()
"""


def test_a_look_into_the_file_from_outside_costs_nothing(tmp_path):
    """Whoever queries a running experiment by a program of theirs must not take its log away."""
    import trainkit
    from trainkit import tune

    path = tmp_path / "e" / "experiment.sqlite"
    script = tmp_path / "look.py"
    script.write_text(LOOK)

    class Looks(tune.Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            done = subprocess.run([sys.executable, script, path], capture_output=True, text=True, check=True)
            assert int(done.stdout) > 0
            copy = tmp_path / f"copy_{trial.index}"  # what a kill would leave now
            copy.mkdir()
            # By another process: this one must not open the file, or it would do what is tested here.
            subprocess.run(["cp", *(tmp_path / "e").glob("experiment.sqlite*"), copy], check=True)

    def trainable(config):
        for step in range(3):
            tune.report({"step": step})

    trainkit.init(engine="inline", num_cpus=1)
    try:
        run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0, callbacks=[Looks()])
        tune.Tuner(trainable, tune_config=tune.TuneConfig(num_samples=3), run_config=run).fit()
    finally:
        trainkit.shutdown()
    for index in range(3):
        connection = sqlite3.connect(tmp_path / f"copy_{index}" / "experiment.sqlite")
        assert connection.execute("SELECT count(*) FROM results").fetchone()[0] == 3 * (index + 1)
        connection.close()
