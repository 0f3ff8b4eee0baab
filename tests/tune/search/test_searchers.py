"""The searchers' common promises, on each of them."""

from __future__ import annotations

import optuna
import pytest

from tests.tune.search.test_samplers import row_of
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.testing.searcher import Row, SearcherSuite
from trainkit.tune.search import (
    BasicVariantGenerator,
    BayesOptSearch,
    ConcurrencyLimiter,
    GaussianProcessSearch,
    HyperOptSearch,
    OptunaSearch,
    Repeater,
    TuneBOHB,
)

optuna.logging.set_verbosity(optuna.logging.WARNING)


ROWS = (
    Row("random", BasicVariantGenerator),
    Row("optuna", OptunaSearch),
    *map(row_of, ("nsga2", "cma", "qmc-scrambled")),
    Row("hyperopt", lambda **given: HyperOptSearch(n_initial_points=5, **given)),
    Row("bohb", TuneBOHB),
    Row("limited", lambda **given: ConcurrencyLimiter(OptunaSearch(**given), 64)),
    Row("repeated-optuna", lambda **given: Repeater(OptunaSearch(**given), 2), repeat=2),
)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
class TestSearchers(SearcherSuite):
    @pytest.fixture(params=ROWS, ids=str)
    def row(self, request):
        return request.param


@pytest.mark.parametrize(
    "searcher", [OptunaSearch, HyperOptSearch, BayesOptSearch, TuneBOHB, GaussianProcessSearch]
)
class TestASearcherByItself:
    SPACE = {"x": tune.uniform(0, 1)}  # noqa: RUF012

    def test_suggests_and_learns(self, searcher, tmp_path):
        def ask(asked, first=0):
            configs = []
            for number in map(str, range(first, first + 6)):
                configs.append(asked.suggest(number))
                asked.on_trial_result(number, {"m": configs[-1]["x"], "training_iteration": 1})
                asked.on_trial_complete(number, {"m": configs[-1]["x"]})
            return configs

        own, given = searcher(self.SPACE, metric="m", mode="max"), searcher()
        assert given.set_search_properties("m", "max", self.SPACE)
        for asked in (own, given):
            assert len({each["x"] for each in ask(asked)}) == 6
        own.add_evaluated_point({"x": 0.5}, 3.0)
        own.save(str(tmp_path / "searcher"))
        other = searcher(self.SPACE, metric="m", mode="max")
        other.restore(str(tmp_path / "searcher"))
        assert ask(other, 6) == ask(own, 6)

    def test_is_not_handed_to_a_tuner_then(self, searcher):
        asked = searcher(self.SPACE, metric="m", mode="max")
        asked.suggest("0")
        with pytest.raises(ConfigError, match="add_evaluated_point"):
            tune.Tuner(lambda config: {"m": 1}, tune_config=tune.TuneConfig(search_alg=asked))

    def test_needs_a_space_and_a_metric(self, searcher):
        with pytest.raises(ConfigError, match="has no search space"):
            searcher().suggest("0")
        with pytest.raises(ConfigError, match="metric and a mode"):
            searcher(self.SPACE).suggest("0")
