"""Where a trial stands and where its output goes: files in its folder, and all of it undone at its end."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainkit import tune
from trainkit.errors import ActorDiedError, ConfigError
from trainkit.tune.trial.environment import TrialEnvironment, log_files

pytestmark = pytest.mark.usefixtures("runtime")


def prints(config):
    for step in range(2):
        print("python", step)
        print("python's errors", step, file=sys.stderr)
        os.write(1, b"descriptor\n")
        ctypes.CDLL(None).puts(b"printed by C")
        subprocess.run(["sh", "-c", "echo a subprocess; echo its errors >&2"], check=True)
        logging.getLogger("mine").warning("logged %d", step)
        tune.report({"step": step})


class Prints(tune.Trainable):
    def setup(self, config):
        print("in setup")

    def step(self):
        print("in step", self.iteration)
        return {"step": self.iteration, "done": self.iteration == 1}

    def cleanup(self):
        print("in cleanup")


def text(result, name):
    return Path(result.path, name).read_text()


def test_everything_that_a_function_prints_is_in_its_folder(fit, capfd):
    (result,) = fit(prints, run={"log_to_file": True})
    out, err = text(result, "stdout"), text(result, "stderr")
    for line in ("python 0", "python 1", "descriptor", "printed by C", "a subprocess"):
        assert line in out.splitlines()
    for line in ("python's errors 0", "python's errors 1", "its errors", "logged 0", "logged 1"):
        assert line in err.splitlines()
    assert "a subprocess" not in capfd.readouterr().out


def test_what_a_crash_said_is_in_the_error_all_the_same(fit):
    def crashes(config):
        print("last words", file=sys.stderr)
        ctypes.string_at(0)

    (result,) = fit(crashes, run={"log_to_file": True})
    assert isinstance(result.error, ActorDiedError)
    assert "crashes" in result.error.stderr_tail
    assert "last words" in text(result, "stderr")


PLACEHOLDER = "__editable__.mine-1.0.finder.__path_hook__"
"""What setuptools puts on sys.path for an editable install with a namespace package; no folder."""


def test_an_environment_is_left_as_it_was_found(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", PLACEHOLDER, *sys.path])
    monkeypatch.setenv("PYTHONPATH", f"tests:{tmp_path}")
    before = (os.getcwd(), list(sys.path), sys.stdout, sys.stderr, dict(os.environ), os.fstat(1), os.fstat(2))
    environment = TrialEnvironment(("out", "err"), chdir=True)
    with pytest.raises(KeyError), environment.entered(str(tmp_path), own_process=True):
        assert os.getcwd() == str(tmp_path)
        assert sys.path[:2] == [before[0], PLACEHOLDER]  # where modules beside the script are found
        assert os.environ["PYTHONPATH"] == f"{before[0]}/tests:{tmp_path}"
        assert os.environ["TUNE_ORIG_WORKING_DIR"] == before[0]
        print("seen")
        raise KeyError
    after = (os.getcwd(), list(sys.path), sys.stdout, sys.stderr, dict(os.environ), os.fstat(1), os.fstat(2))
    assert [part.st_ino if isinstance(part, os.stat_result) else part for part in after] == [
        part.st_ino if isinstance(part, os.stat_result) else part for part in before
    ]
    assert (tmp_path / "out").read_text() == "seen\n"


@pytest.mark.parametrize("value", [3, "../out", "/tmp/out", ("a",), ("a", "b", "c"), ("a", 3), "", "."])
def test_names_that_lie_elsewhere_are_refused(value):
    with pytest.raises(ConfigError, match="log_to_file="):
        tune.RunConfig(log_to_file=value)


def test_nothing_is_kept_unless_asked(fit):
    assert log_files(False) is None
    assert log_files(None) is None
    (result,) = fit(lambda config: 1.0)
    assert not Path(result.path, "stdout").exists()


# --- the working directory ------------------------------------------------------------------------


def where(config):
    Path("./written").write_text("here")
    return {"cwd": os.getcwd(), "before": os.environ.get("TUNE_ORIG_WORKING_DIR")}


def test_a_trial_runs_in_its_own_folder(fit, tmp_path, monkeypatch):  # row 1.23
    monkeypatch.chdir(tmp_path)
    for reuse in (False, True):
        grid = fit(
            where, num_samples=2, max_concurrent_trials=1, reuse_actors=reuse, run={"name": f"{reuse}"}
        )
        for result in grid:
            assert result.metrics["cwd"] == result.path
            assert result.metrics["before"] == str(tmp_path)
            assert Path(result.path, "written").read_text() == "here"
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize(
    "by", ["argument", "TRAINKIT_CHDIR_TO_TRIAL_DIR", "RAY_CHDIR_TO_TRIAL_DIR", "TuneConfig"]
)
def test_a_relative_path_opens_inside_a_trial_where_that_is_asked_for(fit, tmp_path, monkeypatch, by):
    monkeypatch.chdir(tmp_path)
    settings = {}
    if by == "TuneConfig":
        settings = {"chdir_to_trial_dir": False}
    elif by == "argument":
        settings = {"run": {"chdir_to_trial_dir": False}}
    else:
        monkeypatch.setenv(by, "0")
    (result,) = fit(where, **settings)
    assert result.metrics["cwd"] == result.metrics["before"] == str(tmp_path)


def test_a_file_that_lies_where_the_program_runs_is_told_of(fit, tmp_path, monkeypatch):
    (tmp_path / "data.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    (result,) = fit(lambda config: Path("data.txt").read_text())
    assert isinstance(result.error, FileNotFoundError)
    assert f"{tmp_path}/data.txt" in str(result.error)


def test_modules_are_found_from_a_trials_folder(fit, tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "found_beside.py").write_text("value = 3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, "lib", PLACEHOLDER])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["lib", os.environ.get("PYTHONPATH", "")]))

    def trainable(config):
        import found_beside

        program = "import found_beside; print(found_beside.value)"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        return {"here": found_beside.value, "there": int(done.stdout), "hooked": PLACEHOLDER in sys.path}

    metrics = fit(trainable)[0].metrics
    assert (metrics["here"], metrics["there"], metrics["hooked"]) == (3, 3, True)


def test_a_restored_experiment_keeps_both(fit, restore):
    def trainable(config):
        print("attempt")
        marker = Path("marker")
        if not marker.exists():
            marker.touch()
            raise RuntimeError("once")
        return {"cwd": os.getcwd()}

    fit(trainable, run={"log_to_file": ("out", "err")})
    (result,) = restore(trainable, resume_errored=True)
    assert result.metrics["cwd"] == result.path
    assert text(result, "out") == "attempt\nattempt\n"


class Renewed(Prints):
    def reset_config(self, new_config):
        print("taken over")
        return True


@pytest.mark.parametrize("trainable", [prints, Prints, Renewed])
def test_a_process_that_serves_many_trials_keeps_them_apart(fit, trainable):
    run = {"log_to_file": True}
    grid = fit(
        trainable, {"n": tune.grid_search([0, 1, 2])}, max_concurrent_trials=1, reuse_actors=True, run=run
    )
    texts = [text(result, "stdout").split("\n") for result in grid]
    if trainable is Renewed:
        assert texts[0][0] == "in setup"
        assert [each[0] for each in texts[1:]] == ["taken over"] * 2
    else:
        assert texts == [texts[0]] * 3
    assert len({result.metrics["pid"] for result in grid}) == 1
