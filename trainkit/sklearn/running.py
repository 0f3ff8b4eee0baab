"""Runs the candidates of a search as trials, and says what each came to."""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trainkit.runtime import api, current
from trainkit.sklearn.copies import held, parts_to_copy
from trainkit.sklearn.cv_results import Outcome, outcomes_of
from trainkit.sklearn.evaluation import FoldByFoldTrial, FoldTrial, Task
from trainkit.sklearn.fold_order import FoldOrder
from trainkit.sklearn.resume import Unfinished, claimed, known_of, left_in
from trainkit.tune.assembly import Experiment
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.control.plan import BY_SIGTERM, INTERRUPTED, Ending
from trainkit.tune.forms import checked_trainable
from trainkit.tune.outcome.result import Result
from trainkit.tune.outcome.results import ResultGrid
from trainkit.tune.parts import make_space
from trainkit.tune.placement import Bound, with_parameters
from trainkit.tune.policies import CheckpointConfig
from trainkit.tune.storing.storage import new_place


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
        task: what the candidates were evaluated on.
    """

    candidates: Sequence[Evaluated]
    grid: ResultGrid
    ended_by: Ending | None
    task: Task

    @property
    def interrupted(self) -> bool:
        """Whether that was Ctrl-C."""
        return self.ended_by in (INTERRUPTED, BY_SIGTERM)

    @property
    def unfinished(self) -> Unfinished | None:
        """For the next `fit` on the same to go on with; None: it couldn't. The whole task is read for it."""
        known = known_of((each.result.metrics or {} for each in self.candidates), len(self.task.splits))
        return Unfinished(self.task.digest or self.task.digested(), known) if known else None


def evaluate(
    trainable: Bound,
    space: Mapping[str, Any] | None,
    tune: TuneConfig,
    run: RunConfig,
    *,
    folds: int,
    resumes: bool = True,
    cpus: int | None = None,
    before: Unfinished | None = None,
) -> Finding:
    """Run the trials to their end, in a session of their own where none is there.

    Args:
        trainable: that reports as `report_of` makes it, bound to its resources and to a `task`.
        space: to search; None: the searcher knows it.
        tune: what is searched for, and how.
        run: where it is kept; without a name or a path, in memory.
        folds: how many a candidate has.
        resumes: whether its trials take over what is known of their candidate.
        cpus: of the session, if it is begun here; None: this machine's.
        before: what an earlier call came to, be it on the same task or another.

    Raises:
        InfeasibleError: the session has less than a trial asks for.
        StoreError: what an earlier search of that name has left can't be read, or there can be no new one.
    """
    task: Task = trainable.parameters["task"]
    with contextlib.ExitStack() as stack:
        run, earlier = stack.enter_context(_named(run))
        if resumes:
            task = _going_on(task, before, earlier)
        stack.enter_context(_session(cpus))
        folder = stack.enter_context(_place(run))
        bound, tune, run = stack.enter_context(_sharing(task, trainable, tune, run))
        bound = checked_trainable(bound, run)
        whole = make_space(space, tune)
        if folder is None:
            experiment = Experiment.new(bound, whole, tune, run)
        else:
            experiment = Experiment(bound, whole, tune, run, folder, in_memory=True)
        experiment.restorable = False  # another `fit` is how a search goes on
        grid = experiment.fit()
        results = list(grid)
    candidates = [
        Evaluated(
            result.config,
            outcomes_of(result.metrics or {}, folds),
            int((result.metrics or {}).get("training_iteration", 0)),
            result.error,
            result,
        )
        for result in results
    ]
    return Finding(candidates, grid, experiment.ended_by, task)


@contextlib.contextmanager
def _named(run: RunConfig) -> Iterator[tuple[RunConfig, tuple[Path, str] | None]]:
    """The settings with a name that is this search's alone, and where others of it lie, if it has one."""
    if run.name is None:
        yield run, None
        return
    folder, _ = new_place(run.storage_path, run.storage_filesystem, run.name)
    with claimed(folder.parent, run.name) as own:
        yield replace(run, name=own), (folder.parent, run.name)


def _going_on(task: Task, before: Unfinished | None, earlier: tuple[Path, str] | None) -> Task:
    """The task with what is known of it."""
    if before is None and earlier is None:
        return task
    digest = task.digested()
    known = dict(before.known) if before is not None and before.task == digest else {}
    if earlier is None:
        return replace(task, known=known)
    # Keys from there begin with the digest, so those of other tasks stay strangers.
    return replace(task, known=known | left_in(*earlier, len(task.splits)), digest=digest)


