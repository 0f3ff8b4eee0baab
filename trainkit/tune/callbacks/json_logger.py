"""For each trial `params.json`, `result.json` with one report per line, and `error.txt` if it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.callbacks.logger import LoggerCallback
from trainkit.tune.trial import Trial
from trainkit.tune.values import encode, encode_config, storable_text


class JsonLoggerCallback(LoggerCallback):
    """See the module; what JSON can't hold in a configuration stands there as its repr."""

    def __init__(self) -> None:
        super().__init__()
        self._empty: set[str] = set()
        """Trials that have no result.json yet: a new file takes ten times what a line does."""

    def log_trial_start(self, trial: Trial) -> None:
        with open(f"{self.folder}/{trial.dirname}/params.json", "w") as file:
            file.write(encode_config(trial.config))
        self._empty.add(trial.trial_id)

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        with open(f"{self.folder}/{trial.dirname}/result.json", "a") as file:
            file.write(_lines(results))
        self._empty.discard(trial.trial_id)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if trial.trial_id in self._empty:
            self.log_trial_results(trial, [])
        if failed and trial.failure is not None:
            failure = trial.failure
            folder = self.trial_dir(trial)
            folder.mkdir(exist_ok=True)
            text = f"{failure.traceback}\n{failure.kind}: {failure.message}\n"
            (folder / "error.txt").write_text(storable_text(text), encoding="utf-8")

    def length(self, trial: Trial) -> int:
        return self.lines(trial, "result.json")

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        folder = self.trial_dir(trial)
        folder.mkdir(exist_ok=True)
        aside = folder / "result.json.partial"
        aside.write_text(_lines(results))
        aside.rename(folder / "result.json")


def _lines(results: Sequence[Mapping[str, Any]]) -> str:
    """One report a line, each with its configuration at its end."""
    lines: list[str] = []
    config: Any = None
    text = ""
    for result in results:
        metrics = dict(result)
        own = metrics.pop("config")
        if own is not config or not lines:  # the same object in all reports of an attempt
            config, text = own, encode_config(own)
        lines.append(f'{encode(metrics)[:-1]},"config":{text}}}\n')
    return "".join(lines)
