"""Common part of the callbacks for training libraries: metrics and checkpoint of a report."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

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


class RoundsCallback:
    """Base of callbacks for a boosting library, which report each round.

    Args:
        metrics: a name, a list of names, or a dictionary from reported names to the library's; None: all.
        filename: of the model in the checkpoint; None: the library's usual name.
        frequency: number of rounds per checkpoint; 0: none during training.
        checkpoint_at_end: True: the last model is a checkpoint too.
        results_postprocessing_fn: maps the selected metrics to the reported ones.
    """

    default_filename: ClassVar[str]

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str | None = None,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Change | None = None,
    ) -> None:
        super().__init__()
        self._reporter = Reporter(metrics, results_postprocessing_fn)
        self._filename = filename or self.default_filename
        self._frequency = frequency
        self._at_end = checkpoint_at_end

    def _is_due(self, round_: int) -> bool:
        """Return True if the round, counted from 0, has a checkpoint."""
        return self._frequency > 0 and (round_ + 1) % self._frequency == 0


class WithoutCheckpoints(RoundsCallback):
    """Part of a callback that reports the evaluation of each round, without checkpoints.

    Args:
        metrics: as in TuneReportCheckpointCallback.
        results_postprocessing_fn: as in TuneReportCheckpointCallback.
    """

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Change | None = None) -> None:
        super().__init__(
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )


def file_of(checkpoint: Checkpoint, filename: str) -> str:
    """Return the path of a file in a checkpoint."""
    return str(Path(checkpoint.path, filename))


def missing(what: str, package: str) -> MissingDependencyError:
    """Return the error for a missing tool; `package` is also the name of trainkit's extra."""
    return MissingDependencyError.of(f"{what} needs {package}", package)


def imported(what: str, package: str) -> Any:
    """Import and return a tool, which `what` needs.

    Raises:
        MissingDependencyError: it is not installed.
    """
    require_installed(what, package)
    return importlib.import_module(package)


def require_installed(what: str, package: str) -> None:
    """Raise MissingDependencyError if a tool, which `what` needs, is not installed."""
    if find_spec(package) is None:
        raise missing(what, package)
