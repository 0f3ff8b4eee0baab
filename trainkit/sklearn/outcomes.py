"""Outcomes of folds: their form as reported metrics, the keys of candidates, and interrupted searches.

{"test_scores": {"auc": .9}, "fit_time": .1, ...} of fold 2  <->  split2_test_auc = .9, split2_fit_time = .1
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_CLASS

from trainkit.errors import SerializationError, StoreError
from trainkit.runtime.serialize import pack
from trainkit.tune.store.ownership import make_private
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME

Outcome: TypeAlias = dict[str, Any]
"""Outcome of a fold in scikit-learn's form. `test_scores` and, optionally, `train_scores` are a number or a
dict by scorer. `fit_time` and `score_time` are seconds. `fit_error` is a traceback or None. The outcome also
has `n_test_samples`."""

SINGLE = "score"
"""Name in `cv_results_` of a scorer without a name."""

_BY_NAME = "scores_by_name"
"""Suffix of a metric that marks a fold whose scores are a dict with `SINGLE` as the only key."""


def metric_name(scorer: str = SINGLE) -> str:
    """Return the name of the metric with the mean of a scorer's test scores over all folds."""
    return f"average_test_{scorer}"


OBJECTIVE = "objective"
"""Name, from tune-sklearn, of the metric with the mean score that compares candidates."""


def report_of(outcomes: Sequence[Outcome | None], decisive: str | None = None) -> dict[str, Any]:
    """Return the metrics that a trial reports about its candidate.

    Args:
        outcomes: outcomes of all folds; None for unfinished folds. The mean scores are NaN until all folds
            are finished, so that no candidate leads because its easiest folds are finished first.
        decisive: metric that compares candidates; None: the metric of the only scorer.
    """
    report: dict[str, Any] = {}
    tests: dict[str, list[float]] = {}
    for split, outcome in enumerate(outcomes):
        if outcome is None:
            continue
        for scorer, score in _by_scorer(outcome["test_scores"]).items():
            tests.setdefault(scorer, []).append(score)
            report[f"split{split}_test_{scorer}"] = score
        if isinstance(outcome["test_scores"], Mapping) and set(outcome["test_scores"]) == {SINGLE}:
            report[f"split{split}_{_BY_NAME}"] = True
        for scorer, score in _by_scorer(outcome.get("train_scores", {})).items():
            report[f"split{split}_train_{scorer}"] = score
        for key in ("fit_time", "score_time", "n_test_samples"):
            report[f"split{split}_{key}"] = outcome[key]
        if outcome["fit_error"] is not None:
            report[f"split{split}_fit_error"] = outcome["fit_error"]
    whole = None not in outcomes
    means = {
        metric_name(scorer): math.fsum(scores) / len(scores) if whole else math.nan
        for scorer, scores in tests.items()
    }
    if decisive is None and len(means) == 1:
        decisive = next(iter(means))
    objective = {OBJECTIVE: means[decisive]} if decisive in means else {}
    return means | objective | report


def folds_in(report: Mapping[str, Any]) -> int:
    """Return the number of folds that a report contains."""
    return next(split for split in itertools.count() if f"split{split}_fit_time" not in report)


def outcomes_of(report: Mapping[str, Any], folds: int) -> list[Outcome | None]:
    """Return the outcome of each fold from a candidate's last report; None for an unfinished fold.

    Args:
        report: a report from `report_of`.
        folds: number of all folds.
    """
    values: dict[str, dict[str, Any]] = {f"split{split}": {} for split in range(folds)}
    for key, value in report.items():
        fold, _, name = key.partition("_")
        if fold in values:
            values[fold][name] = value
    return [_outcome_of(each) for each in values.values()]


def _outcome_of(values: Mapping[str, Any]) -> Outcome | None:
    if "fit_time" not in values:
        return None
    outcome: Outcome = {key: values[key] for key in ("fit_time", "score_time", "n_test_samples")}
    outcome["fit_error"] = values.get("fit_error")
    for kind in ("test_", "train_"):
        scores = {key.removeprefix(kind): value for key, value in values.items() if key.startswith(kind)}
        if scores:
            single = set(scores) == {SINGLE} and _BY_NAME not in values
            outcome[f"{kind}scores"] = scores[SINGLE] if single else scores
    return outcome


def rank_lowest_first(results: dict[str, Any], scorer: str) -> None:
    """Change the ranks in `cv_results_` so that the lowest mean score is best.

    As in scikit-learn, candidates with equal mean scores share the better rank, and candidates with the mean
    score NaN share the worst rank.

    Args:
        results: `cv_results_`, changed in place.
        scorer: the scorer whose ranks are changed.
    """
    means = results[f"mean_test_{scorer}"]
    missing = np.isnan(means)
    ranks = np.searchsorted(np.sort(means[~missing]), means[~missing]) + 1
    results[f"rank_test_{scorer}"] = np.full(len(means), len(ranks) + 1, dtype=np.int32)
    results[f"rank_test_{scorer}"][~missing] = ranks


