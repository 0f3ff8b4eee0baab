"""Optuna storage that shows experiments to tools that read Optuna storages: plots, dashboards, extensions."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from optuna.distributions import BaseDistribution
from optuna.exceptions import DuplicatedStudyError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection

# The method get_all_studies() must return this type.
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, StoreError
from trainkit.plugins.integrations.optuna_study import optuna_trials
from trainkit.tune.core.objectives import Objective, objectives_of
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.results.folders import experiment_folder
from trainkit.tune.results.overview import CUT_OFF, LogReader, experiments_in
from trainkit.tune.results.reading import foreign_reader, known_objectives, metric_and_mode, open_experiment
from trainkit.tune.results.result import result_of
from trainkit.tune.store.ownership import owner_of
from trainkit.tune.store.schema import FILENAME

METRIC_NAMES = "study:metric_names"
"""System attribute of a study in which Optuna stores the names of the study's metrics."""
_TRIALS_OF_A_STUDY = 2**32
_TICK_S = 0.05
"""Seconds within which two changes of a file may get the same timestamp."""


@dataclass(frozen=True)
class _Study:
    """Snapshot of an experiment as an Optuna study.

    Attributes:
        stamp: stamp of the experiment's files; None if the files may have changed without a new stamp.
        objectives: objectives of the experiment, at least one.
        trials: trials as Optuna's `FrozenTrial` objects.
        attributes: user attributes of the study.
    """

    stamp: tuple[Any, ...] | None
    objectives: tuple[Objective, ...]
    trials: list[FrozenTrial]
    attributes: dict[str, Any]


