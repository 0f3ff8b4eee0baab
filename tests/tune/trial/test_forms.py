"""Older and rarer forms of trainables, and where they may be defined."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path

import pytest

from tests.tune import programs
from trainkit import tune
from trainkit.errors import CheckpointError, ConfigError

ONCE = {"failure_config": tune.FailureConfig(max_failures=1)}


# --- functions of Ray 1.x -------------------------------------------------------------------------


def saves_as_1x(config, checkpoint_dir=None, data_dir="."):
    step = 0
    if checkpoint_dir:
        step = json.loads(Path(checkpoint_dir, "state.json").read_text())["step"]
    start = step
    while step < 4:
        step += 1
        with tune.checkpoint_dir(step) as folder:
            Path(folder, "state.json").write_text(json.dumps({"step": step}))
        tune.report(step=step, start=start)
        if step == 2 and start == 0:
            raise RuntimeError("in the middle")


def test_a_function_of_ray_1_saves_and_goes_on(inline, fit):
    (result,) = fit(saves_as_1x, run=ONCE)
    assert [(row["step"], row["start"]) for row in result.history] == [(1, 0), (2, 0), (3, 2), (4, 2)]
    assert json.loads(Path(result.checkpoint.path, "state.json").read_text()) == {"step": 4}
    assert [report["step"] for _, report in result.best_checkpoints] == [1, 2, 3, 4]
    assert not list(Path(result.path).glob(".checkpoint_dir*"))


def test_what_is_saved_after_the_last_report_is_kept(inline, fit):
    def trainable(config):
        tune.report(loss=1.0)
        with tune.checkpoint_dir(step=1) as folder:
            Path(folder, "model").write_text("trained")

    (result,) = fit(trainable)
    assert Path(result.checkpoint.path, "model").read_text() == "trained"
    assert result.metrics["loss"] == 1.0


def test_a_checkpoint_that_failed_to_be_written_is_none(inline, fit):
    def trainable(config):
        try:
            with tune.checkpoint_dir(step=1) as folder:
                Path(folder, "half").touch()
                raise ValueError("not complete")
        except ValueError:
            tune.report(loss=1.0)

    assert fit(trainable)[0].checkpoint is None


def test_forms_that_cannot_work_are_refused_with_the_way_out(fit):
    async def later(config):
        return 1.0

    class Later:
        async def __call__(self, config):
            return 1.0

    def reports(config, reporter):
        reporter(mean_accuracy=1)

    class Plain(tune.Trainable):
        def setup(self, config):
            pass

    for trainable, words in [
        (tune.with_parameters(Plain, size=3), r"called as Plain.setup\(config, size=\): .*'size'"),
        (type("Older", (Plain,), {"setup": lambda self: None}), r"Older.setup\(config\)"),
        (later, "is async"),
        (Later(), "is async"),
        (reports, r"tune.report\(name=value\)"),
        (functools.partial(tune.Trainable, size=3), r"tune.with_parameters\(Trainable, name=value\)"),
    ]:
        with pytest.raises(ConfigError, match=words):
            tune.Tuner(trainable)


# --- what a class saves ---------------------------------------------------------------------------


class Counting(tune.Trainable):
    def setup(self, config):
        self.count, self.given = 0, ""

    def step(self):
        self.count += 1
        if self.count == 3 and not self.given:
            raise RuntimeError("in the middle")
        return {"count": self.count, "given": self.given, "done": self.count == 4}


class AsDictionary(Counting):
    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count, "kind": type(self)}

    def load_checkpoint(self, checkpoint):
        self.count, self.given = checkpoint["count"], type(checkpoint).__name__


class AsFile(Counting):
    def save_checkpoint(self, checkpoint_dir):
        path = os.path.join(checkpoint_dir, "count.txt")
        Path(path).write_text(str(self.count))
        return path

    def load_checkpoint(self, checkpoint):
        self.count, self.given = int(Path(checkpoint).read_text()), Path(checkpoint).name


class AsFolder(Counting):
    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "count.txt").write_text(str(self.count))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint_dir):
        self.count = int(Path(checkpoint_dir, "count.txt").read_text())
        self.given = Path(checkpoint_dir).name


@pytest.mark.parametrize(
    ("trainable", "given"), [(AsDictionary, "dict"), (AsFile, "count.txt"), (AsFolder, "checkpoint_000001")]
)
def test_a_class_is_given_back_what_it_saved(inline, fit, trainable, given):
    run = {**ONCE, "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1)}
    (result,) = fit(trainable, run=run)
    assert [row["count"] for row in result.history] == [1, 2, 3, 4]
    assert result.metrics["given"] == given


@pytest.mark.parametrize("returned", [3, "/tmp", "nothing_there"])
def test_a_class_may_not_return_anything_else(inline, fit, returned):
    class Odd(Counting):
        def save_checkpoint(self, checkpoint_dir):
            return returned

    (error,) = fit(Odd, run={"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1)}).errors
    assert isinstance(error, CheckpointError)
    assert "return None, a dict or a path in the folder" in str(error)


def test_a_class_works_without_a_tuner(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trainable = AsDictionary()
    trainable.train()
    for path in (trainable.save(str(tmp_path / "saved")), trainable.save()):
        for given in (path, str(path), Path(path), path.checkpoint):
            other = AsDictionary()
            other.restore(given)
            assert (other.count, other.given, other.iteration) == (1, "dict", 1)
    Path(path, ".counted.json").unlink()  # a Tuner's have none
    other = AsDictionary()
    other.restore(path)
    assert (other.count, other.iteration) == (1, 0)


# --- where they are defined: row 1.19 -------------------------------------------------------------

PROGRAM = """
import functools, sys
import trainkit
from trainkit import tune