def _by_scorer(scores: Any) -> dict[str, float]:
    return dict(scores) if isinstance(scores, Mapping) else {SINGLE: scores}


CANDIDATE_KEY = "candidate_key"
"""Name of the metric that contains the candidate's key."""

KnownOutcomes = Mapping[str, Sequence[Outcome]]
"""Outcomes of a candidate's first folds, by the candidate's key."""


def digest(value: Any, what: str) -> str:
    """Return a digest of the pickled `value`; arrays are read without a copy.

    Raises:
        SerializationError: `value` can't be pickled.
    """
    packed = pack(value, what)
    payload = bytes(packed.payload)
    # The pickle of a class of `__main__` contains a random name, which is removed because it differs between
    # program runs.
    for drawn in list(_DYNAMIC_CLASS_TRACKER_BY_CLASS.values()):
        payload = payload.replace(drawn.encode(), b"")
    found = hashlib.blake2b(payload, digest_size=16)
    for buffer in packed.buffers:
        found.update(buffer)
    return found.hexdigest()


def candidate_key(parameters: Mapping[str, Any], task: str = "") -> str:
    """Return a key that identifies a candidate; '' if the candidate's parameters can't be pickled.

    Args:
        parameters: parameters of the candidate.
        task: digest of the task, for keys that are stored beside keys of other tasks.
    """
    try:
        return task + digest(dict(parameters), "the parameters")
    # Without a key, a later search evaluates this candidate again, which is harmless.
    except SerializationError:
        return ""


# --- searches that were cut off -------------------------------------------------------------------


@dataclass(frozen=True)
class PartialSearch:
    """Outcomes of the candidates of an interrupted search.

    Attributes:
        task: digest of the task on which the candidates were evaluated.
        known: outcomes of the candidates' first folds, by candidate key.
    """

    task: str
    known: KnownOutcomes


def known_of(reports: Iterable[Mapping[str, Any]], folds: int) -> dict[str, list[Outcome]]:
    """Return, by candidate key, the outcomes that each candidate has reported for the folds before its first
    missing or failed fold.

    Failed fits are excluded, because they may succeed in the next search.
    """
    known: dict[str, list[Outcome]] = {}
    for report in reports:
        key = report.get(CANDIDATE_KEY)
        outcomes: list[Outcome] = []
        for outcome in outcomes_of(report, folds):
            if outcome is None or outcome["fit_error"] is not None:
                break
            outcomes.append(outcome)
        if key and len(outcomes) > len(known.get(key, ())):
            known[key] = outcomes
    return known


@contextlib.contextmanager
def claim_folder(parent: Path, name: str) -> Iterator[str]:
    """Create a folder for the next experiment called `name`: search, search_2, search_3 ...

    The folder is created immediately, so that searches that start at the same time get different folders. If
    the folder is still empty at the end of the block, it is removed.

    Raises:
        StoreError: the folder can't be created.
    """
    folder = _new_folder(parent, name)
    try:
        yield folder.name
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _new_folder(parent: Path, name: str) -> Path:
    try:
        return next(parent / each for each in _names(name) if _is_made(parent / each))
    except OSError as error:
        raise StoreError(f"the experiment's folder {parent / name} cannot be created: {error}") from error


def _is_made(folder: Path) -> bool:
    """Create the folder; return False if it already exists."""
    try:
        make_private(folder, exist_ok=False)
    except FileExistsError:
        return False
    return True


MORE_TO_COME = "more_to_come"
"""Name of the stored fact that is true if a further round, or the fit on all data, must follow the
experiment.
"""


def outcomes_left_in(parent: Path, name: str, folds: int) -> dict[str, list[Outcome]]:
    """Return the outcomes of the experiments called `name` since the last completed search.

    Raises:
        StoreError: an experiment's file is damaged, or was not written by trainkit.
    """
    made = itertools.takewhile(lambda folder: folder.exists(), (parent / each for each in _names(name)))
    # folders without this file are empty
    folders = [folder for folder in made if (folder / FILENAME).exists()]
    reports: list[Mapping[str, Any]] = []
    for folder in reversed(folders):
        with ExperimentReader(folder) as reader:
            facts, trials = reader.facts(), reader.trials()
        over = len(trials) >= (facts.get("total_samples") or 0) and not facts.get(MORE_TO_COME)
        if over and all(trial.status.is_finished for trial in trials):
            break
        reports += [trial.last_result for trial in trials]
    return known_of(reports, folds)


def _names(name: str) -> Iterator[str]:
    return itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
