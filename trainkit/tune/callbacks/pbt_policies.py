"""The policy files that population based training writes with `log_config=True`; see their format there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.schedulers.pbt.lineage import Exchange
from trainkit.tune.schedulers.pbt.policy import GLOBAL_FILE, policy_file, policy_lines
from trainkit.tune.storing.history import ExperimentReader
from trainkit.tune.trial import Trial


class PolicyFiles(Callback):
    """Writes `pbt_global.txt` and a `pbt_policy_<trial id>.txt` for each trial that took over a state.

    A restore writes them anew from the experiment's file, so a kill costs no line.
    """

    def __init__(self) -> None:
        self._folder = Path()
        self._exchanges: list[Exchange] = []
        self._lines: list[str] = []

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        del stop, num_samples, total_num_samples
        self._folder = Path(info["experiment_path"])
        with ExperimentReader(self._folder) as reader:
            exchanges, trials = reader.exchanges(), reader.trials()
        for exchange in exchanges:
            self._add(exchange, trials)

    def on_trial_change(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        del iteration
        donor: Trial | None = info["donor"]
        since = trial.checkpoint.iteration if trial.checkpoint is not None else 0
        self._add(
            Exchange(
                trial.trial_id,
                since,
                trial.config,
                None if donor is None else donor.trial_id,
                info["donor_iteration"],
            ),
            trials,
        )

    def _add(self, exchange: Exchange, trials: Sequence[Trial]) -> None:
        self._exchanges.append(exchange)
        suggested = {trial.trial_id: trial.suggested for trial in trials}
        tags = {trial.trial_id: trial.tag or trial.trial_id for trial in trials}
        lines = policy_lines(self._exchanges, suggested, tags, exchange.trial_id)
        self._write(policy_file(exchange.trial_id), lines)
        self._lines += lines[-1:]
        self._write(GLOBAL_FILE, self._lines)

    def _write(self, name: str, lines: Sequence[str]) -> None:
        """Aside first: who replays it while it is written finds it whole; with no lines there is no file."""
        if not lines:
            (self._folder / name).unlink(missing_ok=True)
            return
        aside = self._folder / f".{name}.partial"
        aside.write_text("".join(lines), encoding="utf-8")
        aside.rename(self._folder / name)