class Doubling(tune.Trainable):
    def step(self):
        return {"y": 2 * self.config["x"], "done": True}

def scaled(scale, config):
    tune.report({"y": scale * config["x"]})

def closure():
    two = 2
    def doubled(config):
        return {"y": two * config["x"]}
    return doubled

if __name__ == "__main__":
    trainkit.init(num_cpus=2)
    forms = [Doubling, functools.partial(scaled, 2), closure(), lambda config: {"y": 2 * config["x"]}]
    for trainable in forms:
        grid = tune.Tuner(trainable, param_space={"x": 21}, run_config=tune.RunConfig(verbose=0)).fit()
        print(grid[0].error or grid[0].metrics["y"])
"""

CELL = """
import code, sys
shell = code.InteractiveInterpreter({"__name__": "__main__"})
shell.runcode(compile(open(sys.argv[1]).read(), "<cell 1>", "exec"))
"""


def run(arguments, folder):
    results = {"TRAINKIT_RESULTS_DIR": str(folder / "results")}
    return programs.run(*arguments, cwd=folder, env=results, check=False)


@pytest.mark.external
@pytest.mark.parametrize("how", ["script", "module", "cell"])
def test_definitions_in_main_run(tmp_path, how):  # row 1.19
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "cell.py").write_text(CELL)
    arguments = {"script": ["program.py"], "module": ["-m", "program"], "cell": ["cell.py", "program.py"]}[
        how
    ]
    done = run(arguments, tmp_path)
    assert done.stdout.split() == ["42"] * 4, done.stdout + done.stderr


LOCKED = """
import threading
import trainkit
from trainkit import tune

class Guard:
    def __init__(self):
        self.lock = threading.Lock()

guard = Guard()

def trainable(config):
    with guard.lock:
        return 1.0

trainkit.init(num_cpus=1)
try:
    tune.Tuner(trainable).fit()
except trainkit.errors.SerializationError as error:
    print(error)
print("workers:", len(trainkit.list_actors()))
"""


def test_a_captured_lock_is_named_before_any_worker_starts(tmp_path):  # row 1.19
    (tmp_path / "locked.py").write_text(LOCKED)
    done = run(["-m", "locked"], tmp_path)
    assert "'guard'.lock" in done.stdout, done.stdout + done.stderr
    assert "workers: 0" in done.stdout
    assert not (tmp_path / "results").exists()
