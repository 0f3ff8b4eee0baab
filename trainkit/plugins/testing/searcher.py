"""Conformance suite of searchers: tests of given points, of the space, of seeds and of replays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.search import Searcher
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config
from trainkit.tune.store.restore import with_objects


@dataclass(frozen=True)
class Row:
    """Searcher to test, and its properties.

    Attributes:
        name: name of the searcher in the ids of tests.
        make: function that creates a searcher; it accepts `points_to_evaluate`.
        takes_points: True if the searcher supports `points_to_evaluate`.
        repeat: number of trials that the searcher runs for each configuration.
        covers: True if the searcher eventually suggests every configuration of a small space.
    """

    name: str
    make: Callable[..., Searcher]
    takes_points: bool = True
    repeat: int = 1
    covers: bool = True

    def __str__(self) -> str:
        return self.name


SPACE = {
    "lr": tune.loguniform(1e-4, 1),
    "net": {"width": tune.randint(1, 1000), "steps": tune.quniform(0, 1, 0.1)},
    "kind": tune.choice(["sgd", "adam"]),
    "constant": {"a": [1, 2]},
}
TREE = {
    "model": tune.choice(
        [
            {"name": "tree", "depth": tune.randint(1, 100)},
            {"name": "net", "width": tune.uniform(0, 1)},
        ]
    ),
    "a": tune.uniform(0, 1),
}


def loss_of(config: dict[str, Any]) -> float:
    """Return a loss that depends on all numbers in a configuration."""
    total = 0.0
    for key, value in config.items():
        if isinstance(value, dict):
            total += loss_of(value)
        elif isinstance(value, (int, float)) and key != "__trial_index__":
            total += math.sin(value)
    return total


@dataclass
class Search:
    """Search with a searcher, and a log of all calls.

    Attributes:
        log: calls in order, so that they can be replayed.
        configs: configuration of each trial.
    """

    row: Row
    space: dict[str, Any]
    num_samples: int = 12
    seed: int = 0
    arguments: dict[str, Any] = field(default_factory=dict)
    allow_duplicates: bool = False

    def __post_init__(self) -> None:
        space = Space.of(self.space)
        self.searcher = self.row.make(**self.arguments)
        self.searcher.begin(
            space, metric="loss", mode="min", num_samples=self.num_samples * self.row.repeat, seed=self.seed
        )
        self.source = TrialSource(
            self.searcher, space, seed=self.seed, allow_duplicates=self.allow_duplicates
        )
        self.log: list[tuple[str, str, Any]] = []
        self.configs: dict[str, dict[str, Any]] = {}

    def next(self) -> dict[str, Any] | None:
        """Suggest a trial; return None if the search is over."""
        if self.source.total == len(self.configs):
            return None
        trial_id = f"t_{len(self.configs):05d}"
        config = self.source.propose(trial_id)
        if not isinstance(config, dict):
            return None
        self.configs[trial_id] = config
        self.log.append(("suggest", trial_id, config))
        return config

    def finish(self, trial_id: str, loss: float | None = None, error: bool = False) -> None:
        """Report a loss for a trial, and end the trial."""
        value = loss_of(self.configs[trial_id]) if loss is None else loss
        result = {"loss": value, "training_iteration": 1, "trial_id": trial_id}
        self.tell("result", trial_id, result)
        self.tell("error" if error else "complete", trial_id, result)

    def tell(self, what: str, trial_id: str, result: dict[str, Any]) -> None:
        self.log.append((what, trial_id, result))
        if what == "result":
            self.source.on_trial_result(trial_id, result)
        else:
            self.source.on_trial_complete(trial_id, result, error=what == "error")

    def run(
        self, number: int | None = None, loss: Callable[[dict[str, Any]], float] = loss_of
    ) -> list[dict[str, Any]]:
        """Run trials one after another, at most `number` of them; return the configurations of all trials."""
        end = math.inf if number is None else len(self.configs) + number
        while len(self.configs) < end and (config := self.next()) is not None:
            self.finish(list(self.configs)[-1], loss(config))
        return list(self.configs.values())

    def restored(self) -> Search:
        """Return a new search to which this search's log was replayed."""
        other = replace(self)
        for what, trial_id, value in self.log:
            if what == "suggest":
                stored = decode_config(encode_config(value))
                objects = with_objects(Space.of(self.space))
                assert other.source.replay(trial_id, objects(stored)) == value
                other.configs[trial_id] = value
            else:
                other.tell(what, trial_id, value)
        return other


