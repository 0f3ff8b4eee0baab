"""For each trial a file for TensorBoard: a scalar per metric and report, hyperparameters at its end."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.tune.callbacks import event_file
from trainkit.tune.callbacks.logger import LoggerCallback
from trainkit.tune.checks import is_finite, is_number
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import flatten

OWN_SUFFIX = ".trainkit"
"""Tells our file from those that the trial itself may write to its folder."""
_NO_SCALARS = frozenset(
    {"training_iteration", "timestamp", "iterations_since_restore", "time_since_restore", "pid"}
)
_TIMES = frozenset({"time_this_iter_s", "time_total_s"})


class TBXLoggerCallback(LoggerCallback):
    """Look at it with `tensorboard --logdir` and the experiment's folder.

    Tags are the metrics' names, nested ones joined by '/'. Numbers are shown, NaN and infinite ones too;
    texts, truth values and lists are not. The step is `timesteps_total` where it is reported, else the
    iteration. A trial that goes on after a failure or a restore has no step twice.
    """

    def __init__(self) -> None:
        super().__init__()
        self._host = socket.gethostname()
        self._begun = 0.0
        self._paths: dict[str, Path] = {}
        self._shown: dict[str, list[str]] = {}
        """By trial, the tags of its last report, for the tab of hyperparameters."""

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        self._begun = float(info["time"])
        super().setup(stop, num_samples, total_num_samples, **info)

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        path, parts = self._paths.get(trial.trial_id), []
        if path is None:
            path = self._paths[trial.trial_id] = self._new_path(trial)
            parts = [event_file.same_record(event_file.file_version(self._begun))]
        parts += self._records(trial, results)
        if trial.status.is_finished:  # these are its last
            parts += self._last_records(trial)
        with open(path, "ab") as file:
            file.write(b"".join(parts))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        path = self._paths.get(trial.trial_id)
        if path is not None and trial.status.is_finished:
            with open(path, "ab") as file:
                file.write(b"".join(self._last_records(trial)))
        self._forget(trial)

    def length(self, trial: Trial) -> int:
        paths = self._own_files(trial)
        if not paths:
            return 0
        events = [event for path in paths for event in event_file.events_of(path.read_bytes())]
        summaries = [event for event in events if event_file.is_summary(event)]
        ends = sum(map(event_file.is_hyperparameters, summaries))
        whole = ends == (3 if trial.status.is_finished else 0)
        return len(summaries) - ends if whole else -1

    def rewrite(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Write a new file in place of the old, which tells a TensorBoard that runs to forget the old."""
        old = self._own_files(trial)
        self._paths.pop(trial.trial_id, None)
        if results:
            path = self._new_path(trial)
            path.parent.mkdir(exist_ok=True)
            head = [event_file.file_version(self._begun), event_file.restart(self._begun, 0)]
            parts = [*map(event_file.same_record, head), *self._records(trial, results)]
            if trial.status.is_finished:
                parts += self._last_records(trial)
            else:
                self._paths[trial.trial_id] = path
            aside = path.with_name(".tensorboard.partial")
            aside.write_bytes(b"".join(parts))
            aside.rename(path)
            old = [each for each in old if each != path]
        for each in old:
            each.unlink()

    def _new_path(self, trial: Trial) -> Path:
        name = f"events.out.tfevents.{int(self._begun):010d}.{self._host}.{trial.attempt}{OWN_SUFFIX}"
        return self.folder / trial.dirname / name

    def _own_files(self, trial: Trial) -> list[Path]:
        try:
            with os.scandir(self.folder / trial.dirname) as entries:
                return [Path(entry.path) for entry in entries if entry.name.endswith(OWN_SUFFIX)]
        except FileNotFoundError:  # it never ran
            return []

    def _records(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> list[bytes]:
        events, tags = [], []
        for result in results:
            metrics = {name: value for name, value in result.items() if name not in _NO_SCALARS}
            metrics.pop("config", None)
            values = [(tag, value) for tag, value in flatten(metrics).items() if is_number(value)]
            date = result.get("timestamp")
            wall_time = float(date) if date is not None and is_finite(date) else self._begun
            events.append(event_file.scalars(wall_time, _step_of(result), values))
            tags = [tag for tag, _ in values]
        self._shown[trial.trial_id] = [tag for tag in tags if tag not in _TIMES]
        return event_file.records(events)

    def _last_records(self, trial: Trial) -> list[bytes]:
        """The records that a trial's file ends with, which is forgotten with that."""
        there_is, given, ended = event_file.hyperparameters(
            self._begun,
            flatten(trial.config),
            self._shown.get(trial.trial_id, []),
            failed=trial.status is TrialStatus.ERROR,
        )
        self._forget(trial)
        same = event_file.same_record
        return [same(there_is), *event_file.records([given]), same(ended)]

    def _forget(self, trial: Trial) -> None:
        self._paths.pop(trial.trial_id, None)
        self._shown.pop(trial.trial_id, None)


def _step_of(result: Mapping[str, Any]) -> int:
    for name in ("timesteps_total", "training_iteration"):
        value = result.get(name)
        if value and is_finite(value):
            return int(value)
    return 0
