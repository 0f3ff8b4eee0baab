"""Reader of experiments that Ray Tune has written, without loading its pickles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from trainkit.errors import StoreError
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.trial import Attempt, Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.store.reader import Span, outcome_of

PARAMS, RESULTS, ERROR = "params.json", "result.json", "error.txt"
STATE = "experiment_state-*.json"
_CHECKPOINT = re.compile(r"checkpoint_(?:epoch_)?(\d+)")


def is_ray_folder(folder: Path) -> bool:
    """Return True if `folder` looks like an experiment of Ray Tune, of any version."""
    return any(folder.glob(STATE)) or any(folder.glob(f"*/{PARAMS}")) or any(folder.glob(f"*/{RESULTS}"))


def ray_folder(folder: Path) -> RayFolder | None:
    """Return a reader of the experiment in `folder` if it looks like an experiment of Ray Tune, else None."""
    return RayFolder(folder) if is_ray_folder(folder) else None


class RayFolder:
    """Read-only reader of the Ray Tune experiment in `folder`, with the methods of `ExperimentReader`.

    Raises:
        StoreError: a file does not have Ray's format.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._histories: dict[str, list[dict[str, Any]]] = {}  # the cache is used by several methods

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Do nothing, because no file stays open."""

    def facts(self) -> dict[str, Any]:
        """Return the properties of the experiment without metric and mode, which Ray stores in a pickle."""
        return {"tune_config": {"metric": None, "mode": None}, "space": {}}

    def trials(self) -> list[Trial]:
        """Return all trials: first in the order of Ray's state file, then other trials by folder name."""
        order = {trial_id: place for place, trial_id in enumerate(self._states)}
        found = sorted(self._folders.items(), key=lambda item: (order.get(item[0], len(order)), item[1].name))
        return [self._trial(index, trial_id, folder) for index, (trial_id, folder) in enumerate(found)]

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        """Return the reports of a trial by iteration; if an iteration is repeated, only the later report."""
        if trial_id not in self._histories:
            reports = _lines(self._folders[trial_id] / RESULTS)
            by_iteration = {
                report.get("training_iteration", n): report for n, report in enumerate(reports, 1)
            }
            self._histories[trial_id] = [by_iteration[iteration] for iteration in sorted(by_iteration)]
        return list(self._histories[trial_id])

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the reports of each trial that has reports."""
        for trial_id in self._folders:
            if history := self.history(trial_id):
                yield trial_id, history

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        """Return each checkpoint's report by checkpoint number, found by folder name or else by iteration."""
        history = self.history(trial_id)
        named = {
            report["checkpoint_dir_name"]: report for report in history if report.get("checkpoint_dir_name")
        }
        counted = {} if named else {report.get("training_iteration"): report for report in history}
        return {
            number: named.get(folder.name) or counted.get(number) or {}
            for number, folder in self._checkpoints(trial_id).items()
        }

    def decisions(self, trial_id: str | None = None) -> list[dict[str, Any]]:
        """Return [], because Ray does not store decisions."""
        return []

    def stops(self) -> dict[str, dict[str, Any]]:
        """Return {}, because Ray does not store stop reasons."""
        return {}

    def exchanges(self) -> list[Exchange]:
        """Return []. Ray's exploits are in separate files, which `PopulationBasedTrainingReplay` reads."""
        return []

    def attempts(self, trial_id: str) -> list[Attempt]:
        """Return [], because Ray does not store a trial's attempts."""
        return []

    def spans(self) -> list[Span]:
        """Return one span (start and end) per trial, because Ray does not distinguish attempts."""
        trials = {trial.trial_id: trial for trial in self.trials()}
        spans = []
        for trial_id, (started, ended) in self.times().items():
            if started is not None and trial_id in trials:
                status = trials[trial_id].status
                outcome = outcome_of(status, "finished", failed=False, endings=())
                spans.append(Span(trial_id, 0, ("", 0), started, ended, status, "", outcome))
        return sorted(spans, key=lambda span: span.started)

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        """Return each trial's start time and the time of its last report, computed from its reports."""
        times: dict[str, tuple[float | None, float | None]] = {}
        for trial_id, history in self.histories():
            first, last = history[0], history[-1]
            started = first["timestamp"] - first.get("time_total_s", 0.0) if "timestamp" in first else None
            times[trial_id] = (started, last.get("timestamp"))
        return times

    # --- files ------------------------------------------------------------------------------------

    @cached_property
    def _folders(self) -> dict[str, Path]:
        """Folders of trials, by trial id."""
        folders = {}
        for folder in sorted(self.folder.iterdir()):
            if folder.is_dir() and ((folder / PARAMS).exists() or (folder / RESULTS).exists()):
                folders[self._trial_id(folder)] = folder
        return folders

    def _trial_id(self, folder: Path) -> str:
        with_results = folder / RESULTS
        if with_results.exists():
            with open(with_results, encoding="utf-8") as file:
                first = file.readline()
            if first.strip():
                named = _parsed(first, with_results).get("trial_id")
                if named:
                    return str(named)
        # Ray names a folder <trainable>_<id>_<number>_<what varies>_<date>, so the id is searched between
        # underscores.
        return next((known for known in self._states if f"_{known}_" in f"_{folder.name}_"), folder.name)

    @cached_property
    def _states(self) -> dict[str, dict[str, Any]]:
        """Entries of Ray's newest state file, by trial id; {} without a state file."""
        files = sorted(self.folder.glob(STATE))
        if not files:
            return {}
        state = _parsed(files[-1].read_text(encoding="utf-8"), files[-1])
        states = {}
        for entry in state.get("trial_data") or state.get("checkpoints") or []:
            text = entry[0] if isinstance(entry, list) else entry
            trial = _parsed(text, files[-1]) if isinstance(text, str) else text
            if "trial_id" in trial:
                states[str(trial["trial_id"])] = trial
        return states

    def _checkpoints(self, trial_id: str) -> dict[int, Path]:
        found = {}
        for folder in self._folders[trial_id].iterdir():
            match = _CHECKPOINT.fullmatch(folder.name)
            if match and folder.is_dir():
                found[int(match[1])] = folder
        return dict(sorted(found.items()))

    def _trial(self, index: int, trial_id: str, folder: Path) -> Trial:
        history, state = self.history(trial_id), self._states.get(trial_id, {})
        last = history[-1] if history else {}
        params = folder / PARAMS
        config = (
            _parsed(params.read_text(encoding="utf-8"), params) if params.exists() else last.get("config", {})
        )
        failure = None
        if (folder / ERROR).exists():
            text = (folder / ERROR).read_text(encoding="utf-8", errors="replace").strip()
            kind, _, message = (text.splitlines() or [""])[-1].partition(": ")
            failure = Failure(kind or "error", message, text)
        checkpoints = [
            SavedCheckpoint.after(
                number, path.name, int(report.get("training_iteration") or number), None, report
            )
            for (number, path), report in zip(
                self._checkpoints(trial_id).items(), self.checkpoint_results(trial_id).values(), strict=True
            )
        ]
        status = _status(state.get("status"), last, failure)
        return Trial(
            trial_id=trial_id,
            index=index,
            config=config,
            name=folder.name,
            dirname=folder.name,
            tag=str(last.get("experiment_tag") or state.get("experiment_tag") or ""),
            status=status,
            iteration=int(last.get("training_iteration") or 0),
            last_result=dict(last),
            checkpoints=checkpoints,
            failure=failure if status is TrialStatus.ERROR else None,
        )


def _status(stated: Any, last: dict[str, Any], failure: Failure | None) -> TrialStatus:
    """Return the status from the state file, or else derive the status from the trial's files."""
    if stated in list(TrialStatus):
        return TrialStatus(stated)
    if failure is not None:
        return TrialStatus.ERROR
    return TrialStatus.TERMINATED if last.get("done") else TrialStatus.PENDING


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        # A last line without a line end is incomplete, because Ray is still writing it or was stopped while
        # writing.
        return [_parsed(line, path) for line in file if line.strip() and line.endswith("\n")]


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path} is not JSON as Ray Tune writes it: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is not a file of Ray Tune: it holds {type(value).__name__}, not an object")
    return value
