"""For each trial `params.json`, `result.json` with one report per line, and `error.txt` if it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from trainkit.tune.callbacks.logger import LoggerCallback
from trainkit.tune.trial import Trial
from trainkit.tune.values import encode, encode_config, storable_text


class JsonLoggerCallback(LoggerCallback):
    """See the module; what JSON can't hold in a configuration stands there as its repr."""

    def __init__(self) -> None:
        self._open: dict[str, TextIO] = {}

    def log_trial_start(self, trial: Trial) -> None:
        folder = self.trial_dir(trial)
        (folder / "params.json").write_text(encode_config(trial.config))
        self._open[trial.trial_id] = open(folder / "result.json", "a")  # noqa: SIM115 - until the trial ends

    def log_trial_result(self, trial: Trial, result: Mapping[str, Any]) -> None:
        file = self._open[trial.trial_id]
        file.write(_line(result))
        file.flush()  # for those who look while the trial runs

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        file = self._open.pop(trial.trial_id, None)
        if file is not None:
            file.close()
        if failed and trial.failure is not None:
            failure = trial.failure
            folder = self.trial_dir(trial)
            folder.mkdir(exist_ok=True)
            text = f"{failure.traceback}\n{failure.kind}: {failure.message}\n"
            (folder / "error.txt").write_text(storable_text(text), encoding="utf-8")

    def length(self, trial: Trial) -> int:
        path = self.trial_dir(trial) / "result.json"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        folder = self.trial_dir(trial)
        folder.mkdir(exist_ok=True)
        aside = folder / "result.json.partial"
        aside.write_text("".join(map(_line, results)))
        aside.rename(folder / "result.json")


def _line(result: Mapping[str, Any]) -> str:
    metrics = {name: value for name, value in result.items() if name != "config"}
    return f'{encode(metrics)[:-1]},"config":{encode_config(result["config"])}}}\n'
