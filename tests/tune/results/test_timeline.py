"""The timeline of a real experiment: its attempts and their ends, from the file and in memory."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.plugins.dashboard.charts import lanes
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.store.reader import Span


class Failing(tune.Trainable):
    def setup(self, config):
        self.n = 0

    def step(self):
        self.n += 1
        if self.config["x"] == 1 and self.n == 2 and self.iteration == 1:
            raise ValueError("no luck")
        return {"loss": self.config["x"], "done": self.n >= 3}

    def save_checkpoint(self, folder):
        return {"n": self.n}

    def load_checkpoint(self, state):
        self.n = state["n"] + 1


def test_attempts_and_their_ends(inline, fit):
    run = {
        "failure_config": tune.FailureConfig(max_failures=1),
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
    }
    results = fit(Failing, {"x": tune.grid_search([0, 1, 2])}, metric="loss", run=run)
    spans = results.timeline
    assert [span.started for span in spans] == sorted(span.started for span in spans)
    outcomes = {(span.trial_id[-1], span.attempt): span.outcome for span in spans}
    assert outcomes == {
        ("0", 0): "finished",
        ("1", 0): "failed",
        ("1", 1): "finished",
        ("2", 0): "finished",
    }
    assert all(span.ended >= span.started for span in spans)
    (axes,) = results.plot("timeline").axes
    assert axes.get_title(loc="left").startswith("3 trials on ")
    assert axes.get_title(loc="left").endswith(", 4 attempts")


def span(started, ended):
    return Span("t", 0, ("host", 1), started, ended, TrialStatus.TERMINATED, "finished", "finished")


@pytest.mark.parametrize(
    ("times", "rows"),
    [
        ([(0, 1), (1, 2), (2, 3)], [0, 0, 0]),
        ([(0, 4), (1, 2), (2, 3), (2.5, 5)], [0, 1, 1, 2]),
        ([(0, None), (1, 2), (3, None), (4, 5)], [0, 1, 1, 2]),
    ],
)
def test_attempts_of_one_row_do_not_overlap(times, rows):
    assert lanes([span(*each) for each in times]) == rows
