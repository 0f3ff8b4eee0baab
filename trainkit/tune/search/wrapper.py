"""A searcher around another: hands everything through, for limiters and repeaters to change a part of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from trainkit.tune.checks import require_kind
from trainkit.tune.objectives import Objective
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.search.base import Searcher
from trainkit.tune.spaces.variants import Space


class SearcherWrapper(Searcher):
    """Base of searchers that hold another, as `searcher`.

    Raises:
        ConfigError: it is not a searcher.
    """

    def __init__(self, searcher: Searcher) -> None:
        require_kind("searcher", searcher, Searcher, "trainkit.tune.search.BasicVariantGenerator()")
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return self.searcher.objectives

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        self.searcher.set_objectives(objectives)

    @property
    def metric(self) -> str | None:
        return self.searcher.metric

    @property
    def mode(self) -> str | None:
        return self.searcher.mode

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        self.space, self.num_samples, self.seed = space, num_samples, seed
        self.searcher.begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)

    @property
    def total_samples(self) -> int | None:
        return self.searcher.total_samples

    @property
    def whole(self) -> bool:
        return self.searcher.whole

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        return self.searcher.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self.searcher.on_trial_complete(trial_id, result, error=error)

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        self.searcher.on_trial_decision(trial_id, result, decision)

    def on_pause(self, trial_id: str) -> None:
        self.searcher.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self.searcher.on_unpause(trial_id)

    @property
    def hears_again(self) -> bool:
        return self.searcher.hears_again

    def is_drawn(self, trial_id: str) -> bool:
        return self.searcher.is_drawn(trial_id)

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        self.searcher.on_rejected(trial_id, result)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]] | None:
        return self.searcher.alternatives(trial_id)

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        return self.searcher.take(trial_id, config)

    def give_up(self, trial_id: str) -> bool:
        return self.searcher.give_up(trial_id)

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        return self.searcher.replay(trial_id, config, same_space=same_space)

    def rehearsal(self) -> Searcher:
        twin = copy.copy(self)
        twin.searcher = self.searcher.rehearsal()
        return copy.deepcopy(twin)

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        self.searcher.add_evaluated_point(parameters, value, error, pruned, intermediate_values)

    def save(self, checkpoint_path: str) -> None:
        self.searcher.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        self.searcher.restore(checkpoint_path)
