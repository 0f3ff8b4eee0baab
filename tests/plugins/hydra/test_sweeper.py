"""`hydra/sweeper=trainkit`: programs with `@hydra.main`, run as users run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from omegaconf import OmegaConf

from trainkit.tune import ResultGrid

PROGRAM = """
import os
import time
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from trainkit import tune


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    folder = Path(HydraConfig.get().runtime.output_dir)
    with open(folder / "attempts", "a") as file:
        print(os.getpid(), file=file)
    if cfg.fails and cfg.x == 2:
        raise RuntimeError("x is two")
    if cfg.returns == "pair":
        return cfg.x, -cfg.x
    for step in range(cfg.steps):
        time.sleep(cfg.sleep)
        tune.report(loss=(cfg.x - 1) ** 2 + cfg.db.size / (step + 1))
    return None if cfg.steps else (cfg.x - 1) ** 2


if __name__ == "__main__":
    main()
"""
CONFIG = """
defaults: [_self_, db: small]
x: 0
steps: 0
sleep: 0.0
fails: false
returns: value
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "conf" / "db").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text(CONFIG)
    (tmp_path / "conf" / "db" / "small.yaml").write_text("size: 1")
    (tmp_path / "conf" / "db" / "large.yaml").write_text("size: 5")
    return tmp_path


def command(*overrides: str) -> list[str]:
    own = ["hydra/sweeper=trainkit", "hydra.sweep.dir=out", "hydra.sweeper.seed=1"]
    return [sys.executable, "train.py", "--multirun", *own, *overrides]


