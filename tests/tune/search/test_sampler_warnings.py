"""What Optuna's samplers leave to chance they say once."""

from __future__ import annotations

import optuna
import pytest
from optuna import samplers

from trainkit.tune.search import OptunaSearch

pytestmark = [
    pytest.mark.usefixtures("inline"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_a_warning_of_the_samplers_comes_once(fit, caplog):
    """CMA-ES warns at each value that it leaves to another; what others log meanwhile is not touched."""
    theirs = optuna.logging.get_logger(samplers.CmaEsSampler.__module__)

    def trainable(config):
        theirs.warning("of another study")
        return {"loss": config["x"] ** 2 + config["y"]}

    def space(trial):
        for name in ("x", "y"):
            trial.suggest_float(name, -10, 10)
        trial.suggest_categorical("kind", ["a", "b"])
        trial.suggest_categorical("other", [1, 2])

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        for name in ("one", "two"):  # each experiment says it
            searcher = OptunaSearch(space, sampler=samplers.CmaEsSampler())
            fit(trainable, metric="loss", num_samples=8, search_alg=searcher, seed=0, run={"name": name})
    finally:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
    assert caplog.text.count("The parameter `kind`") == caplog.text.count("The parameter `other`") == 2
    assert caplog.text.count("of another study") == 16
    assert not theirs.filters
