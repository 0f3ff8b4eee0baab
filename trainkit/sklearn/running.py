"""Runs the candidates of a search as trials, and says what each came to."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.runtime import api
from trainkit.sklearn.cv_results import Outcome, outcomes_of
from trainkit.tune.assembly import Experiment
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.control.plan import Ending
from trainkit.tune.forms import checked_trainable
from trainkit.tune.outcome.result import Result
from trainkit.tune.outcome.results import ResultGrid
from trainkit.tune.parts import make_space


@dataclass(frozen=True)
class Evaluated:
    """What a candidate came to.

    Attributes:
        parameters: of the candidate.
        outcomes: of each fold; None: it was not evaluated.
        iterations: that were reported.
        error: what its trial failed of; None: it did not.
        result: of its trial.
    """

    parameters: Mapping[str, Any]
    outcomes: Sequence[Outcome | None]
    iterations: int
    error: BaseException | None
    result: Result

    @property
    def history(self) -> list[tuple[Mapping[str, Any], int]]:
        """With which parameters its model was trained, and for how many iterations each, in this order.

        They change where population based training made it go on from another candidate's model.
        """
        stretches = self.result.lineage()
        if len(stretches) == 1:
            return [(self.parameters, self.iterations)]
        return [(stretch.config, len(stretch)) for stretch in stretches]


@dataclass(frozen=True)
class Finding:
    """What a search came to.

    Attributes:
        candidates: in the order suggested.
        grid: the same as a tuner has it.
        ended_by: what ended it early; None: nothing did.
    """

    candidates: Sequence[Evaluated]
    grid: ResultGrid
    ended_by: Ending | None


def evaluate(
    trainable: Any,
    space: Mapping[str, Any] | None,
    tune: TuneConfig,
    run: RunConfig,
    *,
    folds: int,
    cpus: int | None = None,
) -> Finding:
    """Run the trials to their end, in a session of their own where none is there.

    Args:
        trainable: that reports as `report_of` makes it, bound to its parameters and resources.
        space: to search; None: the searcher knows it.
        tune: what is searched for, and how.
        run: where it is kept; without a name or a path, in memory.
        folds: how many a candidate has.
        cpus: of the session, if it is begun here; None: this machine's.

    Raises:
        TrialError: with `fail_fast="raise"`, as the trial raised it.
        InfeasibleError: the session has less than a trial asks for.
    """
    with _session(cpus), _place(run) as folder:
        bound = checked_trainable(trainable, run)
        whole = make_space(space, tune)
        if folder is None:
            experiment = Experiment.new(bound, whole, tune, run)
        else:
            experiment = Experiment(bound, whole, tune, run, folder, in_memory=True)
        grid = experiment.fit()
        candidates = [
            Evaluated(
                result.config,
                outcomes_of(result.metrics or {}, folds),
                int((result.metrics or {}).get("training_iteration", 0)),
                result.error,
                result,
            )
            for result in grid
        ]
    return Finding(candidates, grid, experiment.ended_by)


@contextlib.contextmanager
def _session(cpus: int | None) -> Iterator[None]:
    """The session that there is, or one that ends with the search."""
    if api.is_initialized():
        yield
        return
    api.init(num_cpus=cpus or os.cpu_count())
    try:
        yield
    finally:
        api.shutdown()


@contextlib.contextmanager
def _place(run: RunConfig) -> Iterator[Path | None]:
    """A folder for what trials leave that is gone afterwards; None: `run` names one that stays."""
    if run.name or run.storage_path:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="trainkit-sklearn-") as folder:
        yield Path(folder, "search")
