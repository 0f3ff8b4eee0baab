"""Learned stopping in experiments that are restored with another scheduler, more samples or longer trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainkit import tune
from trainkit.tune.schedulers import ASHAScheduler

LINE = {"x": tune.uniform(0, 1)}
GOAL = {"metric": "loss", "mode": "min", "seed": 4, "max_concurrent_trials": 1}
LAST = 12
SAVED = {"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=True)}

pytestmark = pytest.mark.usefixtures("inline")


class Curve(tune.Trainable):
    """Converges to a loss that its parameter decides."""

    def setup(self, config):
        self.steps = 0

    def step(self):
        self.steps += 1
        return {"loss": (self.config["x"] - 0.7) ** 2 + 1 / self.steps}

    def save_checkpoint(self, folder):
        Path(folder, "steps").write_text(str(self.steps))

    def load_checkpoint(self, folder):
        self.steps = int(Path(folder, "steps").read_text())


def lengths(results):
    return [each.metrics["training_iteration"] for each in results]


def complete(result):
    """The numbers of complete trials from which the decisions on a trial were learned."""
    return {each["complete"] for each in result.decisions if "complete" in each}


def until(iteration):
    return {"stop": {"training_iteration": iteration}}


@pytest.mark.parametrize("search_alg", ["auto", "random"])
def test_trials_that_another_scheduler_stopped_are_not_complete(fit, restore, search_alg):
    asha = ASHAScheduler(max_t=LAST, grace_period=1, reduction_factor=3)
    fit(Curve, LINE, **GOAL, num_samples=16, search_alg=search_alg, scheduler=asha)
    results = restore(Curve, num_samples=24, scheduler="auto", run=until(LAST))
    ends = lengths(results)
    assert 1 < ends[:16].count(LAST) < 16
    known = [complete(each) for each in results]
    assert any(known[16:])
    assert all(known[place] <= {ends[:place].count(LAST)} for place in range(16, 24))


@pytest.mark.parametrize("among", ["complete", "stopped"])
def test_an_extension_is_repeated_at_every_later_restore(fit, restore, among):
    def extended(name, *numbers):
        run = {**until(LAST), **SAVED, "name": name}
        first = fit(Curve, LINE, **GOAL, num_samples=12, run=run)
        chosen = [
            each
            for each, length in zip(first, lengths(first), strict=True)
            if (length == LAST) == (among == "complete")
        ]
        assert chosen
        results = restore(Curve, name, resume_finished=chosen, run=until(LAST + 1))
        for number in numbers:
            results = restore(Curve, name, num_samples=number)
        return results

    whole, parts = extended("whole", 16), extended("parts", 13, 14, 16)
    assert [each.config for each in parts] == [each.config for each in whole]
    assert lengths(parts) == lengths(whole)
    ends, known = lengths(whole), [complete(each) for each in whole]
    assert any(known[12:])
    assert all(known[place] <= {sum(each >= LAST for each in ends[:place])} for place in range(12, 16))
