"""The trainer of functions on the local engine, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sklearn.base import BaseEstimator

import trainkit
from tests.conftest import eventually
from tests.runtime.local.programs import Programs
from tests.suites.function_trainer import RunSuite, keep, kept
from tests.train.operators import Digits, lose_patience
from trainkit import train, tune
from trainkit.errors import ConfigError, StoreError, TrainingFailedError, TuneError, WorkerGroupError
from trainkit.sklearn import TuneGridSearchCV
from trainkit.train import RunConfig, ScalingConfig
from trainkit.train.torch import TorchConfig, TorchTrainer, accelerate, prepare_model
from trainkit.train.torch.trainer import changes
from trainkit.train.torch.worker import shared_gpus
from trainkit.tune.core.setting_names import SettingNames, named_as
from trainkit.tune.experiment.plan import make_plan
from trainkit.util.multiprocessing import Pool
from trainkit.util.sgd import torch as sgd_torch


@pytest.mark.usefixtures("runtime")
class TestLocalEngine(RunSuite):
    """The trainer of functions with forked workers."""


def test_workers_see_the_gpus_of_their_machine() -> None:
    everyone = [("a", ("0",)), ("b", ("0", "1")), ("a", ("3",)), ("a", ("3",))]
    assert shared_gpus(everyone, everyone[0]) == (("0", "3"), (0,))
    assert shared_gpus(everyone, everyone[1]) == (("0", "1"), (0, 1))
    assert shared_gpus(everyone, everyone[3]) == (("0", "3"), (1,))


def drawn() -> None:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, torch.rand(()).item())
    train.report({"drawn": everyone})


@pytest.mark.usefixtures("runtime")
def test_a_seeded_search_repeats_on_all_workers(tmp_path: Path) -> None:
    class Locked(tune.Callback):
        """A callback that can't be sent to a worker, and need not."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

    two = ScalingConfig(num_workers=2)
    run = RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=[Locked()])
    tuned = tune.TuneConfig(seed=1)
    tuners = [
        tune.Tuner(TorchTrainer(drawn, scaling_config=two, run_config=run), tune_config=tuned) for _ in "ab"
    ]
    first, second = (tuner.fit()[0].metrics["drawn"] for tuner in tuners)
    assert first == second
    assert first[0] != first[1]


def unclean() -> None:
    try:
        for _ in range(2):
            train.report({"loss": 1.0})
    finally:
        raise LookupError("the clean-up is cursed")


