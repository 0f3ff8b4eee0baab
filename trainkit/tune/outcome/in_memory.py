"""What came out of an experiment that was kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from trainkit.tune.outcome.reading import Reader, known_objectives
from trainkit.tune.outcome.result import Result, result_of
from trainkit.tune.outcome.results import ResultGrid
from trainkit.tune.storing.memory import MemoryStore


class MemoryGrid(ResultGrid):
    """The results of an experiment in memory: all that a `ResultGrid` has, but for checkpoints and a folder.

    Args:
        store: what holds the records.
        metric, mode: what "best" means where a method is given none.
        errors: what trials raised, by trial and attempt.
    """

    def __init__(
        self,
        store: MemoryStore,
        metric: str | None,
        mode: str | None,
        errors: Mapping[tuple[str, int], BaseException],
    ) -> None:
        self._store = store
        objectives = known_objectives(store.reader().facts())
        super().__init__(Path(), self._found(errors, metric, mode), metric, mode, objectives)

    def _found(
        self, errors: Mapping[tuple[str, int], BaseException], metric: str | None, mode: str | None
    ) -> Iterator[Result]:
        for trial in self._store.reader().trials():
            trial.checkpoints.clear()  # whatever they were, nothing of them is left
            yield result_of(trial, None, metric, mode, errors, self._store.reader)

    @property
    def experiment_path(self) -> str:
        """Such an experiment has no folder."""
        return "memory"

    def _reader(self) -> Reader:
        return self._store.reader()
