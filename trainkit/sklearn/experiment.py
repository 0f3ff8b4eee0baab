"""Execution of the candidates as trials of the tuner, and their results."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from trainkit.errors import ConfigError, InfeasibleError, MetricError, TaskError, TrialError, message_of
from trainkit.runtime import api, session
from trainkit.runtime.failures import RemoteTraceback
from trainkit.sklearn.candidates import CandidateList, CandidateSource
from trainkit.sklearn.first_folds import LOOK_S, MOST_CANDIDATES, FirstFolds
from trainkit.sklearn.outcomes import (
    MORE_TO_COME,
    Outcome,
    PartialSearch,
    claim_folder,
    folds_in,
    known_of,
    outcomes_left_in,
    outcomes_of,
)
from trainkit.sklearn.shared_memory import open_copies, parts_to_copy
from trainkit.sklearn.trials import EvaluationTask, FoldByFoldTrial, FoldTrial, may_be_here
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.controller.rules import BY_SIGTERM, INTERRUPTED, Ending
from trainkit.tune.core.configs import CheckpointConfig
from trainkit.tune.core.resources import Bound, with_parameters
from trainkit.tune.experiment.run import ExperimentRun
from trainkit.tune.experiment.setup import make_space
from trainkit.tune.experiment.trainable import checked_trainable
from trainkit.tune.results.result import Result
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers.base import CONTINUE, NO_CONFIG, Decision, TrialScheduler, Verdict
from trainkit.tune.store.writer import ExperimentStore
from trainkit.tune.sync.storage import new_place

FoldPriority = tuple[int, int, int]
"""Numbers of a candidate's block, of its next fold, and of the candidate.

The fold with the lowest priority number is evaluated first.
"""


def fold_priority(place: int, folds_done: int, block: int) -> FoldPriority:
    """Return the priority of a candidate's next fold.

    Args:
        place: the candidate's position in the order of suggestion, from 0.
        folds_done: number of the candidate's finished folds.
        block: number of candidates in each block.
    """
    return place // block, folds_done, place


class FoldScheduler(TrialScheduler):
    """Scheduler that orders folds so that workers can share copies of the folds' samples.

    Candidates are taken in blocks, in the order of suggestion. All candidates of a block are evaluated on the
    first fold, then all on the second fold, and so on, so that most workers use the same fold:

        block 0:  a b c d on fold 0,  a b c d on fold 1, ...   block 1:  e f g h on fold 0, ...

    Workers don't wait for each other: a worker that finds no candidate for a fold starts the next fold. A
    candidate is paused after each fold, unless the same candidate would run next.

    Args:
        block: number of candidates in each block.
    """

    needs_metric: ClassVar[bool] = False
    label: ClassVar[str] = "the order of folds"

    def __init__(self, block: int) -> None:
        super().__init__()
        self.block = block
        self._places: dict[str, int] = {}
        self._done: dict[str, int] = {}

    @property
    def arguments(self) -> dict[str, Any]:
        return {"block": self.block}

    @property
    def pauses(self) -> bool:
        return True

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        del config
        self._places[trial_id] = len(self._places)
        self._done[trial_id] = 0

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        self._done[trial_id] = folds_in(result)
        return CONTINUE if result.get("done") else Decision(Verdict.PAUSE, {"folds": self._done[trial_id]})

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        """Let every trial continue, because `on_result` decides by the number of finished folds."""
        del trial_id, time, score
        return CONTINUE

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        waiting = [*pending, *paused]
        if not waiting:
            return None
        first = min(waiting, key=self._turn)
        if new and fold_priority(len(self._places), 0, self.block) < self._turn(first):
            return None
        return first

    def _turn(self, trial_id: str) -> FoldPriority:
        return fold_priority(self._places[trial_id], self._done[trial_id], self.block)


@dataclass(frozen=True)
class CandidateResult:
    """Outcome of a candidate.

    Attributes:
        parameters: parameters of the candidate.
        outcomes: outcome of each fold; None for folds that were not evaluated.
        iterations: number of iterations up to the last report.
        error: error of the candidate's trial; None if the trial did not fail.
        result: result of the candidate's trial.
    """

    parameters: Mapping[str, Any]
    outcomes: Sequence[Outcome | None]
    iterations: int
    error: BaseException | None
    result: Result

    @property
    def history(self) -> list[tuple[Mapping[str, Any], int]]:
        """Parameters with which the model was trained, in order, each with the number of iterations.

        The list has several entries if population based training has copied the model of a different
        candidate.
        """
        stretches = self.result.lineage()
        if len(stretches) == 1:
            return [(self.parameters, self.iterations)]
        return [(stretch.config, len(stretch)) for stretch in stretches]


@dataclass(frozen=True)
class SearchResult:
    """Outcome of a search.

    Attributes:
        candidates: candidates in the order of suggestion.
        grid: the tuner's results of the same trials.
        ended_by: the reason for an early end; None if the search was complete.
        task: the task on which the candidates were evaluated.
    """

    candidates: Sequence[CandidateResult]
    grid: ResultGrid
    ended_by: Ending | None
    task: EvaluationTask

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C or SIGTERM ended the search."""
        return self.ended_by in (INTERRUPTED, BY_SIGTERM)

    def finish(self) -> None:
        """Mark the search as complete. The next search with the same name then starts from the beginning."""
        if self.task.digest:
            with contextlib.closing(ExperimentStore.open(Path(self.grid.experiment_path))) as store:
                store.set_fact(MORE_TO_COME, False)

    @property
    def unfinished(self) -> PartialSearch | None:
        """Outcomes that the next `fit` on the same data can reuse, or None.

        Reading this property is slow, because the task is hashed.
        """
        known = known_of((each.result.metrics or {} for each in self.candidates), len(self.task.splits))
        return PartialSearch(self.task.digest or self.task.digested(), known) if known else None