def run(project: Path, *overrides: str, code: int = 0) -> str:
    done = subprocess.run(
        command(*overrides), cwd=project, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def numbered(project: Path) -> list[int]:
    return sorted(int(each.name) for each in (project / "out").iterdir() if each.name.isdigit())


def found(project: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(project / "out" / "optimization_results.yaml"))


def test_a_returned_value_is_optimised_and_the_folders_are_hydras(project: Path):
    settings = [
        "n_trials=6",
        "n_jobs=2",
        "direction=minimize",
        "sampler.seed=3",
    ]  # as Hydra's sweeper for Optuna
    chosen = ["hydra/sweeper/sampler=tpe", *(f"hydra.sweeper.{each}" for each in settings)]
    run(project, "x=interval(-5,5)", "db=small,large", *chosen)
    assert numbered(project) == list(range(6))
    results = ResultGrid.from_path(project / "out")
    best = results.get_best_result()
    assert found(project) == {
        "name": "trainkit",
        "best_params": best.config,
        "best_value": best.metrics["objective"],
        "best_job": int(Path(best.path).name),
    }
    for each in results:
        saved = OmegaConf.load(Path(each.path) / ".hydra" / "config.yaml")
        assert saved.x == each.config["x"]
        assert saved.db.size == {"small": 1, "large": 5}[each.config["db"]]
        assert each.metrics["objective"] == (saved.x - 1) ** 2
        assert (Path(each.path) / "train.log").exists()
    assert OmegaConf.load(project / "out" / "multirun.yaml").hydra.sweeper.n_trials == 6


def test_a_scheduler_stops_jobs_by_a_reported_metric(project: Path):
    settings = ["metric=loss", "num_samples=8", "scheduler=asha"]
    run(
        project,
        "x=range(0,100)",
        "steps=4",
        "+hydra.sweeper.scheduler_settings.grace_period=1",
        *(f"hydra.sweeper.{each}" for each in settings),
    )
    lengths = [each.metrics["training_iteration"] for each in ResultGrid.from_path(project / "out")]
    assert len(lengths) == 8 and min(lengths) == 1 and max(lengths) == 4


def test_a_grid_and_a_pair_of_objectives(project: Path):
    settings = ["hydra.sweeper.search_alg=grid", "hydra.sweeper.direction=[minimize,maximize]"]
    run(project, "x=1,2,3", "db=small,large", "returns=pair", *settings)
    assert numbered(project) == list(range(6))
    solutions = found(project)["solutions"]
    assert {each["params"]["x"] for each in solutions} == {1}
    assert all(each["values"] == [1.0, -1.0] for each in solutions)


def test_failed_jobs_end_the_sweep_after_the_other_jobs(project: Path):
    grid = ["x=1,2,3", "fails=true", "hydra.sweeper.search_alg=grid"]
    output = run(project, *grid, code=1)
    assert "1 of 3 jobs failed" in output and "RuntimeError: x is two" in output
    assert found(project)["best_params"] == {"x": 1}
    # The same command runs the failed job again.
    run(project, *grid, "hydra.sweeper.max_failure_rate=0.5")
    attempts = [(project / "out" / str(job) / "attempts").read_text().split() for job in range(3)]
    assert sorted(map(len, attempts)) == [1, 1, 2]


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_the_same_command_resumes_an_interrupted_sweep(project: Path, sent: signal.Signals):
    settings = ["hydra.sweeper.num_samples=5", "hydra.sweeper.metric=loss", "hydra.sweeper.max_concurrent=1"]
    asked = ["x=range(0,100)", "steps=3", "sleep=0.2", *settings]
    with open(project / "log", "w") as log:
        program = subprocess.Popen(command(*asked), cwd=project, stdout=log, stderr=subprocess.STDOUT)
    while not (project / "out" / "2" / "attempts").exists():
        assert program.poll() is None, (project / "log").read_text()
        time.sleep(0.01)
    os.kill(program.pid, sent)
    assert program.wait(60) == (-9 if sent == signal.SIGKILL else 130)
    output = run(project, *asked)
    assert "trainkit resumes the sweep" in output
    results = ResultGrid.from_path(project / "out")
    assert [each.metrics["training_iteration"] for each in results] == [3] * 5
    assert numbered(project) == list(range(5))
    (project / "out").rename(project / "resumed")
    run(project, *asked)
    undisturbed = ResultGrid.from_path(project / "out")
    assert [each.config for each in undisturbed] == [each.config for each in results]


def test_a_second_program_in_the_same_folder_is_refused(project: Path):
    asked = ["x=1,2", "steps=1", "sleep=600", "hydra.sweeper.metric=loss"]
    with open(project / "log", "w") as log:
        program = subprocess.Popen(command(*asked), cwd=project, stdout=log, stderr=subprocess.STDOUT)
    while not (project / "out" / "0" / "attempts").exists():
        assert program.poll() is None, (project / "log").read_text()
        time.sleep(0.01)
    assert f"in use by the process with pid {program.pid}" in run(project, "x=3,4", *asked[1:], code=1)
    program.send_signal(signal.SIGINT)
    assert program.wait(60) == 130
    assert OmegaConf.load(project / "out" / "multirun.yaml").hydra.overrides.task[0] == "x=1,2"


def test_another_space_in_the_same_folder_is_refused(project: Path):
    run(project, "x=1,2", "db=small,large", "hydra.sweeper.search_alg=grid")
    output = run(project, "x=1,3", "db=small,large", "hydra.sweeper.search_alg=grid", code=1)
    assert "contains a sweep of ['x=1,2'], not of ['x=1,3']" in output
    output = run(
        project, "x=1,2", "db=small,large", "hydra.sweeper.search_alg=grid", "hydra.sweeper.mode=max", code=1
    )
    assert "contains a sweep of [], not of ['hydra.sweeper.mode=max']" in output
    run(project, "db=small,large", "x=1,2", "hydra.sweeper.search_alg=grid", "hydra.sweeper.max_concurrent=1")


def test_a_command_without_a_space_runs_one_job(project: Path):
    run(project, "x=3", "+hydra.job.env_set={GIVEN: yes}")
    assert numbered(project) == [0] and found(project)["best_params"] == {}


def test_two_programs_share_a_study(project: Path):
    joint = ["storage=sqlite:///study.db", "study_name=joint", "n_trials=4", "n_jobs=1"]
    asked = ["x=interval(-5,5)", *(f"hydra.sweeper.{each}" for each in joint)]
    programs = [
        subprocess.Popen(command(*asked, f"hydra.sweep.dir={name}"), cwd=project, stderr=subprocess.DEVNULL)
        for name in ("first", "second")
    ]
    assert [program.wait(120) for program in programs] == [0, 0]
    study = optuna.load_study(study_name="joint", storage=f"sqlite:///{project}/study.db")
    results = [each for name in ("first", "second") for each in ResultGrid.from_path(project / name)]
    assert sorted(study.trials_dataframe()["value"]) == sorted(each.metrics["objective"] for each in results)
    assert len(results) == 8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+hydra.sweeper.params.y=1"], "Could not override 'y'"),
        (
            ["hydra.sweeper.storage=sqlite:///a.db", "hydra.sweeper.search_alg=grid"],
            "storage belong to Optuna's search",
        ),
        (["hydra.sweeper.num_samples=0"], "num_samples=0: give 1 or more"),
        (["db=small,missing"], "Could not find 'db/missing'"),
        (["hydra.sweeper.n_trials=2", "hydra.sweeper.num_samples=2"], "both num_samples and n_trials"),
        (["hydra.sweeper.max_failure_rate=2"], "give a number from 0 to 1"),
        (["hydra.sweeper.search_alg=tpee"], "search_alg='tpee' is not one of"),
        (["hydra.sweeper.num_samples=many"], "could not be converted to Integer"),
    ],
)
def test_a_wrong_setting_is_refused_before_a_job_runs(project: Path, overrides: list[str], message: str):
    assert message in run(project, "x=1,2", *overrides, code=1)
    assert not (project / "out" / "0").exists()
