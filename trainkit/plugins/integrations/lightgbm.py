"""Callbacks for `lightgbm.train` in a training function: they report after each boosting round."""

from __future__ import annotations

from typing import Any

from trainkit.plugins.integrations.reporting import RoundsCallback, WithoutCheckpoints, file_of, imported
from trainkit.tune.core.checkpoint import Checkpoint

lightgbm: Any = imported("reporting from LightGBM", "lightgbm")

FILENAME = "model.txt"


class LightGBMCheckpointCallback(RoundsCallback):
    """A callback that reports each round's metrics, such as 'eval-binary_logloss', and checkpoints.

    To resume: `lightgbm.train(..., init_model=TuneReportCheckpointCallback.get_model(checkpoint))`.

    Args:
        metrics: a metric's name, a list of names, or a dictionary that maps names in reports to LightGBM's
            names; None: all metrics.
        filename: name of the model file in the checkpoint.
        frequency: number of rounds between two checkpoints; 0: no checkpoints before the end.
        checkpoint_at_end: True: the last of `num_boost_round` rounds also has a checkpoint.
        results_postprocessing_fn: function that receives the selected metrics and returns the metrics to
            report.

    Raises:
        MissingDependencyError: LightGBM is not installed; raised when this module is imported.
    """

    order = 25
    """Position among LightGBM's callbacks, which is after the recording of metrics and before early
    stopping.
    """
    default_filename = FILENAME

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = FILENAME) -> Any:
        """Load the `lightgbm.Booster` from a checkpoint that this callback has reported."""
        return lightgbm.Booster(model_file=file_of(checkpoint, filename))

    def __call__(self, env: Any) -> None:
        """Report a boosting round; LightGBM calls this method after each round."""
        found = {}
        for data, metric, value, *rest in env.evaluation_result_list or ():
            # Only `lightgbm.cv` passes a standard deviation; the value is then a mean.
            deviation = rest[1] if len(rest) > 1 else None
            found[f"{data}-{metric}" if deviation is None else f"{data}-{metric}-mean"] = value
            if deviation is not None:
                found[f"{data}-{metric}-stdv"] = deviation
        last = self._at_end and env.iteration == env.end_iteration - 1
        due = last or self._is_due(env.iteration)
        save = env.model.save_model if due and isinstance(env.model, lightgbm.Booster) else None
        self._reporter.report(found, save, self._filename)


class LightGBMReportCallback(WithoutCheckpoints, LightGBMCheckpointCallback):
    """A callback that reports the metrics of each round, without checkpoints."""


TuneReportCheckpointCallback = LightGBMCheckpointCallback
TuneReportCallback = LightGBMReportCallback
