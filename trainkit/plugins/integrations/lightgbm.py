"""Callbacks for `lightgbm.train` in a training function; they report each boosting round."""

from __future__ import annotations

from typing import Any

from trainkit.plugins.integrations.reporting import RoundsCallback, WithoutCheckpoints, file_of, imported
from trainkit.tune.core.checkpoint import Checkpoint

lightgbm: Any = imported("reporting from LightGBM", "lightgbm")

FILENAME = "model.txt"


class LightGBMCheckpointCallback(RoundsCallback):
    """A callback that reports each round's evaluation, such as 'eval-binary_logloss', and checkpoints.

    To resume: `lightgbm.train(..., init_model=TuneReportCheckpointCallback.get_model(checkpoint))`.

    Args:
        metrics: a metric's name, a list of names, or a dictionary that maps reported names to LightGBM's;
            None: all.
        filename: name of the model file in the checkpoint.
        frequency: number of rounds per checkpoint; 0: none during training.
        checkpoint_at_end: True: the last of `num_boost_round` rounds has a checkpoint too.
        results_postprocessing_fn: function that maps the selected metrics to the reported metrics.

    Raises:
        MissingDependencyError: LightGBM is not installed; raised when this module is imported.
    """

    order = 25
    """Position after the callback that records LightGBM's evaluation, and before its early stopping."""
    default_filename = FILENAME

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = FILENAME) -> Any:
        """Return the `lightgbm.Booster` in a checkpoint of this callback."""
        return lightgbm.Booster(model_file=file_of(checkpoint, filename))

    def __call__(self, env: Any) -> None:
        """Report a round; LightGBM calls this after each round."""
        found = {}
        for data, metric, value, *rest in env.evaluation_result_list or ():
            # Only `lightgbm.cv` gives a deviation, together with a mean.
            deviation = rest[1] if len(rest) > 1 else None
            found[f"{data}-{metric}" if deviation is None else f"{data}-{metric}-mean"] = value
            if deviation is not None:
                found[f"{data}-{metric}-stdv"] = deviation
        last = self._at_end and env.iteration == env.end_iteration - 1
        due = last or self._is_due(env.iteration)
        save = env.model.save_model if due and isinstance(env.model, lightgbm.Booster) else None
        self._reporter.report(found, save, self._filename)


class LightGBMReportCallback(WithoutCheckpoints, LightGBMCheckpointCallback):
    """A callback that reports the evaluation of each round, without checkpoints."""


TuneReportCheckpointCallback = LightGBMCheckpointCallback
TuneReportCallback = LightGBMReportCallback
