"""A searcher with a limit on concurrent trials."""

from __future__ import annotations

from typing import Any

from trainkit.tune.core.checks import arguments_of, require_whole
from trainkit.tune.search.base import Searcher, SearcherWrapper


class ConcurrencyLimiter(SearcherWrapper):
    """A wrapper that lets at most `max_concurrent` trials of a searcher run at once.

    Args:
        searcher: searcher whose trials are limited.
        max_concurrent: maximum number of concurrent trials, 1 or more.
        batch: True starts new trials only once all trials of the previous batch have ended. The searcher then
            receives the results together, in the order in which the trials ended.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(self, searcher: Searcher, max_concurrent: int, batch: bool = False) -> None:
        super().__init__(searcher)
        require_whole("max_concurrent", max_concurrent, 1)
        self.max_concurrent = int(max_concurrent)
        self.batch = bool(batch)
        self._running: set[str] = set()
        self._paused: set[str] = set()
        self._held: dict[str, tuple[dict[str, Any] | None, bool]] = {}
        """Results of ended trials, in order of arrival, withheld while the rest of the batch runs."""
        self._limits_itself = searcher.set_max_concurrency(self.max_concurrent)

    @property
    def arguments(self) -> dict[str, Any]:
        return arguments_of(self)

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        self.max_concurrent = max_concurrent
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._limits_itself:
            return self._inner.suggest(trial_id)
        if len(self._running) - len(self._paused) + len(self._held) >= self.max_concurrent:
            return None
        suggestion = self._inner.suggest(trial_id)
        if isinstance(suggestion, dict):
            self._running.add(trial_id)
        return suggestion

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        self._paused.discard(trial_id)
        # A trial that a restore runs again after its end is not in `_running`, so its result is passed on at
        # once.
        if trial_id not in self._running or not self.batch:
            self._running.discard(trial_id)
            self._inner.on_trial_complete(trial_id, result, error=error)
            return
        self._running.remove(trial_id)
        self._held[trial_id] = (result, error)
        if not self._running:
            held, self._held = self._held, {}
            for each, (its_result, its_error) in held.items():
                self._inner.on_trial_complete(each, its_result, error=its_error)

    def on_pause(self, trial_id: str) -> None:
        self._paused.add(trial_id)
        self._inner.on_pause(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._paused.discard(trial_id)
        self._inner.on_unpause(trial_id)

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        self._running.discard(trial_id)
        self._inner.on_rejected(trial_id, result)

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        taken = self._inner.take(trial_id, config)
        if taken:
            self._running.add(trial_id)
        return taken

    def note(self, trial_id: str, config: dict[str, Any]) -> bool:
        known = self._inner.note(trial_id, config)
        # A searcher that does not accept a trial is not notified of the trial's end. Without this condition,
        # the trial would count as running forever.
        if known:
            self._running.add(trial_id)
        return known

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        replayed = self._inner.replay(trial_id, config, same_space=same_space)
        if replayed is not None:
            self._running.add(trial_id)
        return replayed
