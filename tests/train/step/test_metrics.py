"""Means over epochs and workers."""

from __future__ import annotations

import math
import pickle
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainkit.errors import ConfigError
from trainkit.train.step.metrics import EpochMetrics, Meters, reduce_metrics, to_numbers

LOSSES = st.floats(-1e6, 1e6)


def epoch(steps: list[dict[str, object]]) -> EpochMetrics:
    meters = Meters()
    for step in steps:
        meters.add(step)
    return meters.result()


TENSORS = [{"loss": torch.tensor(float(i)), "num_samples": 1} for i in range(2000)]
"""More steps than are kept unpacked."""


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            [{"loss": 1.0, "num_samples": 30}, {"loss": torch.tensor(4.0), "num_samples": 10}],
            {"batch_count": 2, "num_samples": 40, "loss": 1.75, "last_loss": 4.0},
        ),
        ([{"loss": 1.0}, {"loss": 2.0}], {"loss": 1.5}),
        ([{"loss": 1}, {"loss": torch.tensor([2.0])}, {"loss": True}], {"loss": pytest.approx(4 / 3)}),
        ([{"loss": 1.0}, {"loss": math.nan}], {"loss": pytest.approx(math.nan, nan_ok=True)}),
        (TENSORS, {"loss": 999.5, "last_loss": 1999.0}),
        ([], {"batch_count": 0, "num_samples": 0}),
    ],
    ids=["samples", "no count of samples", "kinds of numbers", "nan", "many", "none"],
)
def test_means_of_an_epoch(steps: list[dict[str, object]], expected: dict[str, Any]) -> None:
    result = epoch(steps)
    assert {name: result[name] for name in expected} == expected
    assert len(result) == (4 if steps else 2)
    assert reduce_metrics([epoch([]), epoch([])]) == {"batch_count": 0, "num_samples": 0}


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ({"loss": torch.ones(3)}, r"metric 'loss' is a Tensor of shape \(3,\)"),
        ({"loss": "low"}, "metric 'loss' is a str: 'low'"),
        (None, "a step returned None: train_batch and validate_batch must return a dictionary"),
    ],
)
def test_what_is_no_number_is_named(step: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        epoch([step])


def test_a_mean_over_no_samples_does_not_count() -> None:
    steps = [{"loss": math.nan, "num_samples": 0}, {"loss": 2.0, "num_samples": 3}]
    assert epoch(steps)["loss"] == 2.0
    assert math.isnan(epoch(steps[:1])["loss"])


class Activations:
    """Stands for what a graph keeps for its backward pass."""


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, kept: Activations) -> torch.Tensor:
        ctx.kept = kept
        return value.sum()


def test_a_kept_loss_lets_its_graph_go() -> None:
    activations = Activations()
    alive = weakref.ref(activations)
    meters = Meters()
    meters.add({"loss": Keeping.apply(torch.ones(3, requires_grad=True), activations), "num_samples": 1})
    del activations
    assert alive() is None
    assert meters.result()["loss"] == 3.0


@given(st.lists(st.tuples(LOSSES, st.integers(1, 50)), min_size=1, max_size=40), st.integers(1, 5))
def test_workers_together_report_what_one_would(steps: list[tuple[float, int]], workers: int) -> None:
    one = epoch([{"loss": loss, "num_samples": count} for loss, count in steps])
    several = reduce_metrics(
        [
            epoch([{"loss": loss, "num_samples": count} for loss, count in steps[rank::workers]])
            for rank in range(workers)
        ]
    )
    assert several["num_samples"] == one["num_samples"]
    assert several["loss"] == pytest.approx(one["loss"], rel=1e-9, abs=1e-6)


def test_the_last_value_is_of_the_workers_that_ran_the_last_step() -> None:
    longer = epoch([{"loss": 1.0, "num_samples": 2}, {"loss": 5.0, "num_samples": 3}])
    shorter = epoch([{"loss": 9.0, "num_samples": 2}])
    assert reduce_metrics([longer, shorter])["last_loss"] == 5.0
    assert reduce_metrics([longer, shorter])["batch_count"] == 2


def test_results_of_a_users_own_loop() -> None:
    reduced = reduce_metrics([{"score": 1.0, "tag": "a"}, {"score": 2.0, "tag": "b"}])
    assert reduced == {"score": 1.5, "tag": "a"}


def test_tensors_become_numbers_before_they_travel() -> None:
    assert to_numbers({"a": torch.tensor(2.0), "b": "x"}) == {"a": 2.0, "b": "x"}


def test_origins_survive_travel() -> None:
    result = epoch([{"loss": 1.0, "num_samples": 4}])
    assert pickle.loads(pickle.dumps(result)).origins == result.origins
