"""Callbacks for Keras 3 in a training function: they report metrics and checkpoints during `model.fit`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from trainkit.errors import MissingDependencyError
from trainkit.plugins.integrations.reporting import Metrics, Reporter, file_of, missing
from trainkit.runtime import session
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import require, require_whole

try:
    import keras
except ModuleNotFoundError as error:
    if error.name == "keras":
        raise missing("reporting from Keras", "keras") from error
    raise MissingDependencyError(
        f"Keras cannot be imported with its configured backend: {error}. Set the environment variable "
        "KERAS_BACKEND=torch before Python imports Keras, or install the packages of that backend"
    ) from error

# Keras is imported once, in the process from which workers are forked, because its import takes seconds.
session.register("keras")

FILENAME = "model.keras"
EVENTS = tuple(
    f"{phase}_{end}"
    for phase in ("epoch", "train_batch", "test_batch", "predict_batch", "train", "test", "predict")
    for end in ("begin", "end")
)
"""Events at which a report can be made; for each event, Keras calls a method `on_<event>` of a callback."""
On = str | Sequence[str]


class KerasCheckpointCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that reports the metrics that `fit` passes to callbacks (logs), with the model as a
    checkpoint.

    Use it as `model.fit(callbacks=[...])`. To resume from a checkpoint: `model =
    KerasCheckpointCallback.get_model(tune.get_checkpoint())`, and `model.fit(..., initial_epoch=...)`. An
    event without metrics, such as the beginning of an epoch, reports nothing. If a trial is stopped, the
    trial ends inside the call of `model.fit`.

    Args:
        checkpoint_on: event or events that report a checkpoint, such as "epoch_end"; (): no checkpoints.
        report_metrics_on: event or events that report only metrics.
        metrics: a metric's name, a list of names, or a dictionary that maps names in reports to Keras's
            names; None: all metrics.
        filename: name of the model file in the checkpoint; the suffix ".keras", which Keras needs, is added
            if missing.
        frequency: number of `checkpoint_on` events for each checkpoint; the other events report only metrics.

    Raises:
        ConfigError: Keras has no such event, or a value is out of range.
        MissingDependencyError: Keras, or its backend, is not installed; raised when this module is imported.
    """

    def __init__(
        self,
        checkpoint_on: On = "epoch_end",
        report_metrics_on: On = "epoch_end",
        metrics: Metrics = None,
        filename: str = FILENAME,
        frequency: int = 1,
    ) -> None:
        super().__init__()
        require_whole("frequency", frequency, 1)
        self._reporter = Reporter(metrics)
        self._saved_at = _events("checkpoint_on", checkpoint_on)
        self._filename = filename if filename.endswith(".keras") else f"{filename}.keras"
        self._frequency = frequency
        self._seen = 0
        for event in self._saved_at | _events("report_metrics_on", report_metrics_on):
            setattr(self, f"on_{event}", partial(self._handle, event))

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = FILENAME) -> Any:
        """Load the model from a checkpoint that this callback has reported."""
        return keras.saving.load_model(file_of(checkpoint, filename))

    def _handle(self, event: str, *given: Any, logs: Mapping[str, Any] | None = None) -> None:
        """Report the metrics of an event; Keras may pass a number of the epoch or batch before `logs`."""
        found = logs if logs is not None else given[-1] if given and isinstance(given[-1], Mapping) else {}
        due = False
        if event in self._saved_at:
            self._seen += 1
            due = self._seen % self._frequency == 0
        self._reporter.report(dict(found), self.model.save if due else None, self._filename)


class KerasReportCallback(KerasCheckpointCallback):
    """A callback that reports the metrics that `fit` passes to callbacks (logs), without checkpoints.

    Args:
        metrics: see `KerasCheckpointCallback`.
        on: event or events at which to report.
    """

    def __init__(self, metrics: Metrics = None, on: On = "epoch_end") -> None:
        super().__init__((), on, metrics)


def _events(name: str, given: On) -> set[str]:
    events = {given} if isinstance(given, str) else set(given)
    for event in sorted(events - set(EVENTS)):
        require(event in EVENTS, f"{name}={event!r} is not one of Keras's events: {', '.join(EVENTS)}")
    return events


def _by_metrics(
    metrics: Metrics = None,
    filename: str = FILENAME,
    frequency: int = 1,
    on: On = "epoch_end",
    *,
    report_metrics_on: On | None = None,
    checkpoint_on: On | None = None,
) -> KerasCheckpointCallback:
    """Return the callback for the positional arguments of Ray 1.x or the keyword arguments of Ray 2."""
    return KerasCheckpointCallback(
        on if checkpoint_on is None else checkpoint_on,
        on if report_metrics_on is None else report_metrics_on,
        metrics,
        filename,
        frequency,
    )


ReportCheckpointCallback = KerasCheckpointCallback
TuneReportCheckpointCallback = _by_metrics
TuneReportCallback = KerasReportCallback
