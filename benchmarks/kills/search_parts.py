"""Programs of scikit-learn searches with a name, which acknowledge each candidate that has ended."""

from __future__ import annotations

import time
from typing import Any

from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.linear_model import SGDClassifier
from sklearn.tree import DecisionTreeClassifier

from benchmarks.kills.job import Job
from trainkit import tune
from trainkit.sklearn import TuneSearchCV

DEPTHS, ALPHAS = [1, 2, 3, 4], [0.0, 0.01, 0.1]
STEPS = [0.001, 0.01, 0.1]
ITERATIONS = 4
FIT_S = 0.03


class SlowTree(ClassifierMixin, BaseEstimator):
    """Decision tree whose fit takes some time."""

    def __init__(self, max_depth: int = 1, alpha: float = 0.0, job: Job | None = None) -> None:
        self.max_depth = max_depth
        self.alpha = alpha
        self.job = job

    def fit(self, X: Any, y: Any) -> SlowTree:
        """Fit the tree."""
        if self.job is not None:
            self.job.enter("step")
        time.sleep(FIT_S)
        tree = DecisionTreeClassifier(max_depth=self.max_depth, ccp_alpha=self.alpha, random_state=0)
        self.tree_ = tree.fit(X, y)
        self.classes_ = self.tree_.classes_
        return self

    def predict(self, X: Any) -> Any:
        """Return the tree's predictions."""
        return self.tree_.predict(X)


class SlowSteps(SGDClassifier):
    """Linear classifier whose steps take some time."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> SlowSteps:
        """Make a step."""
        time.sleep(FIT_S / 3)
        super().partial_fit(X, y, classes, sample_weight)
        return self


class Acknowledge(tune.Callback):
    """Callback that acknowledges a candidate after its result has been stored."""

    def __init__(self, job: Job, *names: str) -> None:
        self._job = job
        self._names = names

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Write down the candidate and its score."""
        score = trial.last_result["average_test_score"]
        self._job.ack("candidate", *(trial.config[name] for name in self._names), score)


def search(job: Job) -> None:
    """Run a search of two candidates at once, or resume it."""
    space = {"max_depth": DEPTHS, "alpha": ALPHAS}
    _run(job, SlowTree(job=job), space, n_trials=len(DEPTHS) * len(ALPHAS), n_jobs=2, early_stopping=False)


def stopping(job: Job) -> None:
    """Run a search that stops poor candidates early, one at a time so that it repeats exactly."""
    space = {"alpha": STEPS, "eta0": STEPS}
    model = SlowSteps(random_state=0, learning_rate="constant")
    _run(job, model, space, n_trials=len(STEPS) ** 2, n_jobs=1, early_stopping=True, max_iters=ITERATIONS)


def _run(job: Job, model: Any, space: dict[str, list[float]], **options: Any) -> None:
    found = TuneSearchCV(
        model,
        space,
        random_state=0,
        cv=3,
        name="search",
        local_dir=str(job.kept),
        verbose=0,
        loggers=[Acknowledge(job, *space)],
        **options,
    ).fit(*load_iris(return_X_y=True), tune_params={"max_failures": -1})
    results = found.cv_results_
    if any(score != score for score in results["mean_test_score"]):
        return
    candidates = [
        [*(params[name] for name in space), float(score)]
        for params, score in zip(results["params"], results["mean_test_score"], strict=True)
    ]
    job.finish({"candidates": candidates, "best": [found.best_params_, float(found.best_score_)]})
