"""Searches for a learning rate and a batch size: what they find, and that they leave nothing behind."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.plugins.pipeline.test_pipeline import Toy, plain
from tests.plugins.pipeline.test_pipeline import trainer as pipeline
from tests.train.workers.test_recovery import identical, run
from tests.train.workers.test_recovery import trainer as killable
from trainkit.errors import ActorDiedError, ConfigError, TrainingError
from trainkit.plugins.pipeline.pipeline import Pipeline
from trainkit.plugins.profile.finders import BatchSizeSearch, LRFinder, learning_rates
from trainkit.train import BATCH_SIZE, TorchTrainer, TrainingOperator

pytestmark = pytest.mark.usefixtures("runtime")


# -- the rules ---------------------------------------------------------------------------------


def test_rates_rise_by_factors_or_by_steps() -> None:
    assert learning_rates("exponential", 1e-4, 1.0, 5) == pytest.approx([1e-4, 1e-3, 1e-2, 1e-1, 1.0])
    assert learning_rates("linear", 1.0, 3.0, 5) == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0])


def test_the_suggestion_is_where_the_loss_falls_most_steeply() -> None:
    rates = learning_rates("linear", 1.0, 30.0, 30)
    losses = [-math.atan(rate - 18) for rate in rates]
    assert LRFinder("linear", {"lr": rates, "loss": losses}).suggestion() == 18.0
    losses[16:] = [math.nan] * 14
    assert LRFinder("linear", {"lr": rates, "loss": losses}).suggestion() == 16.0
    assert LRFinder("linear", {"lr": rates[:12], "loss": losses[:12]}).suggestion() is None
    found = LRFinder("linear", {"lr": rates[:12], "loss": losses[:12]}).suggestion(skip_begin=2, skip_end=0)
    assert found == 12.0


@pytest.mark.parametrize(
    ("mode", "start", "room", "tried", "found"),
    [
        ("power", 2, 20, [2, 4, 8, 16, 32], 16),
        ("power", 64, 20, [64, 32, 16], 16),
        ("power", 2, 1000, [2, 4, 8, 16, 32, 64, 100], 100),
        ("power", 2, 0, [2, 1], 0),
        ("binsearch", 2, 20, [2, 4, 8, 16, 32, 24, 20, 22, 21], 20),
        ("binsearch", 64, 3, [64, 32, 16, 8, 4, 2, 3], 3),
        ("binsearch", 2, 1, [2, 1], 1),
    ],
)
def test_sizes_that_are_tried(mode: Any, start: int, room: int, tried: list[int], found: int) -> None:
    search, sizes = BatchSizeSearch(mode, start, 100), [start]
    while search.told(sizes[-1] <= room):
        sizes.append(search.size)
    assert (sizes, search.fits) == (tried, found)


def test_sizes_are_multiples_and_end_with_the_data() -> None:
    search = BatchSizeSearch("binsearch", 4, 100, unit=4)
    sizes = [4]
    while search.told(sizes[-1] <= 26):
        sizes.append(search.size)
    assert (sizes, search.fits) == ([4, 8, 16, 32, 24, 28], 24)
    assert not BatchSizeSearch("power", 8, 100).told(True, whole=True)


# -- learning rates ----------------------------------------------------------------------------


class Valley(TrainingOperator):
    """A quadratic function of one number: with the rate r a step makes the number 1 - r times as large."""

    def setup(self, config: dict[str, Any]) -> None:
        torch.manual_seed(0)
        model = nn.Linear(1, 1, bias=False).double()
        nn.init.ones_(model.weight)
        self.register(
            models=model,
            optimizers=torch.optim.SGD(model.parameters(), lr=0.5),
            criterion=lambda output, target: 0.5 * (output - target).square().mean(),
        )
        ones = torch.ones(config.get("samples", 18), 1).double()
        self.register_data(
            train_loader=DataLoader(TensorDataset(ones, 0 * ones), config.get("batch_size", 4))
        )


def valley(workers: int = 1, operator: type[TrainingOperator] = Valley, **options: Any) -> TorchTrainer:
    given = {"num_cpus_per_worker": 0.25, "use_gpu": False, **options}
    return TorchTrainer(training_operator_cls=operator, num_workers=workers, **given)


def smoothed(rates: list[float]) -> list[float]:
    """What the test finds in the valley."""
    number, average, found = 1.0, 0.0, []
    for step, rate in enumerate(rates, start=1):
        average = 0.98 * average + 0.02 * 0.5 * number**2
        found.append(average / (1 - 0.98**step))
        number *= 1 - rate
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (1, {"use_local": True, "scheduler_step_freq": "batch"}),
        (2, {"grad_accumulation_steps": 2}),
        (2, {"strategy": "fsdp"}),
    ],
    ids=str,
)
def test_losses_are_those_of_the_rates(workers: int, options: dict[str, Any]) -> None:
    with valley(workers, **options) as trainer:
        before = trainer.state_dict()
        found = trainer.lr_find(min_lr=0.01, max_lr=1.0, num_training=30)
        rates = learning_rates("exponential", 0.01, 1.0, 30)
        assert found.results["lr"] == rates
        assert found.results["loss"] == pytest.approx(smoothed(rates), abs=1e-12)
        assert found.suggestion() in rates[10:29]
        after = trainer.state_dict()
        assert identical(after["models"], before["models"])
        assert identical(after["optimizers"], before["optimizers"])
        assert trainer.train()["epoch"] == 1


def test_the_losses_are_drawn_over_the_rates() -> None:
    axes = pytest.importorskip("matplotlib.figure").Figure().subplots()
    rates = learning_rates("exponential", 1e-3, 1.0, 30)
    figure = LRFinder("exponential", {"lr": rates, "loss": smoothed(rates)}).plot(suggest=True, ax=axes)
    assert figure is axes.figure
    assert axes.get_xscale() == "log"
    curve, point = axes.lines
    assert list(curve.get_xdata()) == rates
    assert point.get_xdata()[0] in rates


def test_a_loss_that_grows_ends_the_test() -> None:
    with valley(use_local=True) as trainer:
        rates = learning_rates("linear", 0.5, 10.0, 100)
        found = trainer.lr_find(0.5, 10.0, mode="linear")
        expected = smoothed(rates)
        number = next(i for i, loss in enumerate(expected) if loss > 4 * min(expected[: i + 1]))
        assert found.results["lr"] == rates[: number + 1]
        whole = trainer.lr_find(0.5, 2.5, mode="linear", early_stop_threshold=None).results["lr"]
        assert len(whole) == 100


class Named(Valley):
    """Returns a loss by another name."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        metrics = dict(super().train_batch(batch, batch_info))
        return {"own_loss": metrics.pop("train_loss"), **metrics}