@pytest.mark.usefixtures("runtime")
def test_what_the_clean_up_of_a_stopped_worker_raises_is_printed(tmp_path: Path) -> None:
    run = RunConfig(storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 1}, log_to_file=True)
    result = TorchTrainer(unclean, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()
    assert Path(result.path, "stderr").read_text().count("the clean-up is cursed") >= 2


def fails(config: dict[str, Any]) -> None:
    raise LookupError(config["words"])


@pytest.mark.usefixtures("runtime")
def test_an_error_is_printed_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = {"words": "this loop is cursed"}
    with pytest.raises(WorkerGroupError) as caught:
        TorchTrainer(fails, train_loop_config=config, run_config=RunConfig(storage_path=str(tmp_path))).fit()
    told = "".join([*traceback.format_exception(caught.value), *capfd.readouterr()])
    assert told.count("this loop is cursed") == told.count("in fails\n") == 1


def count_till_interrupted(config: dict[str, Any]) -> None:
    start = int(kept("count") or 0)
    for count in range(start + 1, 5):
        if count == 3 and start == 0:
            if train.get_context().get_world_rank() == 0:
                os.kill(config["pid"], signal.SIGINT)
            time.sleep(600)
        keep({"count": count, "start": start}, count=str(count))


@pytest.mark.usefixtures("runtime")
def test_an_interrupted_run_says_how_it_goes_on_and_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, two = RunConfig(storage_path=str(tmp_path), name="line", verbose=0), ScalingConfig(num_workers=2)
    arguments: Any = {"train_loop_config": {"pid": os.getpid()}, "scaling_config": two}
    with pytest.raises(KeyboardInterrupt) as caught:
        TorchTrainer(count_till_interrupted, run_config=run, **arguments).fit()
    told = re.escape(f"run the same command again: it resumes the run in {str(tmp_path / 'line')!r}")
    assert re.search(told, str(caught.value))
    assert re.search(told, caplog.text)
    assert "Tuner.restore" not in caplog.text
    result = TorchTrainer.restore(str(tmp_path / "line"), count_till_interrupted, **arguments).fit()
    assert (result.metrics["count"], result.metrics["start"]) == (4, 2)


HOLDS_FOLDER = """
    import os, sys, time
    from pathlib import Path
    from trainkit import train
    from trainkit.train import RunConfig, TorchTrainer

    def hold(config):
        with train.temporary_folder() as folder:
            Path(config["told"], "new").write_text(folder)
            os.rename(Path(config["told"], "new"), Path(config["told"], "folder"))
            time.sleep(600)

    run = RunConfig(storage_path=sys.argv[1], verbose=0)
    TorchTrainer(hold, train_loop_config={"told": sys.argv[1]}, run_config=run).fit()
"""


@pytest.mark.slow
def test_a_temporary_folder_does_not_outlive_a_killed_program(programs: Programs, tmp_path: Path) -> None:
    program = programs.begin(HOLDS_FOLDER, str(tmp_path))
    assert eventually((tmp_path / "folder").exists, 300)
    folder = Path((tmp_path / "folder").read_text())
    assert folder.is_dir()
    program.kill()
    assert eventually(lambda: not folder.exists(), 120)


def says_done(config: dict[str, Any]) -> str:
    for count in range(3):
        train.report({"count": count, "done": count == 1})
    return "to the end"


@pytest.mark.usefixtures("runtime")
def test_a_metric_named_done_ends_no_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    two = ScalingConfig(num_workers=2)
    run = RunConfig(storage_path=str(tmp_path), verbose=0)
    result = TorchTrainer(says_done, scaling_config=two, run_config=run).fit()
    assert (result.metrics, result.return_value) == ({"count": 2}, "to the end")
    assert len(result.metrics_dataframe) == 3
    assert capfd.readouterr().err.count('report({"done": False}): "done" is left out') == 1


@pytest.mark.usefixtures("runtime")
def test_a_named_run_with_a_damaged_file_is_not_started_again_from_nothing(tmp_path: Path) -> None:
    run = RunConfig(name="run", storage_path=str(tmp_path), verbose=0)
    TorchTrainer(drawn, run_config=run).fit()
    file = tmp_path / "run" / "experiment.sqlite"
    os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(StoreError, match=f"{file} is truncated"):
        TorchTrainer(drawn, run_config=run).fit()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def one(config: dict[str, Any]) -> None:
    raise AssertionError("is never called")


class Noted(TorchTrainer):
    """A subclass that extends a method of each form."""

    def train(self, *args: Any, **more: Any) -> Any:
        return "noted", super().train(*args, **more)["epoch"]

    def fit(self) -> Any:
        return "noted", super().fit()


@pytest.mark.usefixtures("runtime")
def test_one_class_takes_a_function_or_an_operator(tmp_path: Path) -> None:
    assert sgd_torch.TorchTrainer is train.TorchTrainer is TorchTrainer
    run = RunConfig(storage_path=str(tmp_path), verbose=0)
    noted, result = (of_function := Noted(drawn, run_config=run)).fit()
    assert noted == "noted" and len(result.metrics["drawn"]) == 1
    operator: Any = {"training_operator_cls": Digits, "config": {"samples": 40}, "use_local": True}
    with Noted(**operator, use_gpu=False) as of_operator:
        assert of_operator.train() == ("noted", 1)
        with pytest.raises(ConfigError, match=r"trains an operator: call train\(\)"):
            of_operator.fit()
    for each in (of_function, of_operator):
        assert isinstance(each, TorchTrainer) and repr(each).startswith("Noted(")
    for method in (of_function.validate, of_function.scale_batch_size):
        with pytest.raises(ConfigError, match=r"runs a training function: call fit\(\)"):
            method()
    assert not hasattr(of_function, "has_validation")
    with pytest.raises(ZeroDivisionError), of_function:
        raise ZeroDivisionError
    with pytest.raises(AttributeError, match="'fitt'"):
        of_function.fitt()  # type: ignore[attr-defined]


async def waits(config: dict[str, Any]) -> None: ...


def yields(config: dict[str, Any]) -> Any:
    yield {}


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (3, {}, "must be a function, not 3"),
        (waits, {}, "is async or a generator: pass a plain function"),
        (yields, {}, "is async or a generator: pass a plain function"),
        (one, {"scaling_confg": None}, r"no argument scaling_confg\. Did you mean 'scaling_config'"),
        (lambda config, rank: None, {}, r"takes \(config, rank\), but must take only the configuration"),
        (one, {"train_loop_config": [1]}, r"train_loop_config must be a Mapping, not \[1\]"),
        (one, {"scaling_config": {"num_workers": 2}}, "must be a ScalingConfig"),
        (one, {"scaling_config": ScalingConfig(num_workers=0)}, "num_workers=0"),
        (one, {"torch_config": TorchConfig(backend="nccl")}, r"needs ScalingConfig\(use_gpu=True\)"),
        (one, {"resume_from_checkpoint": "/somewhere"}, r"needs a Checkpoint\.from_directory"),
        (
            one,
            {"num_workers": 2},
            r": no argument num_workers\. Set the number of workers .*=ScalingConfig",
        ),
        (one, {"datasets": [1]}, "must be a dictionary of data sets, not"),
        (
            one,
            {"datasets": {"train": []}, "dataset_config": train.DataConfig(datasets_to_split=["trian"])},
            r"has 'trian', which is not one of the trainer's datasets\. Did you mean 'train'",
        ),
    ],
)
def test_a_mistake_is_told_at_once(function: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TorchTrainer(function, **arguments)


@pytest.mark.parametrize(
    "value", [tune.uniform(0, 1), tune.grid_search([1, 2]), tune.sample_from(lambda spec: 1)]
)
def test_a_search_space_is_not_run_once(value: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"train_loop_config/lr is a search space, but fit\(\) runs only once"
    ):
        TorchTrainer(print, train_loop_config={"lr": value}).fit()


def test_a_run_from_before_records_were_kept_goes_on_without_a_warning() -> None:
    now = {"train_loop_config": {"lr": 0.1}}
    assert changes({}, now) == ""
    assert changes({"train_loop_config": {}}, now) == "lr: none -> 0.1"


@pytest.mark.parametrize("verb", ["get_dataset_shard", "report", "get_context"])
def test_verbs_of_a_worker_are_refused_elsewhere(verb: str) -> None:
    with pytest.raises(TuneError, match=rf"^{verb}\(\) was called outside a trial: .* TorchTrainer"):
        getattr(train, verb)(*([{}] if verb == "report" else []))


@pytest.mark.usefixtures("runtime")
def test_a_wrong_key_of_a_search_is_refused_in_its_own_words(tmp_path: Path) -> None:
    run = RunConfig(storage_path=str(tmp_path), verbose=0)
    with pytest.raises(ConfigError, match=r"^param_space has the unknown keys 'lr': pass arguments"):
        tune.Tuner(TorchTrainer(one), param_space={"lr": 1}, run_config=run).fit()


def reports_elsewhere() -> None:
    with ThreadPoolExecutor(1, thread_name_prefix="helper") as executor:
        executor.submit(train.report, {"loss": 1.0})


def speeds_up_late() -> None:
    accelerate(amp=True)
    model = prepare_model(torch.nn.Linear(1, 1))
    assert model(torch.ones(1)).dtype == torch.bfloat16
    accelerate(amp=True)


def meets_alone() -> None:
    dist.barrier()
    lose_patience()
    if train.get_context().get_world_rank() == 0:
        dist.barrier()
    train.report({"loss": 1.0})


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize(
    ("function", "workers", "message"),
    [
        (reports_elsewhere, 1, r"nothing was reported: report\(\) was called from thread"),
        (speeds_up_late, 1, "before prepare_model: it changes no"),
        (meets_alone, 2, "worker 0 of 2 waited in a collective that worker 1 may not have entered"),
    ],
)
def test_a_run_that_fails_says_why(function: Any, workers: int, message: str, tmp_path: Path) -> None:
    run, scaling = RunConfig(storage_path=str(tmp_path), verbose=0), ScalingConfig(num_workers=workers)
    with pytest.raises(TrainingFailedError, match=message):
        TorchTrainer(function, run_config=run, scaling_config=scaling).fit()


class Apart(BaseEstimator):  # type: ignore[misc]
    """Scores its weight in any process but `pid`."""

    def __init__(self, pid: int = 0, weight: int = 0) -> None:
        self.pid, self.weight = pid, weight

    def fit(self, X: Any, y: Any = None) -> Apart:
        return self

    def score(self, X: Any, y: Any = None) -> float:
        return self.weight * float(os.getpid() != self.pid)


def starts_tasks_trials_and_searches(config: dict[str, Any]) -> None:
    squares = trainkit.get([trainkit.remote(abs).remote(-number) for number in range(3)])
    space = {"x": tune.grid_search([1, 2])}
    run = RunConfig(storage_path=config["folder"], name=f"inner{os.getpid()}", verbose=0)
    grid = tune.Tuner(lambda config: {"score": config["x"]}, param_space=space, run_config=run).fit()
    search = TuneGridSearchCV(Apart(os.getpid()), {"weight": [1, 7]}, cv=2).fit(torch.zeros(4, 1).numpy())
    with Pool(2) as pool:
        sums = [sum(squares), sum(r.metrics["score"] for r in grid), sum(pool.map(abs, [-5]))]
    train.report({"sums": [*sums, search.best_score_]})


@pytest.mark.slow
def test_workers_that_hold_all_cpus_lend_them_to_what_they_start(tmp_path: Path) -> None:
    trainkit.shutdown()  # the session of other tests, which has more
    trainkit.init(num_cpus=2)
    try:
        run, two = RunConfig(storage_path=str(tmp_path), verbose=0), ScalingConfig(num_workers=2)
        told = {"folder": str(tmp_path)}
        result = TorchTrainer(
            starts_tasks_trials_and_searches, train_loop_config=told, run_config=run, scaling_config=two
        ).fit()
        assert result.metrics["sums"] == [3, 3, 5, 7]
    finally:
        trainkit.shutdown()


def test_a_training_has_more_time_to_end_than_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def grace_s() -> float:
        return make_plan(tune.TuneConfig(), RunConfig(), None).grace_s

    training = SettingNames(trains=True)
    monkeypatch.delenv("TRAINKIT_STOP_GRACE_S", raising=False)
    with named_as(training):
        assert grace_s() == 20
    assert grace_s() == 5
    monkeypatch.setenv("TRAINKIT_STOP_GRACE_S", "7")
    with named_as(training):
        assert grace_s() == 7
