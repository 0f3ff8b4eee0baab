"""Callbacks for `xgboost.train` in a training function: they report after each boosting round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.plugins.integrations.reporting import RoundsCallback, WithoutCheckpoints, file_of, imported
from trainkit.tune.core.checkpoint import Checkpoint

xgboost: Any = imported("reporting from XGBoost", "xgboost")

FILENAME = "model.ubj"


class XGBoostCheckpointCallback(RoundsCallback, xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """A callback that reports each round's metrics, such as 'eval-logloss', and checkpoints.

    To resume: `xgboost.train(..., xgb_model=TuneReportCheckpointCallback.get_model(checkpoint))`.

    Args:
        metrics: a metric's name, a list of names, or a dictionary that maps names in reports to XGBoost's
            names; None: all metrics.
        filename: name of the model file in the checkpoint; its suffix determines the file format.
        frequency: number of rounds between two checkpoints; 0: no checkpoints before the end.
        checkpoint_at_end: True: the last model is also a checkpoint, and the metrics of the last round are
            reported again with it.
        results_postprocessing_fn: function that receives the selected metrics and returns the metrics to
            report; with `xgboost.cv`, each metric is a pair of mean and standard deviation.

    Raises:
        MissingDependencyError: XGBoost is not installed; raised when this module is imported.
    """

    default_filename = FILENAME
    _last: Mapping[str, Any] = {}
    _saved = False

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = FILENAME) -> Any:
        """Load the `xgboost.Booster` from a checkpoint that this callback has reported."""
        booster = xgboost.Booster()
        booster.load_model(file_of(checkpoint, filename))
        return booster

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self._last = {
            f"{data}-{metric}": values[-1]
            for data, metrics in evals_log.items()
            for metric, values in metrics.items()
        }
        self._saved = self._is_due(epoch)
        self._report(model, self._saved)
        return False

    def after_training(self, model: Any) -> Any:
        if self._at_end and not self._saved:
            self._report(model, True)
        return model

    def _report(self, model: Any, saved: bool) -> None:
        save = model.save_model if saved and isinstance(model, xgboost.Booster) else None
        self._reporter.report(self._last, save, self._filename)


class XGBoostReportCallback(WithoutCheckpoints, XGBoostCheckpointCallback):
    """A callback that reports the metrics of each round, without checkpoints."""


TuneReportCheckpointCallback = XGBoostCheckpointCallback
TuneReportCallback = XGBoostReportCallback
