"""Callbacks for `lightgbm.train` in a function trial: each boosting round is a report."""

from __future__ import annotations

from typing import Any

from trainkit.plugins.integrations.reporting import RoundsCallback, WithoutCheckpoints, file_of, imported
from trainkit.tune.core.checkpoint import Checkpoint

lightgbm: Any = imported("reporting from LightGBM", "lightgbm")

FILENAME = "model.txt"


class LightGBMCheckpointCallback(RoundsCallback):
    """A callback that reports the evaluation of each round, such as 'eval-binary_logloss', and checkpoints.

    To resume: `lightgbm.train(..., init_model=TuneReportCheckpointCallback.get_model(checkpoint))`.

    Args:
        metrics: a name, a list of names, or a dictionary from reported names to LightGBM's; None: all.
        filename: of the model in the checkpoint.
        frequency: number of rounds per checkpoint; 0: none during training.
        checkpoint_at_end: True: the last of `num_boost_round` rounds has a checkpoint too.
        results_postprocessing_fn: maps the selected metrics to the reported ones.

    Raises:
        MissingDependencyError: LightGBM is not installed; raised when this module is imported.
    """

    order = 25
    """Position after LightGBM's recording of the evaluation, and before its early stopping."""
    default_filename = FILENAME

    @classmethod
    def get_model(cls, checkpoint: Checkpoint, filename: str = FILENAME) -> Any:
        """Return the lightgbm.Booster in a checkpoint of this callback."""
        return lightgbm.Booster(model_file=file_of(checkpoint, filename))

    def __call__(self, env: Any) -> None:
        """Report a round; LightGBM calls this after each round."""
        found = {}
        for data, metric, value, *rest in env.evaluation_result_list or ():
            deviation = rest[1] if len(rest) > 1 else None  # only from `lightgbm.cv`, whose values are means
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
