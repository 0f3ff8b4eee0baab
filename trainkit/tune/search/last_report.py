"""What searchers share whose models know a trial by one value: the metric, as it reported it last."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from trainkit.tune.checks import is_number
from trainkit.tune.search.evaluated import Evaluated
from trainkit.tune.search.modelled import F, ModelledSearcher
from trainkit.tune.spaces.variants import Space
from trainkit.tune.values import lookup


class LastReportSearcher(ModelledSearcher[F]):
    """Base of searchers for which a trial counts by its last report, when it ends and while it is paused."""

    _last: dict[str, float]
    """By trial that has not ended: the metric, as reported last."""

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        self._last = {}
        super().begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)

    @abstractmethod
    def _tell(self, trial_id: str, value: float | None) -> None:
        """A trial came to `value`, which may be NaN or infinite; None: it failed, or never reported one."""

    @abstractmethod
    def _runs(self, trial_id: str) -> None:
        """A trial runs that came to something."""

    def _learn(self, name: str, known: Any, evaluated: Evaluated) -> None:
        self._note(name, known)
        self._tell(name, None if evaluated.error else evaluated.value)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        value = lookup(result, self.metric or "")
        if trial_id not in self._left_out and is_number(value):
            self._last[trial_id] = float(value)

    def on_pause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._tell(trial_id, self._last[trial_id])

    def on_unpause(self, trial_id: str) -> None:
        if trial_id in self._last:
            self._runs(trial_id)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if trial_id in self._left_out:
            return
        self._last.pop(trial_id, None)
        value = lookup(result or {}, self.metric or "")
        self._tell(trial_id, float(value) if not error and is_number(value) else None)
