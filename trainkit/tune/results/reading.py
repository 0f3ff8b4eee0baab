"""Readers of experiments: ours, and folders that Ray Tune wrote."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

from trainkit.errors import ExperimentNotFoundError, StoreError
from trainkit.tune.core.lineage import Exchange
from trainkit.tune.core.objectives import Objective
from trainkit.tune.core.trial import Attempt, Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.store.reader import ExperimentReader, Span, outcome_of
from trainkit.tune.store.schema import FILENAME
from trainkit.tune.sync.storage import locate, working_folder

PARAMS, RESULTS, ERROR = "params.json", "result.json", "error.txt"
STATE = "experiment_state-*.json"
_CHECKPOINT = re.compile(r"checkpoint_(?:epoch_)?(\d+)")


def is_ray_folder(folder: Path) -> bool:
    """True if Ray Tune, of any version, seems to have written `folder`."""
    return any(folder.glob(STATE)) or any(folder.glob(f"*/{PARAMS}")) or any(folder.glob(f"*/{RESULTS}"))


class RayFolder:
    """The experiment in `folder`, read-only; it answers what `ExperimentReader` answers.

    Raises:
        StoreError: a file is not what Ray writes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._histories: dict[str, list[dict[str, Any]]] = {}  # read once for all that asks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Nothing stays open."""

    def facts(self) -> dict[str, Any]:
        """Ray keeps metric and mode in a pickle: they are not known here."""
        return {"tune_config": {"metric": None, "mode": None}, "space": {}}

    def trials(self) -> list[Trial]:
        """All trials, in the order of the state file, then of their folders' names."""
        order = {trial_id: place for place, trial_id in enumerate(self._states)}
        found = sorted(self._folders.items(), key=lambda item: (order.get(item[0], len(order)), item[1].name))
        return [self._trial(index, trial_id, folder) for index, (trial_id, folder) in enumerate(found)]

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        """The reports of a trial by iteration; of one reported twice, the later line."""
        if trial_id not in self._histories:
            reports = _lines(self._folders[trial_id] / RESULTS)
            by_iteration = {
                report.get("training_iteration", n): report for n, report in enumerate(reports, 1)
            }
            self._histories[trial_id] = [by_iteration[iteration] for iteration in sorted(by_iteration)]
        return list(self._histories[trial_id])

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the reports of each trial that has any."""
        for trial_id in self._folders:
            if history := self.history(trial_id):
                yield trial_id, history

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        """By checkpoint number, the report that names its folder, or else that of this iteration."""
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
        """Ray keeps none."""
        return []

    def stops(self) -> dict[str, dict[str, Any]]:
        """Ray keeps none."""
        return {}

    def exchanges(self) -> list[Exchange]:
        """Ray keeps them in files of their own, which PopulationBasedTrainingReplay reads."""
        return []

    def attempts(self, trial_id: str) -> list[Attempt]:
        """Ray keeps none."""
        return []

    def spans(self) -> list[Span]:
        """A trial each, as Ray tells no attempts apart."""
        trials = {trial.trial_id: trial for trial in self.trials()}
        spans = []
        for trial_id, (started, ended) in self.times().items():
            if started is not None and trial_id in trials:
                status = trials[trial_id].status
                outcome = outcome_of(status, "finished", failed=False, endings=())
                spans.append(Span(trial_id, 0, ("", 0), started, ended, status, "", outcome))
        return sorted(spans, key=lambda span: span.started)

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        """By trial, when it began and when it last reported, as its reports say."""
        times: dict[str, tuple[float | None, float | None]] = {}
        for trial_id, history in self.histories():
            first, last = history[0], history[-1]
            started = first["timestamp"] - first.get("time_total_s", 0.0) if "timestamp" in first else None
            times[trial_id] = (started, last.get("timestamp"))
        return times

    # --- files ------------------------------------------------------------------------------------

    @cached_property
    def _folders(self) -> dict[str, Path]:
        """By trial id, the folders that hold a trial."""
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
        # Ray's folder names are <trainable>_<id>_<number>_<what varies>_<date>.
        return next((known for known in self._states if f"_{known}_" in f"_{folder.name}_"), folder.name)

    @cached_property
    def _states(self) -> dict[str, dict[str, Any]]:
        """By trial id, what the newest state file says of it; {} without one."""
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
    """Return the status in the state file; without one, derive it from the trial's files."""
    if stated in list(TrialStatus):
        return TrialStatus(stated)
    if failure is not None:
        return TrialStatus.ERROR
    return TrialStatus.TERMINATED if last.get("done") else TrialStatus.PENDING


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8") as file:
        # A last line without an end is one that Ray was just writing, or never finished.
        return [_parsed(line, path) for line in file if line.strip() and line.endswith("\n")]


