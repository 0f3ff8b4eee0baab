"""Callbacks for `lightgbm.train` in a function trial: each boosting round is a report."""

from __future__ import annotations

from typing import Any

from trainkit.plugins.integrations.reporting import Change, Metrics, Reporter, file_of, missing
from trainkit.tune.core.checkpoint import Checkpoint

try:
    import lightgbm
except ModuleNotFoundError as error:
    raise missing("reporting from LightGBM", "lightgbm") from error

FILENAME = "model.txt"


class LightGBMCheckpointCallback:
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

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = FILENAME,
        frequency: int = 0,
        checkpoint_at_end: bool = True,
        results_postprocessing_fn: Change | None = None,
    ) -> None:
        self._reporter = Reporter(metrics, results_postprocessing_fn)
        self._filename = filename
        self._frequency = frequency
        self._at_end = checkpoint_at_end

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
        due = self._frequency > 0 and (env.iteration + 1) % self._frequency == 0
        save = env.model.save_model if (last or due) and isinstance(env.model, lightgbm.Booster) else None
        self._reporter.report(found, save, self._filename)


class LightGBMReportCallback(LightGBMCheckpointCallback):
    """A callback that reports the evaluation of each round, without checkpoints.

    Args:
        metrics: as in TuneReportCheckpointCallback.
        results_postprocessing_fn: as in TuneReportCheckpointCallback.
    """

    def __init__(self, metrics: Metrics = None, results_postprocessing_fn: Change | None = None) -> None:
        super().__init__(
            metrics, checkpoint_at_end=False, results_postprocessing_fn=results_postprocessing_fn
        )


TuneReportCheckpointCallback = LightGBMCheckpointCallback
TuneReportCallback = LightGBMReportCallback