HOW_TO_REQUEST = (
    "The resources of a candidate are set by sk_n_jobs, use_gpu, and tune_params={'resources_per_trial': ...}"
)


def evaluate(
    trainable: Bound,
    space: Mapping[str, Any] | None,
    tune: TuneConfig,
    run: RunConfig,
    *,
    folds: int,
    resumes: bool = True,
    cpus: int | None = None,
    before: PartialSearch | None = None,
) -> SearchResult:
    """Evaluate all candidates as trials, in a new session if no session is running.

    Args:
        trainable: trainable that makes its reports by `report_of`. The trainable is bound to resources and to
            a parameter `task`.
        space: search space; None if the searcher has its own space.
        tune: settings of the tuner.
        run: settings of the run; an experiment without a name or a path is kept in memory.
        folds: number of folds of a candidate.
        resumes: True if a trial reuses its candidate's outcomes from earlier searches.
        cpus: CPUs of a session that this function starts; None: all CPUs of this machine.
        before: outcomes of an earlier search, possibly on different data.

    Raises:
        InfeasibleError: the session has fewer resources than a trial needs.
        StoreError: the data of an earlier search with this name can't be read, or no new folder can be
            created.
    """
    task: EvaluationTask = trainable.parameters["task"]
    with contextlib.ExitStack() as stack:
        run, earlier = stack.enter_context(_with_own_name(run))
        if resumes:
            task = _with_known_outcomes(task, before, earlier)
        first = _first_folds(trainable, task, tune, run)
        if first is not None:
            task = stack.enter_context(_with_first_folds(task, first, cpus, tune.max_concurrent_trials))
        if first is not None and not first.left:
            # This folder is never created. Its name is random, so that no other program has a folder with
            # this name, which could contain commands.
            folder: Path | None = Path(tempfile.gettempdir(), f"trainkit-sklearn-{secrets.token_hex(8)}")
            bound = replace(with_parameters(trainable, task=task), here=True)
        else:
            stack.enter_context(session_for(task.estimator, cpus))
            folder = stack.enter_context(_temporary_folder(run))
            bound, tune, run = stack.enter_context(_with_shared_copies(task, trainable, tune, run))
        bound = checked_trainable(bound, run)
        whole = make_space(space, tune)
        if folder is None:
            experiment = ExperimentRun.new(bound, whole, tune, run)
        else:
            experiment = ExperimentRun(bound, whole, tune, run, folder, in_memory=True)
        if task.digest:
            experiment.note({MORE_TO_COME: True})
        experiment.restorable = False  # A search is resumed by another call of `fit`, not by a restore.
        try:
            grid = experiment.fit()
        except InfeasibleError as error:
            raise InfeasibleError(f"{error} {HOW_TO_REQUEST}") from error
        if first is not None and experiment.ended_by in (INTERRUPTED, BY_SIGTERM):
            first.leave()
    candidates = [
        CandidateResult(
            result.config,
            outcomes_of(result.metrics or {}, folds),
            int((result.metrics or {}).get("training_iteration", 0)),
            result.error,
            result,
        )
        for result in grid
    ]
    return SearchResult(candidates, grid, experiment.ended_by, task)