def _parsed(text: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise StoreError(f"{path} is not JSON as Ray Tune writes it: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(
            f"{path} is not what Ray Tune writes: it holds {type(value).__name__}, not an object"
        )
    return value


class Reader(Protocol):
    """Reader of the experiment that results come from; close it soon, as a running one goes on writing."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...

    def facts(self) -> dict[str, Any]:
        """Return the facts of the experiment as a whole, by name."""

    def trials(self) -> list[Trial]:
        """All trials in the order suggested."""

    def history(self, trial_id: str) -> list[dict[str, Any]]:
        """The reports of a trial by iteration."""

    def histories(self) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        """Yield the reports of each trial that has any."""

    def checkpoint_results(self, trial_id: str) -> dict[int, dict[str, Any]]:
        """By checkpoint number, the report that it came with."""

    def decisions(self, trial_id: str | None = None) -> list[dict[str, Any]]:
        """Return the decisions on the reports of a trial, or of all."""

    def stops(self) -> dict[str, dict[str, Any]]:
        """By trial, the reason of the stop that was decided on its last report, if one was."""

    def exchanges(self) -> list[Exchange]:
        """How trials went on with other configurations, in order."""

    def attempts(self, trial_id: str) -> list[Attempt]:
        """The runs of a trial."""

    def spans(self) -> list[Span]:
        """When each attempt ran, and what became of it, in the order of their starts."""

    def times(self) -> dict[str, tuple[float | None, float | None]]:
        """By trial, when it began and when it ended, in seconds since 1970."""


def open_experiment(folder: Path) -> Reader:
    """Open the experiment in `folder` to read, be it finished or running.

    Raises:
        StoreError: there is none, or its file is damaged or foreign.
    """
    if not (folder / FILENAME).exists() and is_ray_folder(folder):
        return RayFolder(folder)
    return ExperimentReader(folder)


def experiment_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    """The folder that `path` means: itself, where the file that it names lies, or the copy of an address.

    Args:
        path: a folder, a file in it, or an address such as "s3://bucket/experiment".
        filesystem: of fsspec, that `path` is a path of; None: the one that it names.

    Raises:
        StoreError: there is nothing.
        StorageError: the address can't be read.
    """
    place = locate(path, filesystem)
    folder = place if isinstance(place, Path) else working_folder(path, filesystem)[0]
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise ExperimentNotFoundError(f"{folder} holds no experiment: there is no such folder")
    return folder


def trial_folder(path: str | os.PathLike[str], filesystem: Any = None) -> Path:
    """Return the folder of a trial that `path` means, in the folder of its experiment, which exists.

    The folder of an experiment with a single trial, such as a trainer's run, means that trial.

    Raises:
        StoreError: there is nothing, or `path` is of an experiment with another number of trials.
        StorageError: the address can't be read.
    """
    place = locate(path, filesystem)
    if isinstance(place, Path):
        if (place / FILENAME).is_file():
            return _only_trial(place)
        return experiment_folder(place.parent) / place.name
    above, _, name = os.fspath(path).rstrip("/").rpartition("/")
    return experiment_folder(above, filesystem) / name


def _only_trial(experiment: Path) -> Path:
    with ExperimentReader(experiment) as reader:
        names = [trial.dirname for trial in reader.trials()]
    if len(names) != 1:
        raise StoreError(
            f"{experiment} is the folder of an experiment with {len(names)} trials: give the path of one "
            "trial's folder in it, or read all by ResultGrid.from_path(path)"
        )
    return experiment / names[0]


def metric_and_mode(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the metric and mode by which an experiment is judged; None if it has none."""
    settings = facts["tune_config"]
    metric, mode = facts.get("objective", (settings["metric"], settings["mode"]))
    return (None, None) if isinstance(metric, list) else (metric, mode)


def known_objectives(facts: Mapping[str, Any]) -> tuple[Objective, ...]:
    """The objectives of the experiment with these facts, where it has several."""
    return tuple(Objective(metric, mode) for metric, mode in facts.get("objectives", []))
