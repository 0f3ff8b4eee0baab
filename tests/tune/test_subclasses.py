"""A subclass's constructor and attributes are its own: they disturb nothing that the base class keeps."""

from __future__ import annotations

from typing import ClassVar

from trainkit import tune
from trainkit.plugins.compat.reporters import TableReporter


class Heard(tune.Callback):
    def __init__(self, name):
        self.name, self.trials = name, []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.trials.append((trial.index, result["a"]))


class Same(tune.search.Searcher):
    completed: ClassVar[list] = []  # of all copies: a fit asks one

    def __init__(self, x):
        self.seed, self.trials = x, "mine"

    def suggest(self, trial_id):
        return {"x": self.seed}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.completed.append((self.trials, result["a"], error))


class AtThree(tune.Stopper):
    def __init__(self, length=3):
        self.length = length

    def __call__(self, trial_id, result):
        return result["training_iteration"] == self.length

    def stop_all(self):
        return False


class Told(TableReporter):
    def __init__(self, folder):
        super().__init__(metric_columns=["a"])
        self.folder, self.flush = folder, []

    def should_report(self, trials, done=False):
        return True

    def report(self, trials, done, *given):
        self.flush.append((len(trials), done))


class Counts(tune.Trainable):
    def __init__(self, config, storage=None):
        self.trial, self.parameters = "mine", 1
        super().__init__(config, storage)

    def step(self):
        self.parameters += self.config["x"]
        return {"a": self.parameters, "mine": self.trial}


def test_subclasses_with_constructors_of_their_own(inline, fit):
    heard, told = Heard("h"), Told("f")
    run = {"callbacks": [heard], "stop": AtThree(), "progress_reporter": told, "verbose": 1}
    (result,) = fit(Counts, metric="a", mode="max", search_alg=Same(2), run=run)
    assert (result.metrics["a"], result.metrics["mine"], result.error) == (7, "mine", None)
    assert heard.trials == [(0, 3), (0, 5), (0, 7)] and heard.name == "h"
    assert Same.completed == [("mine", 7, False)]
    assert told.flush[-1] == (1, True) and told.folder == "f"
