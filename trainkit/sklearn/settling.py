"""What became of each candidate, once nothing runs any more: done, failed, or cut off.

done      every fold was evaluated
failed    its process died: the folds that are missing have failed, with `error_score` as their score; where
          folds are trained by portions, all together, all have
cut off   the search ended before it had: it is left out
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from trainkit.errors import ConfigError, MetricError, TaskError, TrialError, message_of
from trainkit.runtime.failures import RemoteTraceback
from trainkit.sklearn.candidates import Search
from trainkit.sklearn.cv_results import Outcome
from trainkit.sklearn.evaluation import Task
from trainkit.sklearn.running import Evaluated, Finding


def compared(found: Finding, task: Task, again: str, *, by_portions: bool) -> list[Evaluated]:
    """Return the candidates to compare; a warning says how many are left out.

    Args:
        found: what the search came to.
        task: what it evaluated them on.
        again: what a second `fit` does after one that was ended early, in words.
        by_portions: whether all folds are trained together, a portion each report.

    Raises:
        KeyboardInterrupt: it was Ctrl-C, and there is none.
        ConfigError: there is none for another reason.
    """
    complete, cut_off = settled(found.candidates, task, by_portions=by_portions)
    if found.ended_by is not None and task.candidates is not None:
        cut_off = max(cut_off, task.candidates - len(complete))  # some were not even begun
    if not complete and found.interrupted:
        raise KeyboardInterrupt
    why = "" if found.ended_by is None else found.ended_by.why
    if not complete:
        raise ConfigError(
            f"no candidate was evaluated on all folds before the search ended ({why or 'it had none'}): "
            f"give it more time; {again}"
        )
    if cut_off:
        are = "candidate was" if cut_off == 1 else "candidates were"
        warnings.warn(
            f"the search ended before all was evaluated ({why}): {cut_off} {are} not complete and left out "
            f"of cv_results_; {again}",
            stacklevel=4,
        )
    return complete


def error_to_raise(
    candidates: Sequence[Evaluated], error_score: object, *, by_portions: bool
) -> BaseException | None:
    """Return what must leave `fit`: as from scikit-learn, all that fitting and scoring let through.

    Args:
        candidates: in the order suggested.
        error_score: "raise": a process that died is an error too.
        by_portions: whether all folds are trained together, a portion each report.
    """
    for candidate in candidates:
        error = candidate.error
        if isinstance(error, TaskError) and error.cause is not None:
            cause = error.cause
            cause.__cause__ = RemoteTraceback(error.remote_traceback)
            return cause
        # No process: a rule that failed in the driver, or waits for what is not reported.
        if isinstance(error, MetricError) or type(error) is TrialError:
            return error
        if error is not None and error_score == "raise":
            error.args = (f"{message_of(error)}\nIt was at {_place_of(candidate, by_portions=by_portions)}",)
            return error
    return None


def _place_of(candidate: Evaluated, *, by_portions: bool) -> str:
    """Which candidate, and how far it was when its process died, as far as it has reported."""
    folds, parameters = len(candidate.outcomes), dict(candidate.parameters)
    if by_portions or None not in candidate.outcomes:
        return f"all {folds} folds of the candidate {parameters!r}, after {candidate.iterations} portions"
    first = candidate.outcomes.index(None) + 1
    return (
        f"fold {first} of {folds}{'' if first == folds else ', or after it,'} of the candidate {parameters!r}"
    )


def warn_of_few(found: Finding, search: Search) -> None:
    """Say so where a searcher that learns, or a space of the tuner's, has given fewer candidates than asked.

    Of a random search scikit-learn's own `ParameterSampler` says it.
    """
    given, asked = len(found.candidates), search.num_samples
    if found.ended_by is None and given < asked:
        name = type(search.searcher).__name__
        warnings.warn(
            f"n_trials={asked}, and {given} candidates were evaluated: {name} had no other to suggest. Where "
            "the space holds no more, TuneGridSearchCV evaluates all of it",
            UserWarning,
            stacklevel=4,
        )


def settled(candidates: Sequence[Evaluated], task: Task, *, by_portions: bool) -> tuple[list[Evaluated], int]:
    """Return the candidates that have an outcome for each fold, and how many are left out.

    Args:
        candidates: in the order suggested.
        task: what they were evaluated on.
        by_portions: whether all folds are trained together, a portion each report.
    """
    complete = []
    for candidate in candidates:
        if candidate.error is not None:
            known = [None] * len(candidate.outcomes) if by_portions else candidate.outcomes
            candidate = replace(candidate, outcomes=_filled(known, candidate.error, task))
        if None not in candidate.outcomes:
            complete.append(candidate)
    return complete, len(candidates) - len(complete)


def _filled(known: Sequence[Outcome | None], error: BaseException, task: Task) -> list[Outcome]:
    return [task.failure(split, error) if outcome is None else outcome for split, outcome in enumerate(known)]