@contextlib.contextmanager
def _with_own_name(run: RunConfig) -> Iterator[tuple[RunConfig, tuple[Path, str] | None]]:
    """Yield `run` with a free name. Also yield the parent folder and name that repeated searches share."""
    if run.name is None:
        yield run, None
        return
    folder, _ = new_place(run.storage_path, run.storage_filesystem, run.name)
    with claim_folder(folder.parent, run.name) as own:
        yield replace(run, name=own), (folder.parent, run.name)


def _with_known_outcomes(
    task: EvaluationTask, before: PartialSearch | None, earlier: tuple[Path, str] | None
) -> EvaluationTask:
    """Return the task, with the outcomes of earlier searches as known outcomes."""
    if before is None and earlier is None:
        return task
    digest = task.digested()
    known = dict(before.known) if before is not None and before.task == digest else {}
    if earlier is None:
        return replace(task, known=known)
    # Candidate keys in stored experiments start with the digest of their task, so keys of a different task
    # never match.
    return replace(task, known=known | outcomes_left_in(*earlier, len(task.splits)), digest=digest)


def _preload_packages(estimator: Any) -> None:
    """Make the fork server import the scikit-learn packages of an estimator and its parts."""
    for each in (estimator, *estimator.get_params(deep=True).values()):
        for cls in type(each).__mro__:
            package = ".".join(cls.__module__.split(".")[:2])
            if package.startswith("sklearn.") and package not in session.PRELOADS["sklearn"]:
                session.register(package)


_sharing = 0
"""Number of running searches that share the session started by the first of them."""


@contextlib.contextmanager
def session_for(estimator: Any, cpus: int | None) -> Iterator[None]:
    """Use the current session, or start a session that stays ready for later searches.

    Args:
        estimator: estimator whose packages are imported before workers are forked.
        cpus: CPUs of a new session; None: all CPUs of this machine.
    """
    global _sharing
    _preload_packages(estimator)
    with session.starting:
        shared = _sharing > 0 or not api.is_initialized()
        if shared and not _sharing:
            api.init(engine="local", num_cpus=cpus or os.cpu_count())
        _sharing += shared
    end = api.shutdown  # after an interrupt, the session may be in an unknown state
    try:
        yield
        end = session.park
    except Exception:
        end = session.park
        raise
    finally:
        if shared:
            with session.starting:
                _sharing -= 1
                if not _sharing:
                    end()


def _first_folds(
    trainable: Bound, task: EvaluationTask, tune: TuneConfig, run: RunConfig
) -> FirstFolds | None:
    """Return the folds that this process evaluates before workers are ready; None if the search does not
    allow this.
    """
    searcher, current = tune.search_alg, session.running()
    listed = searcher.candidates if isinstance(searcher, CandidateList) else ()
    asked = {name: amount for name, amount in trainable.request({}).required_resources.items() if amount}
    if (
        trainable.trainable is FoldTrial
        and 0 < len(listed) <= MOST_CANDIDATES
        and not (run.name or run.storage_path or run.callbacks or run.log_to_file or task.known)
        and not (run.checkpoint_config.checkpoint_frequency or run.checkpoint_config.checkpoint_at_end)
        and asked == {"CPU": 1.0}
        and tune.reuse_actors
        and tune.trial_timeout_s is None
        and _to_the_end(task, tune, run)
        and (current is None or (current.name == "local" and not current.is_worker))
        and may_be_here(task, listed)
    ):
        return FirstFolds(task, listed, tune.seed)
    return None


def _is_there() -> None:
    """Do nothing; a result of this task shows that a worker is running."""


@contextlib.contextmanager
def _with_first_folds(
    task: EvaluationTask, first: FirstFolds, cpus: int | None, limit: int | None
) -> Iterator[EvaluationTask]:
    """Evaluate folds in this process as long as this is faster than to wait for workers; yield the task with
    the outcomes.
    """
    workers = min(cpus or os.cpu_count() or 1, limit or math.inf)
    with contextlib.ExitStack() as stack:
        around = stack.enter_context(contextlib.ExitStack())
        around.enter_context(first.running())
        there = session.running() is not None
        if not first.suffice(int(workers), there=there):
            stack.enter_context(session_for(task.estimator, cpus))
            if not there:
                begun = api.remote(_is_there).remote()
                while first.left and not api.wait([begun], timeout=LOOK_S)[0]:
                    # A thread evaluates folds while this thread waits for workers. If all folds are finished
                    # before a worker is ready, the search need not wait for workers.
                    continue
                first.suffice(int(workers), there=True)
        if first.stop():
            # If the current fold has ended, the context `around` can close now. If the fold is still running,
            # the stack closes `around` at the end of the search, which waits for the fold.
            around.close()
        yield replace(task, known={key: list(outcomes) for key, outcomes in first.known.items()})