class ExperimentStorage(BaseStorage):
    """Read-only Optuna storage.

    The studies of this storage are experiments, running or finished, which are named after their folders.

    A read returns the state of the last commit, and never delays the program that runs the experiment.

        study = optuna.load_study(study_name=None, storage=ExperimentStorage("experiments/mnist"))
        optuna.visualization.plot_optimization_history(study)

    A trial's value is the metric in its last report. Trials that a scheduler stopped are PRUNED. Trials that
    failed, or have no value, are FAIL. Paused trials are RUNNING. Trials that wait to start, or for
    `Tuner.restore`, are WAITING. With a single objective, the metric in each report is an intermediate value
    at the report's iteration. A trial's `user_attrs` contain its id, its status with the reason, and the
    other values of its last report.

    Args:
        path: folder of one experiment, or folder that contains experiments. A folder of experiments is
            searched again at each read.
        metric: name of the metric that is a trial's value, or a list of several names; None: the metric of
            each experiment.
        mode: "min" or "max", or a list with a mode for each metric; None: the mode of each experiment.

    Raises:
        StoreError: the folder is missing, or its file is damaged or is not the file of an experiment.
        ConfigError: the experiment has no metric, and `metric` is None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        metric: str | Sequence[str] | None = None,
        mode: str | Sequence[str] | None = None,
    ) -> None:
        self._root = experiment_folder(path).absolute()
        self._objectives = objectives_of(metric, mode)
        if not self._objectives and (metric is not None or mode is not None):
            if not isinstance(metric, str) or mode not in ("min", "max"):
                raise ConfigError(f"metric={metric!r}, mode={mode!r}: give both, or neither")
            self._objectives = (Objective(metric, str(mode)),)
        self._is_one = (self._root / FILENAME).exists() or foreign_reader(self._root) is not None
        self._ids: dict[Path, int] = {}
        self._known: dict[int, _Study] = {}
        self._lock = threading.RLock()
        self._left_out: dict[str, str] = {}
        self._studies()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None, "_known": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    @property
    def left_out(self) -> dict[str, str]:
        """Map of each experiment that can't be a study to the reason: the experiment has no metric, or can't
        be read.
        """
        return dict(self._left_out)

    # --- experiments ------------------------------------------------------------------------------

    def _studies(self) -> dict[Path, tuple[int, _Study]]:
        """Read the experiments that have changed; return all studies by folder, each with its id."""
        with self._lock:
            folders = [self._root] if self._is_one else experiments_in(self._root)
            for folder in folders:
                self._ids.setdefault(folder, len(self._ids))
            self._left_out = {}
            studies = {}
            for folder in folders:
                try:
                    studies[folder] = self._ids[folder], self._read(folder)
                except (StoreError, ConfigError) as error:
                    if self._is_one:
                        raise
                    self._left_out[folder.name] = str(error)
            return studies

    def _study(self, study_id: int) -> _Study:
        with self._lock:
            folder = next((folder for folder, each in self._ids.items() if each == study_id), None)
            if folder is None and not self._is_one:
                self._studies()
                folder = next((folder for folder, each in self._ids.items() if each == study_id), None)
            if folder is None or not folder.is_dir():
                raise KeyError(f"no study with study_id {study_id} exists")
            return self._read(folder)

    def _read(self, folder: Path) -> _Study:
        study_id = self._ids[folder]
        stamp = _stamp(folder)
        known = self._known.get(study_id)
        if known is None or stamp is None or known.stamp != stamp:
            known = _study_of(folder, self._objectives, study_id * _TRIALS_OF_A_STUDY, stamp)
            self._known[study_id] = known
        return known

    # --- studies ----------------------------------------------------------------------------------

    def get_study_id_from_name(self, study_name: str) -> int:
        for folder, (study_id, _) in self._studies().items():
            if folder.name == study_name:
                return study_id
        why = self._left_out.get(study_name)
        raise KeyError(f"no study {study_name!r} exists" + (f": {why}" if why else ""))

    def get_study_name_from_id(self, study_id: int) -> str:
        return str(self._study(study_id).attributes["experiment"])

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return [_direction(each) for each in self._study(study_id).objectives]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return dict(self._study(study_id).attributes)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return {METRIC_NAMES: [each.metric for each in self._study(study_id).objectives]}

    def get_all_studies(self) -> list[FrozenStudy]:
        return [
            FrozenStudy(
                study_name=folder.name,
                direction=None,
                directions=[_direction(each) for each in study.objectives],
                user_attrs=dict(study.attributes),
                system_attrs={METRIC_NAMES: [each.metric for each in study.objectives]},
                study_id=study_id,
            )
            for folder, (study_id, study) in self._studies().items()
        ]

    # --- trials -----------------------------------------------------------------------------------

    def get_trial(self, trial_id: int) -> FrozenTrial:
        study_id, number = divmod(trial_id, _TRIALS_OF_A_STUDY)
        trials = self._study(study_id).trials
        if number >= len(trials):
            raise KeyError(f"no trial with trial_id {trial_id} exists")
        return copy.deepcopy(trials[number])

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [trial for trial in self._study(study_id).trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    # --- writes -----------------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        if any(folder.name == study_name for folder in self._studies()):
            raise DuplicatedStudyError(f"the study {study_name!r} exists: {self._root} holds its experiment")
        self._refuse("a new study")

    def delete_study(self, study_id: int) -> None:
        self._refuse("to delete a study")

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._refuse(f"the attribute {key!r} of a study")

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._refuse(f"the attribute {key!r} of a study")

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        self._refuse("a new trial")

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        self._refuse(f"the parameter {param_name!r} of a trial")

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        self._refuse("another state of a trial")

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._refuse("a report of a trial")

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._refuse(f"the attribute {key!r} of a trial")

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._refuse(f"the attribute {key!r} of a trial")

    def _refuse(self, what: str) -> NoReturn:
        raise StoreError(
            f"{what} cannot be written: this storage only reads the experiments of {self._root}, "
            "which belong to the program that runs them. Run searches with tune.Tuner, and steer "
            "them by the commands of trainkit"
        )


def _direction(objective: Objective) -> StudyDirection:
    return StudyDirection.MINIMIZE if objective.mode == "min" else StudyDirection.MAXIMIZE


def _stamp(folder: Path) -> tuple[Any, ...] | None:
    """Return a stamp that changes with the experiment; None if the next change might keep the stamp."""
    # If this file is missing, the folder is an experiment of Ray, whose many files have no common stamp.
    if not (folder / FILENAME).exists():
        return None
    now, stamp = SYSTEM.now(), [owner_of(folder)]
    for name in (FILENAME, f"{FILENAME}-wal"):
        try:
            status = os.stat(folder / name)
        except FileNotFoundError:  # The write-ahead log exists only during writes.
            continue
        if now - status.st_mtime < _TICK_S:
            return None
        stamp += [status.st_ino, status.st_size, status.st_mtime_ns]
    return tuple(stamp)


def _study_of(
    folder: Path, given: tuple[Objective, ...], first_id: int, stamp: tuple[Any, ...] | None
) -> _Study:
    owner = owner_of(folder)
    with LogReader(folder) if (folder / FILENAME).exists() else open_experiment(folder) as reader:
        if isinstance(reader, LogReader):
            reader.stand_still()
        objectives = given or _own_objectives(folder, reader.facts())
        trials = reader.trials()
        for trial in trials:
            # If no process runs the experiment, a trial with the status running was interrupted when the
            # process was killed.
            if owner is None and trial.status is TrialStatus.RUNNING:
                trial.status, trial.reason = TrialStatus.PENDING, CUT_OFF
        results = [result_of(trial, folder, None, None) for trial in trials]
        found = optuna_trials(results, reader, objectives, first_id=first_id)
    attributes = {
        "experiment": folder.name,
        "folder": str(folder),
        "state": "not running" if owner is None else f"runs in process {owner or 'unknown'}",
    }
    return _Study(stamp, objectives, found, attributes)


def _own_objectives(folder: Path, facts: Mapping[str, Any]) -> tuple[Objective, ...]:
    several = known_objectives(facts)
    if several:
        return several
    metric, mode = metric_and_mode(facts)
    if metric is None or mode is None:
        raise ConfigError(f"{folder.name} has no metric, so its trials have no value: give metric= and mode=")
    return (Objective(metric, mode),)