class SearcherSuite:
    """Tests that every searcher must pass. A subclass defines a method that creates the searcher.

    Attributes:
        takes_points: False if the searcher does not support `points_to_evaluate`.
        covers: False if the searcher stays near its best result, so that it never tries all configurations of
            a small space.
    """

    takes_points: ClassVar[bool] = True
    covers: ClassVar[bool] = True

    def make(self, **arguments: Any) -> Searcher:
        """Return a new searcher.

        Args:
            **arguments: `points_to_evaluate`, in the test of this argument; empty in other tests.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `make`, which creates its searcher")

    @pytest.fixture
    def row(self) -> Row:
        """Return the searcher to test; override this fixture to test several searchers."""
        return Row(type(self).__name__, self.make, self.takes_points, covers=self.covers)

    def test_configurations_are_of_the_space(self, row: Row) -> None:
        space = Space.of(SPACE)
        configs = Search(row, SPACE).run()
        assert len(configs) == 12 * row.repeat
        for config in configs:
            config = {key: value for key, value in config.items() if key != "__trial_index__"}
            assert space.allows(config), config
            assert config["constant"] == {"a": [1, 2]}

    def test_one_seed_gives_one_history_and_another_another(self, row: Row) -> None:
        assert Search(row, SPACE).run() == Search(row, SPACE).run()
        assert Search(row, SPACE).run() != Search(row, SPACE, seed=1).run()

    @pytest.mark.parametrize("space", [SPACE, TREE])
    def test_a_replay_gives_the_same_next_suggestions(self, row: Row, space: dict[str, Any]) -> None:
        """Compare with a replay before each step of a search with errors, NaN and several running trials."""
        search = Search(row, space)
        for step in range(12 * row.repeat):
            restored = search.restored()
            assert search.next() == restored.next()
            ids = list(search.configs)
            if step % 3 == 2:
                search.finish(ids[step], loss=math.nan)
                search.finish(ids[step - 2], error=step % 2 == 0)
                search.finish(ids[step - 1])

    def test_only_active_parameters_are_there(self, row: Row) -> None:
        configs = Search(row, TREE, num_samples=30).run()
        names = {tuple(config["model"]) for config in configs}
        assert names == {("name", "depth"), ("name", "width")}
        kinds = {(config["model"]["name"], next(iter(list(config["model"])[1:]))) for config in configs}
        assert kinds == {("tree", "depth"), ("net", "width")}

    def test_what_is_forbidden_never_comes(self, row: Row) -> None:
        space = {
            "a": tune.choice([1, 2, 3]),
            "b": tune.choice([1, 2, 3]),
            "c": tune.uniform(0, 1),
            "never": tune.forbid({"a": 1, "b": [1, 2]}, lambda config: config["a"] == config["b"] == 3),
        }
        configs = Search(row, space, num_samples=40).run()
        assert len(configs) == 40 * row.repeat or not row.covers
        pairs = {(config["a"], config["b"]) for config in configs}
        assert not pairs & {(1, 1), (1, 2), (3, 3)}

    def test_a_finite_space_is_gone_through_once(self, row: Row) -> None:
        space = {"a": tune.choice(["x", "y", "z"]), "b": tune.randint(0, 4)}
        search = Search(row, space, num_samples=30)
        configs = search.run()
        firsts = [config for config in configs if config.get("__trial_index__", 0) == 0]
        pairs = [(config["a"], config["b"]) for config in firsts]
        assert len(pairs) == len(set(pairs))
        if row.covers:
            assert len(pairs) == 12
            assert search.source.reason.startswith("all 12 configurations of the space were tried")

    def test_duplicates_may_be_asked_for(self, row: Row) -> None:
        search = Search(row, {"a": tune.choice(["x", "y"])}, num_samples=6, allow_duplicates=True)
        assert len(search.run()) == 6 * row.repeat
        assert search.source.reason == ""

    def test_points_come_first_and_as_often_as_they_are_given(self, row: Row) -> None:
        if not row.takes_points:
            pytest.skip("takes no points")
        point = {"lr": 0.5, "net": {"width": 8, "steps": 0.3}, "kind": "adam"}
        points = [point, point, {"lr": 0.25, "net/width": 16}]
        search = Search(row, SPACE, arguments={"points_to_evaluate": points})
        configs = [config for config in search.run() if config.get("__trial_index__", 0) == 0]
        for config in configs[:2]:
            assert {key: config[key] for key in point} == point
        assert (configs[2]["lr"], configs[2]["net"]["width"]) == (0.25, 16)
        assert len(configs) == 12
        assert configs[3]["lr"] not in (0.5, 0.25)

    def test_no_end_where_none_is_asked_for(self, row: Row) -> None:
        search = Search(row, SPACE, num_samples=-1 if row.repeat == 1 else 50)
        assert len(search.run(25)) == 25

    def test_a_search_over_nothing_that_works_goes_on(self, row: Row) -> None:
        search = Search(row, SPACE)
        while search.next() is not None:
            search.finish(list(search.configs)[-1], loss=math.nan, error=len(search.configs) % 2 == 0)
        assert len(search.configs) == 12 * row.repeat

    def test_a_trial_that_goes_on_after_its_end_ends_again(self, row: Row) -> None:
        search = Search(row, SPACE)
        search.run(2 * row.repeat)
        first = next(iter(search.configs))
        search.finish(first, loss=-5.0)
        restored = search.restored()
        assert search.run(4) == restored.run(4)

    def test_without_a_metric_it_says_so_or_needs_none(self, row: Row) -> None:
        searcher = row.make()
        try:
            searcher.begin(Space.of(SPACE), metric=None, mode=None, num_samples=4 * row.repeat, seed=0)
        except ConfigError as error:
            assert "metric" in str(error)
        else:
            assert isinstance(searcher.suggest("t"), dict)
