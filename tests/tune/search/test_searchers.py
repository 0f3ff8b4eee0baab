"""The searchers' common promises, on each of them."""

from __future__ import annotations

import optuna
import pytest

from trainkit.testing.searcher import Row, SearcherSuite
from trainkit.tune.core.seeds import suggestion_generator
from trainkit.tune.search import (
    BasicVariantGenerator,
    ConcurrencyLimiter,
    HyperOptSearch,
    OptunaSearch,
    Repeater,
    Searcher,
    TuneBOHB,
)

optuna.logging.set_verbosity(optuna.logging.WARNING)


class OwnSearch(Searcher):
    """A user's: it draws from the space by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def suggest(self, trial_id):
        self.asked += 1
        return self.space.configuration(0, suggestion_generator(self.seed, self.asked))


ROWS = (
    Row("random", BasicVariantGenerator),
    Row("optuna", OptunaSearch),
    Row(
        "optuna-evolution",
        lambda **given: OptunaSearch(sampler=optuna.samplers.NSGAIISampler(population_size=4), **given),
    ),
    Row(
        "optuna-cma",
        lambda **given: OptunaSearch(
            sampler=optuna.samplers.CmaEsSampler(popsize=4, warn_independent_sampling=False), **given
        ),
    ),
    Row(
        "optuna-qmc",
        lambda **given: OptunaSearch(
            sampler=optuna.samplers.QMCSampler(
                scramble=True, warn_asynchronous_seeding=False, warn_independent_sampling=False
            ),
            **given,
        ),
    ),
    Row("hyperopt", lambda **given: HyperOptSearch(n_initial_points=5, **given)),
    Row("bohb", TuneBOHB),
    Row("bohb-eager", lambda **given: TuneBOHB(bohb_config={"random_fraction": 0}, **given)),
    Row("limited", lambda **given: ConcurrencyLimiter(OptunaSearch(**given), 64)),
    Row("repeated-random", lambda **given: Repeater(BasicVariantGenerator(**given), 2), repeat=2),
    Row("repeated-optuna", lambda **given: Repeater(OptunaSearch(**given), 2), repeat=2),
    Row("repeated-bohb", lambda **given: Repeater(TuneBOHB(**given), 2), repeat=2),
)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
class TestSearchers(SearcherSuite):
    @pytest.fixture(params=ROWS, ids=str)
    def row(self, request):
        return request.param


class TestAnOwnSearcher(SearcherSuite):
    """As the page on conformance shows it."""

    takes_points = False

    def make(self, **arguments):
        return OwnSearch(**arguments)
