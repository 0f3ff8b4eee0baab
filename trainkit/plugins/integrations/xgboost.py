"""Callbacks for `xgboost.train` in a training function; they report each boosting round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainkit.plugins.integrations.reporting import RoundsCallback, WithoutCheckpoints, file_of, imported
from trainkit.tune.core.checkpoint import Checkpoint

xgboost: Any = imported("reporting from XGBoost", "xgboost")

FILENAME = "model.ubj"


class XGBoostCheckpointCallback(RoundsCallback, xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """A callback that reports each round's evaluation, such as 'eval-logloss', and checkpoints.

    To resume: `xgboost.train(..., xgb_model=TuneReportCheckpointCallback.get_model(checkpoint))`.

    Args:
        metrics: a metric's name, a list of names, or a dictionary that maps reported names to XGBoost's;
            None: all.
        filename: name of the model file in the checkpoint; its suffix selects the format.
        frequency: number of rounds per checkpoint; 0: none during training.
        checkpoint_at_end: True: the last model is a checkpoint too, and its metrics are reported again.
        results_postprocessing_fn: function that maps the selected metrics to the reported metrics;
            `xgboost.cv` gives pairs of mean and deviation.

    Raises:
        MissingDependencyError: XGBoost is not installed; raised when this module is imported.
    """

    default_filename = FILENAME
    _last: Mapping[str, Any] = {}
    _saved = False

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = FILENAME) -> Any:
        """Return the `xgboost.Booster` in a checkpoint of this callback."""
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
    """A callback that reports the evaluation of each round, without checkpoints."""


TuneReportCheckpointCallback = XGBoostCheckpointCallback
TuneReportCallback = XGBoostReportCallback