class _Started:
    """The session that searches have begun, for all that run in it at once."""

    lock = threading.Lock()
    users = 0


@contextlib.contextmanager
def _session(cpus: int | None) -> Iterator[None]:
    """The session that there is, or one that ends with the last search in it."""
    with _Started.lock:
        if not _Started.users and api.is_initialized():
            shared = False
        else:
            shared = True
            if not _Started.users:
                api.init(num_cpus=cpus or os.cpu_count())
            _Started.users += 1
    try:
        yield
    finally:
        if shared:
            with _Started.lock:
                _Started.users -= 1
                if not _Started.users:
                    api.shutdown()


BLOCK_TURNS = 4
"""Candidates known beforehand are evaluated fold by fold in blocks of so many for each that runs at once. The
more there are, the longer workers are at the same fold; but an early end leaves so many incomplete. Where one
is asked for there is one for each."""


@contextlib.contextmanager
def _sharing(
    task: Task, trainable: Bound, tune: TuneConfig, run: RunConfig
) -> Iterator[tuple[Bound, TuneConfig, RunConfig]]:
    """What is run with the task; where folds of it are large, by workers that share copies of them."""
    by_folds = trainable.trainable is FoldTrial
    here = current.engine().name == "local"  # workers elsewhere see no files of this process
    parts = parts_to_copy(task.X, task.splits, views=by_folds) if here else []
    if not parts:
        bound = with_parameters(trainable, task=task)
        yield *(_in_tasks(bound, task, tune, run) if here and by_folds else (bound, tune)), run
        return
    with held(parts) as copies:
        bound = with_parameters(trainable, task=replace(task, copies=copies))
        if by_folds:
            bound = replace(bound, trainable=FoldByFoldTrial)
            block = _at_once(bound, tune) * (BLOCK_TURNS if _to_the_end(task, tune, run) else 1)
            tune = replace(tune, scheduler=FoldOrder(block))
            if run.checkpoint_config == CheckpointConfig():
                run = replace(run, checkpoint_config=CheckpointConfig(num_to_keep=1))
        yield bound, tune, run


AHEAD = 2
"""Candidates under way for each that runs: there is a fold for a process as soon as it has done one, and at
the end of a search the last candidates are evaluated by all processes, fold by fold."""


def _in_tasks(bound: Bound, task: Task, tune: TuneConfig, run: RunConfig) -> tuple[Bound, TuneConfig]:
    """Have folds run as tasks, unless a candidate is to have a process, and the time, to itself.

    So has one that asks for checkpoints, which is refused there, and one with a GPU, which one process should
    take at a time.
    """
    request = bound.request({})
    saved = run.checkpoint_config.checkpoint_frequency or run.checkpoint_config.checkpoint_at_end
    if not tune.reuse_actors or tune.trial_timeout_s is not None or request.head.get("GPU") or saved:
        return bound, tune
    limit = tune.max_concurrent_trials or math.inf
    # More than are to run at once can be under way only where resources say how many run.
    if _to_the_end(task, tune, run) and request.head and _fit(bound) <= limit:
        return replace(bound, ahead=AHEAD), replace(tune, max_concurrent_trials=None)
    return replace(bound, ahead=1), tune


def _to_the_end(task: Task, tune: TuneConfig, run: RunConfig) -> bool:
    """Whether all candidates are known beforehand, and nobody has asked for an early end."""
    return task.candidates is not None and tune.time_budget_s is None and run.stop is None


def _at_once(bound: Bound, tune: TuneConfig) -> int:
    """How many candidates run at once in the session that there is."""
    fit = _fit(bound)
    return max(1, min(fit, tune.max_concurrent_trials or fit))


def _fit(bound: Bound) -> int:
    """For how many the session that there is has resources."""
    there = current.engine().cluster_resources()  # known here, even where the node has just died
    asked = {name: amount for name, amount in bound.request({}).required_resources.items() if amount}
    return min(int(there.get(name, 0.0) / amount) for name, amount in (asked or {"CPU": 1.0}).items())


@contextlib.contextmanager
def _place(run: RunConfig) -> Iterator[Path | None]:
    """A folder for what trials leave that is gone afterwards; None: `run` names one that stays."""
    if run.name or run.storage_path:
        yield None
        return
    # Checkpoints of large models may need more room than there is where sessions have their folders.
    with tempfile.TemporaryDirectory(prefix="trainkit-sklearn-") as folder, api.linked(Path(folder)):
        yield Path(folder, "search")