BLOCK_ROUNDS = 4
"""Number of candidates in a block, divided by the number of candidates that run at once. With a larger block,
workers stay at the same fold for longer, but an early end leaves more candidates incomplete. If the number of
candidates is unknown, or if the search may end early, the quotient is 1 instead."""


@contextlib.contextmanager
def _with_shared_copies(
    task: EvaluationTask, trainable: Bound, tune: TuneConfig, run: RunConfig
) -> Iterator[tuple[Bound, TuneConfig, RunConfig]]:
    """Yield the trainable with its task, and the settings; workers share copies of large folds."""
    by_folds = trainable.trainable is FoldTrial
    here = session.engine().name == "local"  # other machines can't open files of this process
    parts = parts_to_copy(task.X, task.splits, views=by_folds) if here else []
    if not parts:
        bound = with_parameters(trainable, task=task)
        yield *(_in_tasks(bound, task, tune, run) if here and by_folds else (bound, tune)), run
        return
    with open_copies(parts) as copies:
        task = replace(task, copies=copies)
        bound = with_parameters(trainable, task=task)
        if by_folds and (task.candidates or math.inf) < _at_once(bound, tune):
            bound, tune = _in_tasks(bound, task, tune, run)
        elif by_folds:
            bound = replace(bound, trainable=FoldByFoldTrial)
            block = _at_once(bound, tune) * (BLOCK_ROUNDS if _to_the_end(task, tune, run) else 1)
            tune = replace(tune, scheduler=FoldScheduler(block))
            if run.checkpoint_config == CheckpointConfig(checkpoint_at_end=False):
                run = replace(run, checkpoint_config=replace(run.checkpoint_config, num_to_keep=1))
        yield bound, tune, run


AHEAD = 2
"""Number of candidates or folds that are started for each running candidate or fold.

Because of these additional folds, a free process finds its next fold at once.
"""

FEW = 20
"""Minimum number of candidates for each process after the first. With fewer candidates, several folds of a
candidate run at once, because processes would be idle for too large a share of the search."""


