"""Whose turn it is in a population that goes on after a restore, with fewer workers than before."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.tune.schedulers.pbt.test_pbt_runs import Toy, trained
from trainkit import tune

__all__ = ["trained"]

pytestmark = pytest.mark.usefixtures("inline")


class Watch(tune.Callback):
    """Notes whose reports come, and presses Ctrl-C twice at so many of them."""

    def __init__(self, until: int = -1) -> None:
        self.until, self.seen = until, []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen.append(trial.index)
        if len(self.seen) == self.until:
            raise KeyboardInterrupt


def restored(tmp_path, watch: Watch):
    stop = {"training_iteration": 40}
    run = tune.RunConfig(name="e", storage_path=tmp_path, verbose=0, stop=stop, callbacks=[watch])
    config = tune.TuneConfig(metric="q", mode="max", num_samples=2, max_concurrent_trials=1)
    return tune.Tuner.restore(tmp_path / "e", Toy, tune_config=config, run_config=run)


@pytest.mark.parametrize("again", [(), (7, 11)])
def test_members_that_ran_at_once_take_turns_on_one_worker(trained, tmp_path, again):
    """Also where that was restored in turn."""
    with pytest.raises(KeyboardInterrupt):
        trained(Toy, samples=2, until=40, run={"callbacks": [Watch(6)]})
    for until in again:
        watch = Watch(until)
        with pytest.raises(KeyboardInterrupt):
            restored(tmp_path, watch).fit()
    watch = Watch()
    results = restored(tmp_path, watch).fit()
    assert [result.metrics["training_iteration"] for result in results] == [40, 40]
    # An interval at a time, and what is run again of one: not one to its end, and then the other.
    assert max(len(list(turn)) for _, turn in groupby(watch.seen)) <= 8
