"""What a trainer of functions does on any engine that runs two workers: a subclass has the engine."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainkit
from tests.conftest import eventually
from trainkit import train, tune
from trainkit.errors import (
    ConfigError,
    ControllerError,
    GangError,
    MetricError,
    SerializationError,
    TrainingError,
    TrainingFailedError,
    WorkerGroupError,
)
from trainkit.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from trainkit.train.torch import TorchConfig, TorchTrainer, get_device, prepare_data_loader, prepare_model

STEPS = 4


def keep(metrics: dict[str, Any], **files: str) -> None:
    """Report with a checkpoint of these files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            Path(folder, name).write_text(text)
        train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def kept(name: str) -> str | None:
    """Return the text of a file in the latest checkpoint; None: there is no checkpoint."""
    checkpoint = train.get_checkpoint()
    return None if checkpoint is None else Path(checkpoint.path, name).read_text()


def identity() -> None:
    context = train.get_context()
    ranks = torch.tensor([float(context.get_world_rank() + 1)])
    dist.all_reduce(ranks)
    own = {
        "rank": dist.get_rank() == context.get_world_rank() == int(os.environ["RANK"]),
        "size": dist.get_world_size() == context.get_world_size() == int(os.environ["WORLD_SIZE"]),
        "local": context.get_local_rank() == int(os.environ["LOCAL_RANK"]),
        "sum": ranks.item(),
        "device": str(get_device()),
        "metadata": context.get_metadata(),
        "trial_dir": context.get_trial_dir(),
        "storage": context.get_storage().trial_path,
        "experiment": context.get_experiment_name(),
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    train.report({"everyone": everyone, "pid": os.getpid()})


def fit_line(config: dict[str, Any]) -> None:
    """Train a line by the strategy that the configuration names; report each epoch's losses over all data."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(32, 4, dtype=torch.float64), torch.randn(32, 1, dtype=torch.float64))
    plain = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    model = prepare_model(plain, parallel_strategy=config.get("strategy", "ddp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1))
    loader = prepare_data_loader(DataLoader(data, batch_size=4))
    for _ in range(STEPS):
        total = torch.zeros((), dtype=torch.float64)
        for features, target in loader:
            loss = nn.functional.mse_loss(model(features), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        train.report({"loss": total.item()})


def count_up(config: dict[str, Any]) -> None:
    """Report a count with a checkpoint, from where the last one left off; fail as the configuration says."""
    rank = train.get_context().get_world_rank()
    start = int(kept("count") or 0)
    for count in range(start + 1, STEPS + 1):
        if config.get("fault") is not None and count == 3 and rank == 1 and start == 0:
            config["fault"]()
        keep(
            {"count": count, "start": start, "rank": rank}, **{"count": str(count), f"rank{rank}": str(count)}
        )
        assert kept("rank0") == kept("rank1") == str(count)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def raise_lookup() -> None:
    raise LookupError("the third step is cursed")


def worker_pids(run: Path) -> list[int]:
    return [int(path.read_text()) for path in run.glob("pid*")]


class FunctionTrainerSuite:
    """Promises of a trainer of functions; each test makes its own trainer, of two workers."""

    @pytest.fixture(autouse=True)
    def storage(self, tmp_path: Path) -> Iterator[None]:
        """Keep runs in a folder of the test's own; no worker of a run is left afterwards."""
        self.path = tmp_path
        yield
        cpus = trainkit.cluster_resources()["CPU"]
        assert eventually(lambda: trainkit.available_resources().get("CPU") == cpus), "left running: workers"

    def trainer(self, function: Callable[..., Any], config: Any = None, **more: Any) -> TorchTrainer:
        run = {"storage_path": str(self.path), "verbose": 0, **more.pop("run", {})}
        arguments = {"scaling_config": ScalingConfig(num_workers=2), **more}
        return TorchTrainer(function, train_loop_config=config, run_config=RunConfig(**run), **arguments)

    def test_workers_know_who_they_are(self) -> None:
        result = self.trainer(identity, metadata={"by": "us"}, run={"name": "who"}).fit()
        assert set(result.metrics) == {"everyone", "pid"}  # a name that every report has, and the user's
        first, second = result.metrics["everyone"]
        assert first == second | {"local": first["local"]}
        assert first["rank"] and first["size"] and first["local"]
        assert (first["sum"], first["device"], first["metadata"]) == (3.0, "cpu", {"by": "us"})
        assert first["trial_dir"] == first["storage"] == result.path
        assert first["experiment"] == "who"

    def test_workers_train_the_model_of_a_plain_loop(self) -> None:
        self.check_losses("ddp")

    def check_losses(self, strategy: str) -> None:
        """Check that two workers with batches of 4 do as one with 8, that has the samples in their order."""
        losses = self.trainer(fit_line, {"strategy": strategy}).fit().metrics_dataframe["loss"]
        torch.manual_seed(0)
        features = torch.randn(32, 4, dtype=torch.float64)
        target = torch.randn(32, 1, dtype=torch.float64)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for loss in losses:
            total = 0.0
            for part in range(0, 32, 8):
                each = nn.functional.mse_loss(model(features[part : part + 8]), target[part : part + 8])
                optimizer.zero_grad()
                each.backward()
                optimizer.step()
                total += 2 * each.item()
            assert loss == pytest.approx(total, rel=1e-12)

    def test_a_report_is_the_first_workers_and_its_checkpoint_is_of_all(self) -> None:
        result = self.trainer(count_up, {}, run={"checkpoint_config": CheckpointConfig(num_to_keep=2)}).fit()
        assert result.metrics == {"count": STEPS, "start": 0, "rank": 0}
        assert result.history == [result.metrics | {"count": count + 1} for count in range(STEPS)]
        assert sorted(os.listdir(result.checkpoint.path)) == ["count", "rank0", "rank1"]
        assert [metrics for _, metrics in result.best_checkpoints] == result.history[-2:]
        assert result.get_best_checkpoint("count", "max") == result.checkpoint
        with pytest.raises(MetricError, match=r"'coun', which was not reported; .*Did you mean 'count'"):
            result.get_best_checkpoint("coun", "max")
        folders = [name for name in os.listdir(result.path) if name.startswith("checkpoint")]
        assert len(folders) == 2
        assert not [name for name in os.listdir(result.path) if name.startswith(".")]

    def test_a_killed_worker_costs_what_came_after_the_checkpoint(self) -> None:
        result = self.trainer(
            count_up, {"fault": kill_self}, run={"failure_config": FailureConfig(max_failures=1)}
        ).fit()
        assert list(result.metrics_dataframe["count"]) == [1, 2, 3, 4]
        assert result.metrics["start"] == 2

    def test_a_killed_worker_is_named(self) -> None:
        with pytest.raises(WorkerGroupError, match="worker 1 of 2 died") as caught:
            self.trainer(count_up, {"fault": kill_self}).fit()
        assert {rank: type(error) for rank, error in caught.value.worker_failures.items()} == {1: GangError}

    def test_a_worker_that_raises_ends_the_others_and_tells_why(self) -> None:
        def wait(config: dict[str, Any]) -> None:
            rank = train.get_context().get_world_rank()
            Path(config["folder"], f"pid{rank}").write_text(str(os.getpid()))
            dist.barrier()
            if rank == 1:
                raise_lookup()
            time.sleep(600)

        began = time.monotonic()
        with pytest.raises(WorkerGroupError, match="the third step is cursed") as caught:
            self.trainer(wait, {"folder": str(self.path)}).fit()
        (failure,) = caught.value.worker_failures.items()
        assert (failure[0], type(failure[1])) == (1, LookupError)
        told = str(caught.value)
        assert "in raise_lookup" in told and "LookupError" in told and "time.sleep" not in told
        assert time.monotonic() - began < 300
        assert eventually(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in worker_pids(self.path)))

    # -- searches ------------------------------------------------------------------------------

    def test_a_scheduler_stops_all_workers_at_the_decision(self) -> None:
        def noted(config: dict[str, Any]) -> None:
            rank = train.get_context().get_world_rank()
            folder = Path(train.get_context().get_trial_dir())
            try:
                for step in range(1, 9):
                    (folder / f"step{rank}").write_text(str(step))
                    train.report({"loss": config["loss"] / step})
            finally:
                (folder / f"ended{rank}").touch()

        tuner = tune.Tuner(
            self.trainer(noted),
            param_space={"train_loop_config": {"loss": tune.grid_search([1.0, 2.0, 4.0, 8.0])}},
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                max_concurrent_trials=1,
                scheduler=tune.schedulers.ASHAScheduler(grace_period=2, reduction_factor=2, max_t=8),
            ),
        )
        grid = tuner.fit()
        assert not grid.errors
        steps = [result.metrics["training_iteration"] for result in grid]
        assert (steps[0], min(steps)) == (8, 2)
        for result, taken in zip(grid, steps, strict=True):
            for rank in (0, 1):
                assert Path(result.path, f"step{rank}").read_text() == str(taken)
                assert Path(result.path, f"ended{rank}").exists()

    def test_a_trial_may_make_the_trainer(self) -> None:
        """As Ray Train's second version has it: a function of Tune that fits a trainer."""

        def drive(config: dict[str, Any]) -> None:
            result = self.trainer(count_up, {}).fit()
            tune.report({"count": result.metrics["count"] * config["factor"]})

        space = {"factor": tune.grid_search([1, 10])}
        run = RunConfig(storage_path=str(self.path), verbose=0)
        tuned = tune.TuneConfig(max_concurrent_trials=1)
        # It waits, while the workers need all CPUs that there are.
        driver = tune.with_resources(drive, tune.PlacementGroupFactory([{}]))
        grid = tune.Tuner(driver, param_space=space, tune_config=tuned, run_config=run).fit()
        assert [result.metrics["count"] for result in grid] == [STEPS, 10 * STEPS]


