"""Common part of the callbacks for training libraries: metrics and checkpoint of a report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.errors import MissingDependencyError
from trainkit.tune.core.checkpoint import Checkpoint, temporary_folder
from trainkit.tune.trial.context import report

logger = logging.getLogger("trainkit.tune")

Metrics = str | Sequence[str] | Mapping[str, str] | None
"""A name, names, or a dictionary from reported names to the library's; None: all metrics."""
Change = Callable[[dict[str, Any]], dict[str, Any]]


class Reporter:
    """A selection of a library's metrics, and their reports.

    Args:
        metrics: the selection.
        change: maps the selected metrics to the reported ones.
    """

    def __init__(self, metrics: Metrics, change: Change | None = None) -> None:
        names = [metrics] if isinstance(metrics, str) else metrics
        if names is None or isinstance(names, Mapping):
            self._names = None if names is None else dict(names)
        else:
            self._names = {name: name for name in names}
        self._change = change
        self._missed: set[str] = set()

    def pick(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the selected metrics of `found`; log each missing one once."""
        if self._names is None:
            picked = dict(found)
        else:
            picked = {name: found[theirs] for name, theirs in self._names.items() if theirs in found}
            for theirs in set(self._names.values()) - found.keys() - self._missed:
                self._missed.add(theirs)
                logger.warning("there is no metric %r to report; there are %s", theirs, sorted(found))
        return self._change(picked) if self._change is not None else picked

    def report(
        self, found: Mapping[str, Any], save: Callable[[str], Any] | None = None, filename: str = ""
    ) -> None:
        """Report the selected metrics, if `found` has any.

        Args:
            found: metrics by the library's names.
            save: writes a model to the path that it receives, which becomes the report's checkpoint.
            filename: of that file in the checkpoint.
        """
        picked = self.pick(found)
        if not picked:
            return
        if save is None:
            report(picked)
            return
        with temporary_folder("trainkit_checkpoint_") as folder:
            save(str(Path(folder, filename)))
            report(picked, checkpoint=Checkpoint.from_directory(folder))


def file_of(checkpoint: Checkpoint, filename: str) -> str:
    """Return the path of a file in a checkpoint."""
    return str(Path(checkpoint.path, filename))


def missing(what: str, package: str) -> MissingDependencyError:
    """Return the error for a missing tool; `package` is also the name of trainkit's extra."""
    return MissingDependencyError.of(f"{what} needs {package}", package)
