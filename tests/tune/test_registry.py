"""Trainables by the names that they were registered under."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.core.trainables import get_trainable_cls, register_trainable

pytestmark = pytest.mark.usefixtures("runtime")


def objective(config):
    return {"y": config["x"] ** 2}


class Halving(tune.Trainable):
    def setup(self, config):
        self.value = config["x"]

    def step(self):
        self.value /= 2
        return {"y": self.value, "done": self.iteration == 1}


@pytest.mark.parametrize(("trainable", "y"), [(objective, 16), (Halving, 1), (lambda config: {"y": 3}, 3)])
def test_a_name_stands_for_a_trainable(fit, trainable, y):
    register_trainable("mine", trainable)
    assert get_trainable_cls("mine") is trainable
    (result,) = fit("mine", {"x": 4})
    assert result.metrics["y"] == y
    assert Path(result.path).name.startswith("mine_")


def test_a_name_may_be_bound(fit):
    register_trainable("scaled", lambda config, scale: {"y": scale, **tune.get_trial_resources()})
    bound = tune.with_resources(tune.with_parameters("scaled", scale=7), {"cpu": 2})
    (result,) = fit(bound)
    assert (result.metrics["y"], result.metrics["CPU"]) == (7, 2)
    register_trainable("bound", bound)
    assert fit("bound", run={"name": "again"})[0].metrics["y"] == 7


def test_a_later_trainable_takes_the_name(fit):
    register_trainable("changed", lambda config: {"y": 1})
    register_trainable("changed", lambda config: {"y": 2})
    assert fit("changed")[0].metrics["y"] == 2


def test_an_unknown_name_is_refused_with_the_nearest():
    register_trainable("objective_of_mine", objective)
    with pytest.raises(ConfigError, match=r"'objective_of_mind'.*Did you mean 'objective_of_mine'"):
        tune.Tuner("objective_of_mind")


@pytest.mark.parametrize(("name", "trainable"), [("", objective), (3, objective), ("x", 3), ("x", None)])
def test_what_cannot_be_registered_is_refused(name, trainable):
    with pytest.raises(ConfigError, match="register_trainable"):
        tune.register_trainable(name, trainable)
