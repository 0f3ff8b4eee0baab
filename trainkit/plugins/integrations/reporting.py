"""Parts that the callbacks for training libraries share: selection of metrics, reports with checkpoints."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from trainkit.errors import MissingDependencyError
from trainkit.tune.core.checkpoint import Checkpoint, temporary_folder
from trainkit.tune.core.log import logger
from trainkit.tune.trial.context import report

Metrics = str | Sequence[str] | Mapping[str, str] | None
"""A metric's name, a list of names, or a dictionary from reported to library names; None: all metrics."""
Change = Callable[[dict[str, Any]], dict[str, Any]]


class Reporter:
    """Reports selected metrics of a training library.

    Args:
        metrics: selected metrics.
        change: function that receives the selected metrics and returns the metrics to report.
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
        """Return the selected metrics of `found`; log a warning once for each missing metric."""
        if self._names is None:
            picked = dict(found)
        else:
            picked = {name: found[theirs] for name, theirs in self._names.items() if theirs in found}
            for theirs in set(self._names.values()) - found.keys() - self._missed:
                self._missed.add(theirs)
                logger.warning(
                    "metric %r cannot be reported; the available metrics are %s", theirs, sorted(found)
                )
        return self._change(picked) if self._change is not None else picked

    def report(
        self, found: Mapping[str, Any], save: Callable[[str], Any] | None = None, filename: str = ""
    ) -> None:
        """Report the selected metrics, if `found` has any.

        Args:
            found: metrics, under the library's names.
            save: function that writes the model to a given path; None: report without a checkpoint.
            filename: name of the model file in the checkpoint.
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
    """Base of callbacks for a boosting library, which report after each round.

    Args:
        metrics: a metric's name, a list of names, or a dictionary that maps names in reports to the library's
            names; None: all metrics.
        filename: name of the model file in the checkpoint; None: the library's usual name.
        frequency: number of rounds between two checkpoints; 0: no checkpoints before the end.
        checkpoint_at_end: True: the last model is a checkpoint too.
        results_postprocessing_fn: function that receives the selected metrics and returns the metrics to
            report.
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
        return self._frequency > 0 and (round_ + 1) % self._frequency == 0


class WithoutCheckpoints(RoundsCallback):
    """Mixin for a callback that reports the metrics of each round, without checkpoints.

    Args:
        metrics: see `RoundsCallback`.
        results_postprocessing_fn: see `RoundsCallback`.
    """

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Change | None = None) -> None:
        super().__init__(
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )


def file_of(checkpoint: Checkpoint, filename: str) -> str:
    """Return the path of a file in a checkpoint."""
    return str(Path(checkpoint.path, filename))


def missing(what: str, package: str) -> MissingDependencyError:
    """Return the error that `package` is not installed; trainkit has an extra of the same name."""
    return MissingDependencyError.of(f"{what} needs {package}", package)


def imported(what: str, package: str) -> Any:
    """Import and return `package`; `what` names the feature that needs it.

    Raises:
        MissingDependencyError: `package` is not installed.
    """
    require_installed(what, package)
    return importlib.import_module(package)


def require_installed(what: str, package: str) -> None:
    """Raise MissingDependencyError if `package` is not installed; `what` names the feature that needs it."""
    if find_spec(package) is None:
        raise missing(what, package)