def _in_tasks(
    bound: Bound, task: EvaluationTask, tune: TuneConfig, run: RunConfig
) -> tuple[Bound, TuneConfig]:
    """Return settings that run folds as tasks in any process, unless each candidate needs its own process.

    A candidate needs its own process for checkpoints, for a time limit, and for a GPU, because only one
    process at a time should use a GPU.
    """
    request = bound.request({})
    saved = run.checkpoint_config.checkpoint_frequency or run.checkpoint_config.checkpoint_at_end
    if not tune.reuse_actors or tune.trial_timeout_s is not None or request.head.get("GPU") or saved:
        return bound, tune
    if task.candidates is None or not _to_the_end(task, tune, run) or not request.head:
        return replace(bound, ahead=1), tune
    fit, folds = _fit(bound), len(task.splits)
    limit = tune.max_concurrent_trials or fit
    # More candidates are started than can run at once, but only if their number is limited by resources and
    # not by the user.
    if fit <= limit:
        parts = max(1, min(folds, AHEAD * fit, math.ceil(FEW * (fit - 1) / task.candidates)))
        return replace(bound, ahead=AHEAD, parts=parts), replace(tune, max_concurrent_trials=None)
    parts = min(folds, max(1, limit // task.candidates))
    return replace(bound, ahead=1, parts=parts), replace(tune, max_concurrent_trials=limit // parts)


def _to_the_end(task: EvaluationTask, tune: TuneConfig, run: RunConfig) -> bool:
    """Return True if all candidates are known in advance and no early end is requested."""
    return task.candidates is not None and tune.time_budget_s is None and run.stop is None


def _at_once(bound: Bound, tune: TuneConfig) -> int:
    """Return the number of candidates that run at once in the current session."""
    fit = _fit(bound)
    return max(1, min(fit, tune.max_concurrent_trials or fit))


def _fit(bound: Bound) -> int:
    """Return the number of candidates that fit into the resources of the current session."""
    # The resources are read in this process, which knows them even if the session's node has just died.
    there = session.engine().cluster_resources()
    asked = {name: amount for name, amount in bound.request({}).required_resources.items() if amount}
    return min(int(there.get(name, 0.0) / amount) for name, amount in (asked or {"CPU": 1.0}).items())


@contextlib.contextmanager
def _temporary_folder(run: RunConfig) -> Iterator[Path | None]:
    """Yield a temporary folder for the files of trials; None if `run` names a permanent folder."""
    if run.name or run.storage_path:
        yield None
        return
    # The trials' files are not in the session's folder, because checkpoints of large models may not fit into
    # it.
    made = tempfile.TemporaryDirectory(prefix="trainkit-sklearn-")
    with api.linked(Path(made.name)), made:
        yield Path(made.name, "search")


def comparable_candidates(
    found: SearchResult,
    task: EvaluationTask,
    again: str,
    *,
    by_portions: bool,
    may_be_none: bool = False,
) -> list[CandidateResult]:
    """Return the candidates to compare; warn about the number of omitted candidates.

    Args:
        found: result of the search.
        task: the task on which the search evaluated the candidates.
        again: sentence about what a second `fit` does after an early end.
        by_portions: True if all folds are trained together, with a report for each portion.
        may_be_none: True allows an empty result, because earlier rounds have complete candidates.

    Raises:
        KeyboardInterrupt: Ctrl-C ended the search, and no candidate is complete.
        ConfigError: no candidate is complete for another reason.
    """
    complete, cut_off = complete_candidates(found.candidates, task, by_portions=by_portions)
    if found.ended_by is not None and task.candidates is not None:
        # candidates that have not started are also counted as cut off
        cut_off = max(cut_off, task.candidates - len(complete))
    if not complete and not may_be_none and found.interrupted:
        raise KeyboardInterrupt
    why = "" if found.ended_by is None else found.ended_by.why
    if not complete and not may_be_none:
        raise ConfigError(
            "no candidate was evaluated on all folds before the search ended "
            f"({why or 'it had no candidates'}): give the search more time; {again}"
        )
    if cut_off:
        are = "candidate was" if cut_off == 1 else "candidates were"
        warnings.warn(
            f"the search ended early ({why}): {cut_off} {are} incomplete and left out of cv_results_; "
            f"{again}",
            stacklevel=4,
        )
    return complete


def error_to_raise(
    candidates: Sequence[CandidateResult], error_score: object, *, by_portions: bool
) -> BaseException | None:
    """Return the error that `fit` must raise; None for no error.

    Args:
        candidates: candidates in the order of suggestion.
        error_score: `error_score` of the search; if "raise", the death of a process is an error too.
        by_portions: True if all folds are trained together, with a report for each portion.
    """
    for candidate in candidates:
        error = candidate.error
        if isinstance(error, TaskError) and error.cause is not None:
            cause = error.cause
            cause.__cause__ = RemoteTraceback(error.remote_traceback)
            return cause
        # Stop rules in the driver raise the following errors, for example a rule about a value that is not
        # reported.
        if isinstance(error, MetricError) or type(error) is TrialError:
            return error
        if error is not None and error_score == "raise":
            position = _position_of(candidate, by_portions=by_portions)
            error.args = (f"{message_of(error)}\nThe error occurred in {position}",)
            return error
    return None


def _position_of(candidate: CandidateResult, *, by_portions: bool) -> str:
    """Return text that names the candidate and its fold or portion at its last report."""
    folds, parameters = len(candidate.outcomes), dict(candidate.parameters)
    if by_portions or None not in candidate.outcomes:
        return f"all {folds} folds of the candidate {parameters!r}, after {candidate.iterations} portions"
    first = candidate.outcomes.index(None) + 1
    return (
        f"fold {first} of {folds}{'' if first == folds else ', or after it,'} of the candidate {parameters!r}"
    )


def warn_if_few(found: SearchResult, search: CandidateSource) -> None:
    """Warn if the searcher suggested fewer candidates than requested.

    For a random search, scikit-learn's own `ParameterSampler` issues the warning.
    """
    given, asked = len(found.candidates), search.num_samples
    if found.ended_by is None and given < asked:
        name = type(search.searcher).__name__
        warnings.warn(
            f"n_trials={asked}, but only {given} candidates were evaluated, because {name} suggested "
            "no further candidates. If the space has no others, TuneGridSearchCV evaluates the whole space",
            UserWarning,
            stacklevel=4,
        )


def complete_candidates(
    candidates: Sequence[CandidateResult], task: EvaluationTask, *, by_portions: bool
) -> tuple[list[CandidateResult], int]:
    """Return the candidates that have an outcome for each fold, and the number of other candidates.

    Args:
        candidates: candidates in the order of suggestion.
        task: the task on which the candidates were evaluated.
        by_portions: True if all folds are trained together, with a report for each portion.
    """
    complete = []
    for candidate in candidates:
        if candidate.error is not None:
            outcomes = [
                task.failure(split, candidate.error) if outcome is None or by_portions else outcome
                for split, outcome in enumerate(candidate.outcomes)
            ]
            candidate = replace(candidate, outcomes=outcomes)
        if None not in candidate.outcomes:
            complete.append(candidate)
    return complete, len(candidates) - len(complete)
