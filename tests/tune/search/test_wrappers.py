"""Searchers around searchers: fewer trials at once, and copies."""

from __future__ import annotations

import copy
import pickle

import pytest

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.search import BasicVariantGenerator, ConcurrencyLimiter, OptunaSearch, Repeater, Searcher

pytestmark = pytest.mark.usefixtures("inline")


class Telling(BasicVariantGenerator):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list = []

    def on_trial_complete(self, trial_id, result=None, error=False):
        super().on_trial_complete(trial_id, result, error)
        self.told.append((int(trial_id[-2:]), result, error))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ConcurrencyLimiter(BasicVariantGenerator(), 0), "max_concurrent=0"),
        (lambda: ConcurrencyLimiter(BasicVariantGenerator(), 1.5), "max_concurrent=1.5"),
        (lambda: ConcurrencyLimiter(BasicVariantGenerator, 1), "searcher="),
        (lambda: BasicVariantGenerator(max_concurrent=-1), "max_concurrent=-1"),
    ],
)
def test_a_mistake_is_named(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


# --- fewer trials at once than fit -----------------------------------------------------------------


def test_a_batch_is_told_together():
    searcher = Telling()
    play = Play(searcher=ConcurrencyLimiter(searcher, 2, batch=True), num_samples=4, cpus=4)
    play.ends(1, {"loss": 1.0})
    assert (searcher.told, len(play.calls)) == ([], 1)
    play.started(0)
    play.failed(0)
    assert [(index, error) for index, _, error in searcher.told] == [(1, False), (0, True)]
    assert len(play.calls) == 2
    play.ends(2, {"loss": 1.0})
    play.ends(3, {"loss": 1.0})
    assert play.controller.done
    assert len(searcher.told) == 4


def test_random_search_limits_itself():
    play = Play(searcher=BasicVariantGenerator(max_concurrent=3), num_samples=5, cpus=4)
    assert len(play.calls) == 3
    play.ends(0, {"loss": 1.0})
    assert len(play.calls) == 3


class Limiting(BasicVariantGenerator):
    """Takes the limit itself."""

    limit = 0

    def set_max_concurrency(self, max_concurrent):
        self.max_concurrent = max_concurrent
        return True


def test_a_searcher_may_take_the_limit_itself():
    searcher = Limiting()
    play = Play(searcher=ConcurrencyLimiter(searcher, 2), num_samples=5, cpus=4)
    assert (len(play.calls), searcher.max_concurrent) == (2, 2)


def test_an_interrupted_experiment_goes_on_with_its_limit(fit, restore):
    space = {"x": tune.uniform(0, 1)}
    search = ConcurrencyLimiter(OptunaSearch(), 1, batch=True)
    whole = fit(square, space, metric="loss", num_samples=14, seed=1, search_alg=search, run={"name": "w"})
    fit(square, space, metric="loss", num_samples=12, seed=1, search_alg=search)
    restored = restore(square, num_samples=14)
    assert [result.config for result in restored] == [result.config for result in whole]


def square(config):
    return {"loss": config["x"] ** 2}


class Waits(Searcher):
    def suggest(self, trial_id):
        return None


@pytest.mark.parametrize("searcher", [Waits(), ConcurrencyLimiter(Waits(), 2)])
def test_a_searcher_that_gives_nothing_is_an_error_and_not_a_hang(searcher):
    play = Play(searcher=searcher)
    assert play.controller.done
    with pytest.raises(ConfigError, match=r"suggests nothing.*FINISHED"):
        play.controller.raise_error()


@pytest.mark.parametrize(
    ("wrapper", "copied"),
    [(ConcurrencyLimiter, copy.deepcopy), (Repeater, lambda it: pickle.loads(pickle.dumps(it)))],
)
def test_a_wrapper_that_was_used_can_be_copied(copied, wrapper):
    used = wrapper(Telling(), 2)
    Play(searcher=used, num_samples=4)
    twin = copied(used)
    assert (used.total_samples, used.whole) == (twin.total_samples, twin.whole)
    twin.on_trial_complete("test_00000", {"loss": 1.0})