class RunSuite(FunctionTrainerSuite):
    """What the trial of a run does itself, which is the same on every engine: shown on one."""

    @pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
    def test_workers_train_a_sharded_model_as_a_plain_loop(self, strategy: str) -> None:
        self.check_losses(strategy)

    def test_reports_are_made_by_all(self) -> None:
        def uneven() -> None:
            train.report({"loss": 1.0})
            if train.get_context().get_world_rank() == 0:
                train.report({"loss": 0.5})

        with pytest.raises(TrainingFailedError, match=r"worker 1 of 2 ended .* after 1 reports") as caught:
            self.trainer(uneven).fit()
        assert isinstance(caught.value, ControllerError)
        assert isinstance(caught.value.controller_failure, TrainingError)

    def test_what_the_first_worker_returns_is_kept(self) -> None:
        def give(config: dict[str, Any]) -> Any:
            rank = train.get_context().get_world_rank()
            return {"lock": threading.Lock, "none": lambda: None, "rank": lambda: (rank, config)}[
                config["what"]
            ]()

        for what, returned in (
            ("rank", (0, {"what": "rank"})),
            ("none", None),
        ):
            result = self.trainer(give, {"what": what}, run={"name": "given"}).fit()
            assert (result.return_value, result.metrics) == (returned, {})
        # What can't be kept is told, and fails no run that has ended.
        assert self.trainer(give, {"what": "lock"}).fit().return_value is None

    def test_callbacks_hear_of_reports_and_failures(self) -> None:
        notes = self.path / "notes"

        class Noted(train.UserCallback):
            def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
                with notes.open("a") as file:
                    print(run_context.get_run_config().name, [each["rank"] for each in metrics], file=file)

            def after_exception(self, run_context: Any, worker_exceptions: Any) -> None:
                with notes.open("a") as file:
                    print(worker_exceptions, file=file)

        class Fails(train.UserCallback):
            def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
                raise LookupError("this callback is cursed")

        with pytest.raises(WorkerGroupError):
            self.trainer(count_up, {"fault": raise_lookup}, run={"name": "n", "callbacks": [Noted()]}).fit()
        report = "n [0, 1]\n"
        assert notes.read_text() == 2 * report + "{1: LookupError('the third step is cursed')}\n"
        with pytest.raises(ControllerError, match="this callback is cursed") as caught:
            self.trainer(count_up, {}, run={"callbacks": [Fails()]}).fit()
        assert type(caught.value.controller_failure) is LookupError

    def test_a_function_knows_the_checkpoints_of_its_run(self) -> None:
        def count(config: dict[str, Any]) -> list[Any]:
            count_up(config)
            return [(each.checkpoint.path, each.metrics) for each in train.get_all_reported_checkpoints()]

        result = self.trainer(count, {}, run={"checkpoint_config": CheckpointConfig(num_to_keep=2)}).fit()
        best = [(checkpoint.path, metrics) for checkpoint, metrics in result.best_checkpoints]
        assert result.return_value == best and len(best) == 2

    def test_a_checkpoint_of_some_workers_is_whole(self) -> None:
        def partial() -> None:
            if train.get_context().get_world_rank() == 1:
                keep({"loss": 1.0}, weights="from 1")
            else:
                train.report({"loss": 0.0})

        result = self.trainer(partial).fit()
        assert result.metrics["loss"] == 0.0
        assert Path(result.checkpoint.path, "weights").read_text() == "from 1"

    def test_a_run_of_the_same_name_goes_on(self) -> None:
        with pytest.raises(TrainingFailedError):
            self.trainer(count_up, {"fault": raise_lookup}, run={"name": "line"}).fit()
        result = self.trainer(count_up, {}, run={"name": "line"}).fit()
        assert (result.metrics["count"], result.metrics["start"]) == (STEPS, 2)

        with pytest.raises(ConfigError, match=r"arguments again.*ScalingConfig\(\) if the run had none"):
            TorchTrainer.restore(self.path / "line", count_up)
        two: Any = {"scaling_config": ScalingConfig(num_workers=2)}
        with pytest.raises(ConfigError, match=r"train_loop_config=\.\.\."):
            TorchTrainer.restore(self.path / "line", count_up, **two)
        again = TorchTrainer.restore(self.path / "line", count_up, train_loop_config={}, **two)
        assert TorchTrainer.can_restore(self.path / "line")
        assert again.fit().metrics["count"] == STEPS

    def test_a_run_keeps_its_configuration(self, caplog: pytest.LogCaptureFixture) -> None:
        config = {"lr": 0.1, "deep": {"a": (1, 2)}, "call": raise_lookup}
        result = self.trainer(count_up, config, run={"name": "kept"}).fit()
        assert result.config == {"train_loop_config": config}
        kept = tune.Result.from_path(result.path).config["train_loop_config"]
        assert kept == config | {"deep": {"a": [1, 2]}, "call": f"{__name__}.raise_lookup"}
        assert not caplog.records
        params = json.loads(Path(result.path, "params.json").read_text())
        assert params["train_loop_config"]["lr"] == 0.1

        def again(config: dict[str, Any]) -> str:
            caplog.clear()
            self.trainer(count_up, config, run={"name": "kept"}).fit()
            return "; ".join(record.getMessage() for record in caplog.records)

        assert "different configuration" not in again(config)
        told = again({"lr": 0.2, "deep": {"a": (1, 2)}, "new": 1})
        assert "has finished with a different configuration" in told and ": lr: 0.1 -> 0.2; call: " in told
        assert "-> none; new: none -> 1" in told

    @pytest.mark.slow
    def test_a_name_of_a_run_that_finished_otherwise_is_taken(self, caplog: pytest.LogCaptureFixture) -> None:
        def fit(lr: float, fault: Any = None) -> tune.Result:
            caplog.clear()
            return self.trainer(count_up, {"lr": lr, "fault": fault}, run={"name": "taken"}).fit()

        first = fit(0.1)
        with pytest.raises(TrainingFailedError):
            fit(0.2, raise_lookup)
        second = fit(0.2)  # goes on with the one that failed, and says what has changed
        assert "resumes with a different configuration: fault: " in caplog.text
        folders = [Path(result.path).parent.name for result in (first, second, fit(0.3), fit(0.2), fit(0.1))]
        assert folders == ["taken", "taken_2", "taken_3", "taken_4", "taken"]
        assert (second.metrics["count"], second.metrics["start"]) == (STEPS, 2)

    def test_a_run_begins_with_a_checkpoint(self) -> None:
        (self.path / "before").mkdir()
        for name in ("count", "rank0", "rank1"):
            (self.path / "before" / name).write_text("3")
        start = Checkpoint.from_directory(self.path / "before")
        assert self.trainer(count_up, {}, resume_from_checkpoint=start).fit().metrics["start"] == 3

    def test_an_exception_in_preparation_is_the_users(self) -> None:
        def unprepared() -> None:
            prepare_model(nn.Linear(1, 1), parallel_strategy_kwargs={"bucket_size": 1})

        with pytest.raises(WorkerGroupError, match="in unprepared") as caught:
            self.trainer(unprepared).fit()
        (error,) = caught.value.worker_failures.values()
        assert type(error) is TypeError and "bucket_size" in str(error)

    def test_what_cant_be_sent_is_named(self) -> None:
        lock = threading.Lock()
        with pytest.raises(SerializationError, match="lock"):
            self.trainer(lambda: lock.locked()).fit()

    def test_trials_pause_and_go_on(self) -> None:
        tuner = tune.Tuner(
            self.trainer(count_up, {}),
            param_space={"train_loop_config": {"lr": tune.grid_search([1, 2])}},
            tune_config=tune.TuneConfig(
                metric="count",
                mode="max",
                scheduler=tune.schedulers.HyperBandScheduler(max_t=STEPS, reduction_factor=2),
            ),
        )
        grid = tuner.fit()
        assert not grid.errors
        assert max(result.metrics["count"] for result in grid) == STEPS
        assert any(result.metrics["start"] for result in grid)

    def test_a_trial_is_a_run_with_its_configuration(self) -> None:
        def tell(config: dict[str, Any]) -> None:
            train.report({"told": config, "workers": train.get_context().get_world_size()})

        tuner = tune.Tuner(
            self.trainer(tell, {"lr": 1, "deep": {"a": 1, "b": 2}}),
            param_space={
                "train_loop_config": {"deep": {"b": tune.grid_search([3])}},
                "scaling_config": {"num_workers": tune.grid_search([1, 2])},
            },
        )
        grid = tuner.fit()
        assert [result.metrics["workers"] for result in grid] == [1, 2]
        assert all(result.metrics["told"] == {"lr": 1, "deep": {"a": 1, "b": 3}} for result in grid)

    @pytest.mark.slow
    def test_a_worker_that_never_reports_is_named(self) -> None:
        def hang() -> None:
            if train.get_context().get_world_rank() == 1:
                time.sleep(600)
            train.report({"loss": 1.0})

        message = r"worker 1 of 2 did not finish train_loop_per_worker\(\) within timeout_s=30 after"
        with pytest.raises(TrainingFailedError, match=message):
            self.trainer(hang, torch_config=TorchConfig(timeout_s=30)).fit()  # for the start too

    def test_workers_share_a_value_and_wait_for_each_other(self) -> None:
        folder = str(self.path)

        def share() -> None:
            rank = train.get_context().get_world_rank()
            Path(folder, f"at{rank}").touch()
            train.collective.barrier()
            seen = sorted(path.name for path in Path(folder).glob("at*"))
            keep(
                {"rank": train.collective.broadcast_from_rank_zero({"rank": rank})},
                **{f"saw{rank}": str(seen)},
            )

        result = self.trainer(share).fit()
        assert result.metrics["rank"] == {"rank": 0}
        for rank in (0, 1):
            assert Path(result.checkpoint.path, f"saw{rank}").read_text() == "['at0', 'at1']"

    def test_data_are_shared_evenly(self) -> None:
        def read() -> None:
            own = {
                "list": list(train.get_dataset_shard("list")),
                "stream": list(train.get_dataset_shard("stream")),
                "whole": list(train.get_dataset_shard("whole")),
            }
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, own)
            train.report({"everyone": everyone})

        data = {"list": list(range(7)), "stream": {1: "a", 2: "b", 3: "c", 4: "d"}.keys(), "whole": [1, 2, 3]}
        data["stream"] = Stream(5)
        result = self.trainer(
            read, datasets=data, dataset_config=train.DataConfig(datasets_to_split=["list", "stream"])
        ).fit()
        first, second = result.metrics["everyone"]
        assert first == {"list": [0, 2, 4], "stream": [0, 2], "whole": [1, 2, 3]}
        assert second == {"list": [1, 3, 5], "stream": [1, 3], "whole": [1, 2, 3]}


class Stream:
    """An iterable without a length that can start again."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Any:
        return iter(range(self._count))
