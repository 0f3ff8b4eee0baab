"""What became of each candidate, once nothing runs any more: done, failed, or cut off; pure.

done      every fold was evaluated
failed    its process died: the folds that are missing have failed, with `error_score` as their score; where
          folds are trained by portions, all together, all have
cut off   the search ended before it had: it is left out
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainkit.errors import TaskError
from trainkit.sklearn.cv_results import Outcome
from trainkit.sklearn.evaluation import Task
from trainkit.sklearn.running import Evaluated


def error_to_raise(candidates: Sequence[Evaluated], error_score: object) -> BaseException | None:
    """Return what must leave `fit`: as from scikit-learn, all that fitting and scoring let through.

    Args:
        candidates: in the order suggested.
        error_score: "raise": a process that died is an error too.
    """
    for candidate in candidates:
        error = candidate.error
        if isinstance(error, TaskError) and error.cause is not None:
            cause = error.cause
            cause.__cause__ = error.__cause__  # the traceback over there
            return cause
        if error is not None and error_score == "raise":
            return error
    return None


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
