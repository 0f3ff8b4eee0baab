"""Searchers of the user's own, as they are written for Ray; the order of trials whatever the concurrency."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any, ClassVar

import optuna
import pytest
from optuna.trial import TrialState

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.errors import ConfigError, InfeasibleError
from trainkit.tune.schedulers import FIFOScheduler
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Searcher
from trainkit.tune.search.optuna import OptunaSearch

pytestmark = pytest.mark.usefixtures("inline")


class RaySearch(Searcher):
    """As a searcher for Ray is written; only its imports were changed."""

    def __init__(self, space=None, metric=None, mode=None, seed=0, **kwargs):
        super().__init__(metric=metric, mode=mode, **kwargs)
        self._space = space
        self.rng = random.Random(seed)
        self.live = {}
        self.history = []
        self.calls = []

    def set_search_properties(self, metric, mode, config, **spec):
        if self._space:
            return False
        self.calls.append((metric, mode, sorted(config), spec["num_samples"]))
        self._space = {key: domain for key, domain in config.items() if hasattr(domain, "sample")}
        if metric:
            self._metric = metric
        if mode:
            self._mode = mode
        return True

    def suggest(self, trial_id):
        if len(self.live) >= 2:
            return None
        if len(self.history) >= 7:
            return Searcher.FINISHED
        config = {key: self.rng.uniform(domain.lower, domain.upper) for key, domain in self._space.items()}
        if self.history and self.rng.random() < 0.5:
            best = min(self.history, key=lambda pair: pair[1])[0]
            config = {key: value + self.rng.gauss(0, 0.01) for key, value in best.items()}
        self.live[trial_id] = config
        return config

    def on_trial_result(self, trial_id, result):
        self.calls.append(("result", result[self.metric]))

    def on_trial_complete(self, trial_id, result=None, error=False):
        config = self.live.pop(trial_id)
        if result and self.metric in result:
            self.history.append((config, result[self.metric]))

    def save(self, checkpoint_path):
        raise NotImplementedError

    def restore(self, checkpoint_path):
        raise NotImplementedError


def square(config):
    return {"loss": config["x"] ** 2 + config["y"]}


SPACE = {"x": tune.uniform(-1, 1), "y": tune.uniform(0, 1), "constant": {"a": 1}}


def test_one_written_for_ray_works_with_only_its_imports_changed(fit):
    grid = fit(square, SPACE, metric="loss", num_samples=20, search_alg=RaySearch())
    assert 7 <= len(grid) <= 8
    assert all(result.config["constant"] == {"a": 1} for result in grid)
    assert grid.get_best_result().metrics["loss"] == min(result.metrics["loss"] for result in grid)


class Counted(BasicVariantGenerator):
    begun: ClassVar[list] = []

    def set_search_properties(self, metric, mode, config, **spec):
        self.begun.append(spec["num_samples"])
        return super().set_search_properties(metric, mode, config, **spec)


def test_each_fit_begins_one_searcher(tmp_path):
    config = tune.TuneConfig(num_samples=2, search_alg=Counted())
    run = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    tuner = tune.Tuner(square, param_space=SPACE, tune_config=config, run_config=run)
    first = [result.config for result in tuner.fit()]
    assert Counted.begun == [2]
    assert [result.config for result in tuner.fit()] == first
    assert Counted.begun == [2, 2]


# row 1.5
def test_it_goes_on_by_replaying_what_it_did(fit, restore):
    settings = {"metric": "loss", "max_concurrent_trials": 1, "search_alg": RaySearch()}
    whole = fit(square, SPACE, num_samples=6, run={"name": "whole"}, **settings)
    fit(square, SPACE, num_samples=4, **settings)
    restored = restore(square, num_samples=6, search_alg=RaySearch())
    assert [result.config for result in restored] == [result.config for result in whole]


class Unseeded(RaySearch):
    """Suggests something else in each process, and remembers what came of what."""

    told: ClassVar[list] = []

    def __init__(self):
        super().__init__(seed=None)

    def on_trial_complete(self, trial_id, result=None, error=False):
        if result is not None:
            self.told.append((self.live[trial_id], result["loss"]))
        super().on_trial_complete(trial_id, result, error)


def test_one_without_a_seed_is_not_told_of_what_it_did_not_suggest(fit, restore, caplog):
    settings = {"metric": "loss", "max_concurrent_trials": 1, "search_alg": Unseeded()}
    before = [result.config for result in fit(square, SPACE, num_samples=4, **settings)]
    grid = restore(square, num_samples=6, search_alg=Unseeded())
    assert [result.config for result in grid][:4] == before
    assert len(grid) == 6
    assert all(square(config) == {"loss": loss} for config, loss in Unseeded.told)
    assert "Unseeded suggests other configurations than before for 4 of 4 trials" in caplog.text


def test_another_sampler_learns_from_the_trials_of_before(fit, restore):
    storage = optuna.storages.InMemoryStorage()
    settings = {"metric": "loss", "max_concurrent_trials": 1, "num_samples": 5}
    space = {"x": tune.uniform(-1, 1), "y": tune.uniform(0, 1)}
    before = [result.config for result in fit(square, space, **settings)]
    search = OptunaSearch(sampler=optuna.samplers.NSGAIISampler(), storage=storage)
    grid = restore(square, num_samples=7, search_alg=search)
    known = optuna.load_study(study_name="optuna", storage=storage).get_trials(states=[TrialState.COMPLETE])
    assert [trial.params for trial in known] == [result.config for result in grid]
    assert [trial.value for trial in known] == [result.metrics["loss"] for result in grid]
    assert [result.config for result in grid][:5] == before


def test_one_of_ray_1_takes_no_spec(fit):
    class Older(RaySearch):
        def set_search_properties(self, metric, mode, config):
            return super().set_search_properties(metric, mode, config, num_samples=0)

    assert len(fit(square, SPACE, metric="loss", num_samples=3, search_alg=Older())) == 3


@pytest.mark.parametrize("verb", ["on_trial_result", "on_trial_complete"])
def test_one_that_raises_ends_the_experiment_and_loses_nothing(fit, tmp_path, verb):
    def fails(self, trial_id, *news, **more):
        raise KeyError("lost")

    broken = type("Broken", (RaySearch,), {verb: fails})
    with pytest.raises(ConfigError, match=rf"Broken.{verb}\(\) raised KeyError for trial \w+: 'lost'"):
        fit(square, SPACE, metric="loss", num_samples=3, max_concurrent_trials=1, search_alg=broken())
    again = tune.TuneConfig(num_samples=3, search_alg=RaySearch())
    run = tune.RunConfig(verbose=0)
    tuner = tune.Tuner.restore(tmp_path / "e", square, tune_config=again, run_config=run)
    assert [result.status for result in tuner.get_results()] == ["TERMINATED"]
    assert len(tuner.fit()) == 3


def test_one_that_cannot_be_copied_is_named(fit):
    search = RaySearch()
    search.lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"search_alg=RaySearch can't be copied.*lock"):
        fit(square, SPACE, metric="loss", search_alg=search)


def test_the_users_object_stays_as_it_was(fit):
    searcher = RaySearch()
    fit(square, SPACE, metric="loss", num_samples=2, search_alg=searcher)
    assert (searcher.history, searcher.calls, searcher.metric) == ([], [], None)


def test_it_is_told_what_ray_tells():
    searcher = RaySearch()
    play = Play(searcher=searcher, space=SPACE, metric="loss", num_samples=4, cpus=4)
    assert len(play.begun) == 2, "it waits for the first results"
    for index in range(4):
        play.ends(index, {"loss": float(index)})
    assert play.controller.done
    results = [("result", float(index)) for index in range(4)]
    assert searcher.calls == [("loss", "min", ["constant", "x", "y"], 4), *results]
    assert [loss for _, loss in searcher.history] == [0.0, 1.0, 2.0, 3.0]


def test_with_a_space_of_its_own_param_space_holds_constants(fit):
    own = {"x": tune.uniform(-1, 1), "y": tune.uniform(0, 1)}
    grid = fit(square, {"z": 3}, metric="loss", num_samples=3, search_alg=RaySearch(own))
    assert [result.config["z"] for result in grid] == [3, 3, 3]
    with pytest.raises(ConfigError, match=r"RaySearch and .* both have a search space"):
        fit(square, SPACE, metric="loss", search_alg=RaySearch(own), run={"name": "two"})


class Flat(Searcher):
    """Knows nothing of the space."""

    def __init__(self, **config) -> None:
        super().__init__()
        self.config = config

    def suggest(self, trial_id):
        return dict(self.config)

    def is_drawn(self, trial_id):
        return False


def test_flat_names_become_nested_and_constants_are_added(fit):
    space = {
        "net": {"depth": 2, "kind": "a"},
        "data": ["x"],
        "twice": tune.sample_from(lambda s: s.config.lr * 2),
    }
    searcher = Flat(**{"net/width": 8, "net/kind": "b", "lr": 0.5})
    grid = fit(lambda config: 1.0, space, search_alg=searcher)
    net = {"depth": 2, "kind": "b", "width": 8}
    assert grid[0].config == {"net": net, "data": ["x"], "lr": 0.5, "twice": 1.0}


def test_constants_are_each_trials_own(fit):
    space = {"net": {"lr": tune.sample_from(lambda spec: spec.config.x), "layers": [1]}}

    class Counting(Flat):
        def suggest(self, trial_id):
            return {"x": int(trial_id[-1])}

    def trainable(config):
        config["net"]["layers"].append(2)
        return 1.0

    grid = fit(trainable, space, num_samples=3, search_alg=Counting())
    assert [result.config["net"]["lr"] for result in grid] == [0, 1, 2]
    assert [result.config["net"]["layers"][:1] for result in grid] == [[1]] * 3


def test_a_parameter_that_it_leaves_out_is_named(fit):
    with pytest.raises(ConfigError, match=r"Flat.suggest\(\) returned no value for net/width"):
        fit(square, {"net": {"width": tune.uniform(0, 1)}}, search_alg=Flat(lr=1))


@pytest.mark.parametrize("wrong", [3, "SOON", [1], True])
def test_what_is_no_suggestion_is_named(wrong):
    class Wrong(Searcher):
        def suggest(self, trial_id):
            return wrong

    with pytest.raises(ConfigError, match=r"Wrong.suggest\(\) returned .* return a dictionary, None or"):
        Play(searcher=Wrong()).controller.raise_error()


def test_what_learns_nothing_from_points_says_so():
    with pytest.raises(NotImplementedError, match="BasicVariantGenerator cannot learn"):
        BasicVariantGenerator().add_evaluated_point({"x": 1}, 2.0)


# --- reproducible search --------------------------------------------------------------------------


# rows 1.24, 2.9
@pytest.mark.parametrize("space", [SPACE, {"a": tune.grid_search([1, 2, 3]), "b": tune.uniform(0, 1)}])
def test_random_and_grid_have_one_order_whatever_runs_at_once_and_ends_first(space):
    histories = []
    for cpus, order in ((1, 0), (4, 0), (4, 1), (4, 2)):
        play = Play(space=space, num_samples=6, cpus=cpus)
        shuffled = random.Random(order)
        while not play.controller.done:
            running = [
                index for index, trial in enumerate(play.controller.trials) if trial.trial_id in play.calls
            ]
            index = shuffled.choice(running)
            play.ends(index, {"loss": 1.0})
        histories.append([trial.config for trial in play.controller.trials])
    assert all(history == histories[0] for history in histories)


# --- from outside the program ---------------------------------------------------------------------


class Rows:
    """A table, a queue or a server outside the program: each row is given once."""

    def __init__(self, number):
        self.left = list(range(number))
        self.taken = 0

    def __deepcopy__(self, memo):
        return self

    def take(self):
        self.taken += 1
        return self.left.pop(0)


class FromRows(Searcher):
    def __init__(self, rows):
        super().__init__("loss", "min")
        self.rows = rows

    def suggest(self, trial_id):
        return {"x": self.rows.take()} if self.rows.left else Searcher.FINISHED


class SamplesRows(optuna.samplers.RandomSampler):
    def __init__(self, rows):
        super().__init__(seed=0)
        self.rows = rows

    def sample_independent(self, study, trial, name, distribution):
        return self.rows.take()


SOURCES = {
    "a searcher": lambda rows: ({}, FromRows(rows)),
    "a limited searcher": lambda rows: ({}, ConcurrencyLimiter(FromRows(rows), 1)),
    "sample_from": lambda rows: ({"x": tune.sample_from(lambda spec: rows.take())}, None),
    "a sampler": lambda rows: (
        {"x": tune.randint(0, 99)},
        OptunaSearch(metric="loss", mode="min", sampler=SamplesRows(rows)),
    ),
    "a function": lambda rows: (
        {},
        OptunaSearch(lambda trial: {"x": rows.take()} if rows.left else None, "loss", "min", seed=0),
    ),
}


@pytest.mark.parametrize(
    ("source", "asked"), [*((each, "plain") for each in SOURCES), ("a searcher", "requests")]
)
def test_what_draws_is_called_once_for_each_trial_that_is_made(fit, tmp_path, source, asked):
    def loss(config):
        return {"loss": config["x"]}

    trainable = loss
    if asked == "requests":
        trainable = tune.with_resources(loss, lambda config: {"cpu": 1 + config["x"] % 2})
    space, searcher = SOURCES[source](rows := Rows(5))
    grid = fit(trainable, space, search_alg=searcher, num_samples=3)
    assert [result.config["x"] for result in grid] == [0, 1, 2]
    assert rows.taken == 3
    # A restore asks searchers again for what there is, and everything for what is new.
    new = [0, 1] if source == "sample_from" else [3, 4]
    space, searcher = SOURCES[source](rows := Rows(5))
    config = tune.TuneConfig(num_samples=5, search_alg=searcher)
    tuner = tune.Tuner.restore(tmp_path / "e", trainable, param_space=space, tune_config=config)
    assert [result.config["x"] for result in tuner.fit()] == [0, 1, 2, *new]
    assert rows.taken == new[-1] + 1


def test_a_first_trial_that_can_never_start_is_told_as_failed(fit, tmp_path):
    storage = optuna.storages.InMemoryStorage()
    too_much = tune.with_resources(square, {"cpu": 99})
    space = {"x": tune.uniform(0, 1), "y": 0}
    with pytest.raises(InfeasibleError):
        fit(too_much, space, search_alg=OptunaSearch(storage=storage), metric="loss")
    (trial,) = optuna.load_study(study_name="optuna", storage=storage).trials
    assert trial.state is TrialState.FAIL
    assert not (tmp_path / "e").exists()


class EmptyAtFirst(Searcher):
    """Searcher that is an empty collection before its first suggestion."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __len__(self) -> int:
        return len(self.seen)

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.seen.append(trial_id)
        return {"x": 0.125 * len(self.seen)}


class CountedScheduler(FIFOScheduler):
    """Scheduler that is an empty collection before its first trial, and stops each trial."""

    def __len__(self) -> int:
        return 0

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        return Decision(Verdict.STOP, {"rule": "first"})


def report_twice(config: dict[str, Any]) -> None:
    for _ in range(2):
        tune.report({"loss": config["x"]})


def test_searcher_and_scheduler_that_are_empty_collections_are_used(tmp_path: Path) -> None:
    results = tune.Tuner(
        report_twice,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=2, search_alg=EmptyAtFirst(), scheduler=CountedScheduler()
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert [result.config for result in results] == [{"x": 0.125}, {"x": 0.25}]
    assert [result.metrics["training_iteration"] for result in results] == [1, 1]