def test_the_loss_may_have_another_name() -> None:
    with valley(1, Named, use_local=True) as trainer:
        with pytest.raises(
            ConfigError, match="train_batch returned own_loss, num_samples, but not this metric"
        ):
            trainer.lr_find(num_training=5)
        assert len(trainer.lr_find(num_training=5, metric="own_loss").results["loss"]) == 5


def test_in_a_pipeline_the_last_stage_knows_the_loss() -> None:
    with plain(Toy) as alone, pipeline(Toy, Pipeline(split=["2"]), 2) as gang:
        expected = alone.lr_find(1e-5, 1e-2, 8).results["loss"]
        assert gang.lr_find(1e-5, 1e-2, 8).results["loss"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.slow
def test_training_goes_on_as_if_nothing_had_been_tried(tmp_path: Path) -> None:
    """Three workers, whose sums are rounded by the order that gradients are known to come in."""
    outcomes = []
    for tries in (False, True):
        with killable(num_workers=3, config={BATCH_SIZE: 30}, num_cpus_per_worker=0.25) as gang:
            if tries:
                gang.lr_find(num_training=3)
            first = gang.train()
            if tries:
                gang.lr_find(num_training=3)
                assert gang.scale_batch_size(init_val=30, max_trials=1, batch_arg_name=BATCH_SIZE) == 30
            outcomes.append((first, *run(gang, tmp_path)))
    assert identical(*outcomes)


# -- batch sizes -------------------------------------------------------------------------------


class Hungry(Valley):
    """Has room for batches of `config["room"]` samples."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if len(batch[0]) > self.config["room"]:
            torch.empty(len(batch[0]) * 2**55)
        return super().train_batch(batch, batch_info)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "room", "arguments", "found"),
    [
        (1, 20, {"mode": "binsearch", "margin": 0.2}, 16),
        (1, 50, {"max_val": 12}, 12),
        (1, 50, {"max_trials": 2}, 4),
        (2, 10, {"mode": "binsearch", "margin": 0, "init_val": 4}, 10),
    ],
    ids=str,
)
def test_the_largest_batch_that_fits(workers: int, room: int, arguments: dict[str, Any], found: int) -> None:
    config = {"samples": 200, "batch_size": 2, "room": room}
    with valley(workers, Hungry, use_local=True, config=config) as trainer:
        trainer.train()
        before = trainer.state_dict()
        assert trainer.scale_batch_size(**arguments) == found
        assert identical(trainer.state_dict(), before)
        assert trainer.train()["epoch"] == 2


@pytest.mark.slow
def test_the_size_over_all_workers_and_all_data_in_one_batch() -> None:
    with valley(2, Hungry, config={"samples": 48, BATCH_SIZE: 2, "room": 99}) as trainer:
        with pytest.raises(ConfigError, match=r"init_val must be a multiple of 2 .* not 3"):
            trainer.scale_batch_size(init_val=3, batch_arg_name=BATCH_SIZE)
        with pytest.raises(ConfigError, match="a pass has 6 batches with 2 and with 4"):
            trainer.scale_batch_size(batch_arg_name=BATCH_SIZE)  # Its setup looks at another key.


@pytest.mark.slow
def test_all_data_in_one_batch_is_the_end() -> None:
    with valley(2, Hungry, config={"samples": 48, "batch_size": 2, "room": 99}) as trainer:
        assert trainer.scale_batch_size(init_val=4) == 32


class Killed(Valley):
    """Is killed where batches are large; or fails otherwise."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if len(batch[0]) > 4 and self.config.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if len(batch[0]) > 4:
            raise ArithmeticError("five is too many")
        return super().train_batch(batch, batch_info)


class Limited(Valley):
    """A worker of it is said to have been killed for its memory where batches are large."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if len(batch[0]) > self.config["room"]:
            raise ActorDiedError("worker 0 was killed: memory limit exceeded")
        return super().train_batch(batch, batch_info)


def test_a_worker_killed_for_its_memory_had_too_large_batches() -> None:
    with valley(1, Limited, use_local=True, config={"batch_size": 2, "room": 4}) as trainer:
        assert trainer.scale_batch_size(max_trials=3) == 4
    config = {"batch_size": 2, "room": 0}
    with (
        valley(1, Hungry, use_local=True, config=config) as trainer,
        pytest.raises(TrainingError, match="even batches of 1 are too large"),
    ):
        trainer.scale_batch_size()


@pytest.mark.slow
def test_what_is_no_lack_of_memory_is_raised_and_the_trainer_goes_on() -> None:
    for kill, error, message in ((False, ArithmeticError, "five is too many"), (True, TrainingError, "died")):
        with valley(2, Killed, config={"batch_size": 2, "kill": kill}) as trainer:
            with pytest.raises(error, match=message):
                trainer.scale_batch_size()
            assert trainer.train()["epoch"] == 1


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("lr_find", {"min_lr": 0}, "must be numbers, 0 < min_lr < max_lr, not 0 and 1"),
        ("lr_find", {"max_lr": 1e-9}, "0 < min_lr < max_lr"),
        ("lr_find", {"num_training": 1}, "num_training must be an integer of 2 or more, not 1"),
        (
            "lr_find",
            {"mode": "log", "early_stop_threshold": 1},
            'must be "exponential" or "linear", not \'log\'; early_stop_threshold must be .*, not 1',
        ),
        ("scale_batch_size", {"batch_arg_name": "size"}, "must be a key of config, which has .* not 'size'"),
        (
            "scale_batch_size",
            {"mode": "linear", "margin": 1},
            'must be "power" or "binsearch", not .*; margin must be .*, not 1',
        ),
        (
            "scale_batch_size",
            {"steps_per_trial": 0, "max_val": 1.5},
            "steps_per_trial must be .*, not 0; max_val must be an integer of 1 or more, not 1.5",
        ),
        (
            "scale_batch_size",
            {"init_val": 9, "max_val": 8},
            "init_val must be a multiple of 1 and at most max_val=8, not 9",
        ),
    ],
)
def test_wrong_arguments(method: str, arguments: dict[str, Any], message: str) -> None:
    config = {"batch_size": 2, "room": 1}
    with (
        valley(1, Hungry, use_local=True, config=config) as trainer,
        pytest.raises(ConfigError, match=message),
    ):
        getattr(trainer, method)(**arguments)
