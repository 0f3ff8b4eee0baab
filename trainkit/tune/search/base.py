"""What a searcher is: the source of configurations, told of the results.

A searcher is rebuilt by asking it for the same suggestions again and telling it the same results, so
it keeps no file. Suggestion n draws from a generator of its own, made from the seed and n: how many
results were known when it was asked changes what a model proposes, never what chance gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from trainkit.tune.variants import Space


class Searcher(ABC):
    """Base of all searchers.

    Args:
        metric: reported value to optimise; None: the TuneConfig's.
        mode: "min" or "max"; None: the TuneConfig's.
    """

    FINISHED: ClassVar[str] = "FINISHED"

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        self.metric = metric
        self.mode = mode
        self.space = Space.of(None)
        self.num_samples = 1
        self.seed = 0

    @property
    @abstractmethod
    def arguments(self) -> dict[str, Any]:
        """What the constructor takes to make this searcher again."""

    def set_search_properties(
        self, metric: str | None, mode: str | None, space: Space, *, num_samples: int, seed: int
    ) -> None:
        """Take what the experiment decides; called once, before the first suggestion.

        Raises:
            ConfigError: the searcher can't search this space.
        """
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        self.space = space
        self.num_samples = num_samples
        self.seed = seed

    @property
    def total_samples(self) -> int | None:
        """How many suggestions there will be; None: no end."""
        return None if self.num_samples == -1 else self.num_samples

    @abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration; None: none before more results come; FINISHED: none any more."""

    def replay(self, trial_id: str, config: dict[str, Any]) -> None:
        """Take a suggestion of before as made: it is `config`, whatever would be suggested today.

        Called on a restore instead of `suggest`, in the order of the suggestions, between what was
        reported; the space may be another than the one that `config` was drawn from.
        """
        del config
        self.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """A trial has reported."""
        del trial_id, result

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial has ended with this last report, or has failed for good."""
        del trial_id, result, error
