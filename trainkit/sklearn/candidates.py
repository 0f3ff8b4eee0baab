"""Sources of candidates: a list or a searcher of the tuner; and a list's first folds, run in this process."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import random
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.model_selection import ParameterSampler
from sklearn.utils import check_random_state
from threadpoolctl import ThreadpoolController

from trainkit.clock import SYSTEM, thread_clock
from trainkit.errors import ConfigError, did_you_mean
from trainkit.sklearn import internals, spaces
from trainkit.sklearn.outcomes import Outcome, candidate_key
from trainkit.sklearn.trials import EvaluationTask, writable_copy
from trainkit.tune.core.seeds import trial_seed
from trainkit.tune.search import SEARCHERS
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.basic_variant import BasicVariantGenerator


class CandidateList(Searcher):
    """Searcher that suggests given candidates in order, each once.

    Args:
        candidates: parameters by name; values may be any objects, even estimators.
    """

    def __init__(self, candidates: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.candidates = candidates
        self._next = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with the same candidate objects, because `best_params_` must hold these objects."""
        other = type(self)(self.candidates)
        other._next = self._next
        return other

    @property
    def total_samples(self) -> int | None:
        return len(self.candidates)

    @property
    def whole(self) -> bool:
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._next == len(self.candidates):
            return self.FINISHED
        self._next += 1
        return dict(self.candidates[self._next - 1])

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Ignore the outcome of a candidate."""


class CandidateSource(NamedTuple):
    """Source of the candidates of a search, with their space.

    Attributes:
        searcher: the searcher that suggests candidates.
        space: `param_space` for the tuner; None if the searcher has it.
        num_samples: number of suggestions; -1: as many as the searcher has.
        learns: True if suggestions depend on the scores.
        seed: seed of everything random; None draws a seed.
    """

    searcher: Searcher
    space: Mapping[str, Any] | None = None
    num_samples: int = -1
    learns: bool = False
    seed: int | None = None

    @property
    def total(self) -> int | None:
        """Number of candidates; None if unknown."""
        return self.searcher.total_samples if self.known_beforehand else None

    @property
    def known_beforehand(self) -> bool:
        """True if the candidates are a list, which may contain duplicates."""
        return isinstance(self.searcher, CandidateList)


RANDOM = "random"
BOHB = "bohb"
LEARNING = {
    "bayesian": "BayesOptSearch",
    BOHB: "TuneBOHB",
    "hyperopt": "HyperOptSearch",
    "optuna": "OptunaSearch",
}
"""Learning searchers, by their names in tune-sklearn."""


def search_of(
    optimization: Any,
    distributions: Any,
    n_trials: int,
    random_state: Any,
    arguments: Mapping[str, Any] | None,
) -> CandidateSource:
    """Return a source of `n_trials` candidates.

    Args:
        optimization: a name in upper or lower case, or a searcher.
        distributions: the space in the user's form.
        n_trials: number of candidates.
        random_state: scikit-learn's argument; a `RandomState` advances, so the next search differs.
        arguments: arguments of the searcher's constructor.

    Raises:
        ConfigError: an argument is wrong, or the searcher can't search this space.
        MissingDependencyError: the searcher's package is not installed.
    """
    if isinstance(optimization, Searcher):
        if arguments:
            raise ConfigError(
                f"search_kwargs={dict(arguments)!r} are for a searcher that is named: this one, a "
                f"{type(optimization).__name__}, is made already; give them to its constructor"
            )
        learns = not isinstance(optimization, BasicVariantGenerator)
        space: Mapping[str, Any] | None = spaces.for_searcher(distributions)
        if getattr(optimization, "_space", None) is not None:
            if space:
                warnings.warn(
                    f"search_optimization: this {type(optimization).__name__} was made with a space of its "
                    "own, which is searched; param_distributions is not. Give it param_distributions={}, or "
                    "make it without a space",
                    stacklevel=4,
                )
            space = None
        return CandidateSource(optimization, space, n_trials, learns, seed_of(random_state))
    name = str(optimization).lower()
    if name == RANDOM:
        if arguments:
            raise ConfigError(f"search_kwargs={dict(arguments)!r}: the random search takes none")
        return _random(distributions, n_trials, random_state)
    if name not in LEARNING:
        names = [RANDOM, *LEARNING]
        raise ConfigError(
            f"search_optimization={optimization!r} is not one of {', '.join(names)}, nor a searcher such as "
            f"trainkit.tune.search.OptunaSearch().{did_you_mean(name, names)}"
        )
    cls: Any = SEARCHERS.find(LEARNING[name])
    given, seed = dict(arguments or {}), seed_of(random_state)
    if name == "bayesian":  # Its seed is fixed by default; the others use the tuner's seed.
        given.setdefault("random_state", seed)
    taken = inspect.signature(cls).parameters
    unknown = sorted(given.keys() - taken.keys())
    if unknown:
        raise ConfigError(
            f"search_kwargs: {LEARNING[name]} takes no {', '.join(unknown)}; it takes {', '.join(taken)}"
        )
    if name == "hyperopt":
        space = spaces.for_searcher(distributions, hyperopt=True)
        if any(map(spaces.is_expression, space.values())):
            return CandidateSource(cls(space=spaces.for_hyperopt(space), **given), None, n_trials, True, seed)
    return CandidateSource(cls(**given), spaces.for_searcher(distributions), n_trials, True, seed)


def _random(distributions: Any, n_trials: int, random_state: Any) -> CandidateSource:
    if spaces.is_declared(distributions):
        space = spaces.for_searcher(distributions)
        return CandidateSource(BasicVariantGenerator(), space, n_trials, False, seed_of(random_state))
    sampler = ParameterSampler(spaces.for_sampler(distributions), n_trials, random_state=random_state)
    # The draws of the candidates advance a generator exactly as in RandomizedSearchCV.
    seed = random_state if isinstance(random_state, numbers.Integral) else None
    return CandidateSource(CandidateList(list(sampler)), None, -1, False, None if seed is None else int(seed))


def seed_of(random_state: Any) -> int:
    """Return the seed of a search; None draws it from NumPy's global generator, like scikit-learn."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


# --- folds in the program itself ------------------------------------------------------------------

MOST_VALUES = 1 << 21
"""Size of X above which this process does not evaluate first folds."""

MOST_CANDIDATES = 100
"""Number of candidates above which this process does not evaluate first folds."""

MOST_S = 1.0
"""Seconds of work above which running workers always take over the rest."""

START_AFTER_S = 0.5
"""Seconds of work in this process, finished and remaining, for which no session is started."""

HAND_OVER_S = 0.1
"""Seconds that workers of a running session need for their first fold."""

LOOK_S = 0.02
"""Smallest number of seconds between two checks of the folds, each of which makes the folds wait."""

LEAVE_S = 0.1
"""Seconds to wait for an abandoned fold, which may take arbitrarily long."""

_HARMLESS = {"builtins", "numpy", "scipy", "sklearn"}
"""Packages whose code neither ends the process nor changes its state."""


def worth_starting(spent_s: float, folds_done: int, folds_left: int) -> bool:
    """Return True if this process should start workers while it evaluates folds itself.

    Args:
        spent_s: seconds for the finished folds and the current one.
        folds_done: number of finished folds, at least 1.
        folds_left: number of remaining folds of the search.
    """
    return spent_s * (1 + folds_left / folds_done) > START_AFTER_S


def worth_handing_over(fold_s: float, folds_left: int, workers: int) -> bool:
    """Return True if running workers should take over: the rest is long, or they are faster.

    Args:
        fold_s: seconds for a fold.
        folds_left: number of remaining folds of the search.
        workers: number of workers that evaluate folds at once.
    """
    here_s = fold_s * folds_left
    return here_s > min(MOST_S, HAND_OVER_S + fold_s * math.ceil(folds_left / workers))


def may_be_here(task: EvaluationTask, candidates: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if folds can't harm this process: all code is scikit-learn's, and the data is small.

    It returns False if this is unclear.
    """
    try:
        shape = getattr(task.X, "shape", None) or (len(task.X),)
        parts = (task.scorer, task.fit_params, task.score_params, candidates)
        data = {type(each).__module__.partition(".")[0] for each in (task.X, task.y)}
        return (
            math.prod(shape) <= MOST_VALUES
            and data <= _HARMLESS | {"pandas", "polars"}
            and task.callbacks is None
            and task.verbose < 2
            and all(map(_is_harmless, (task.estimator, *parts)))
        )
    except Exception:  # Raised by an object of the user; a worker will raise it too.
        return False


def _is_harmless(value: Any) -> bool:
    named = callable(value) and hasattr(value, "__name__")
    module = getattr(value, "__module__", None) if named else type(value).__module__  # C methods lack it.
    if str(module).partition(".")[0] not in _HARMLESS:
        return False
    if isinstance(value, Mapping):
        return all(map(_is_harmless, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_harmless, value))
    if isinstance(value, internals.BaseScorer):
        return _is_harmless(value._score_func) and _is_harmless(value._kwargs)
    if isinstance(value, internals.MultimetricScorer):
        return _is_harmless(value._scorers)
    if isinstance(value, type) or not hasattr(value, "get_params"):
        return True
    own = value.get_params(deep=False)
    return own.get("n_jobs") in (None, 1) and all(map(_is_harmless, own.values()))


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    """Return the loaded native libraries; finding them takes as long as a small fit.

    Args:
        modules: number of imported modules that could have loaded a library; the key of the cache.
    """
    del modules
    return ThreadpoolController()


class FirstFolds:
    """Folds that this process itself evaluates, in order, in a thread that may be abandoned.

    Only one search of a process does this at a time, because all threads share the global generators. During
    another search's folds this search evaluates none.

    Scores equal those of the workers: libraries use one thread, and the global generators are seeded equally.
    Their states are restored afterwards.

    An abandoned fold continues to its end beside the workers, because an error raised from outside could
    leave a library's lock held. Workers evaluate this fold later than others, so the end of the search seldom
    waits for the abandoned one. After Ctrl-C nothing waits for it; until its end it may still draw from the
    global generators.

    Args:
        task: the task to evaluate.
        candidates: all candidates, in order.
        seed: seed of the search; None if none was given.

    Attributes:
        known: outcomes of the candidates' first folds, by key.
    """

    in_use: ClassVar = threading.Lock()

    def __init__(
        self, task: EvaluationTask, candidates: Sequence[Mapping[str, Any]], seed: int | None
    ) -> None:
        self._task, self._candidates = task, candidates
        self._seed = secrets.randbits(32) if seed is None else seed
        self.known: dict[str, list[Outcome]] = {candidate_key(each, task.digest): [] for each in candidates}
        self._done, self._is_over, self._computed_s = 0, False, 0.0
        self._native = _libraries(sum(not name.startswith("trainkit.") for name in list(sys.modules)))
        self._waits = True
        self._clock: Callable[[], float] = lambda: 0.0
        self._started = SYSTEM.monotonic()
        self._ended, self._put_back = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="trainkit-first-folds", daemon=True)

    @property
    def left(self) -> int:
        """Number of unfinished folds."""
        return len(self._candidates) * len(self._task.splits) - self._done

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Evaluate folds inside the block; no fold starts after it."""
        if not self.in_use.acquire(blocking=False):
            self._ended.set()
            yield
            return
        try:
            state, numpys = random.getstate(), np.random.get_state()
            try:
                with warnings.catch_warnings(), self._native.limit(limits=1, user_api="blas"):
                    self._thread.start()
                    try:
                        yield
                    except Exception:
                        self._wait()
                        raise
                    self._wait()
            finally:
                self._is_over = True
                random.setstate(state)
                np.random.set_state(numpys)
        finally:
            self._put_back.set()
            if self._thread.ident is None:
                self.in_use.release()  # Otherwise the thread releases it after its last fold.
            elif self._ended.is_set():
                self._thread.join()

    def _wait(self) -> None:
        self._is_over = True
        if self._waits:
            self._ended.wait()

    def stop(self) -> bool:
        """Start no further fold, and abandon the current one; return True if it has already ended."""
        self._is_over = True
        return self._ended.wait(LEAVE_S)

    def leave(self) -> None:
        """Do not wait for the current fold at the end of the block."""
        self._waits = False

    def suffice(self, workers: int, *, there: bool) -> bool:
        """Wait until all folds are done or workers should take over; return True if all are done.

        Args:
            workers: number of workers that evaluate folds at once.
            there: True if the workers run already, or almost.
        """
        spent_s = 0.0
        while self.left and not self._ended.wait(max(LOOK_S, spent_s)):
            spent_s, done = self._spent_s(), max(1, self._done)  # A lower bound for the current fold.
            if there and worth_handing_over(spent_s / done, self.left, workers):
                break
            if not there and worth_starting(spent_s, done, self.left):
                break
        return self.left == 0

    def _spent_s(self) -> float:
        """Return the thread's CPU seconds, unaffected by load; at least 1/20 of the elapsed time."""
        with contextlib.suppress(OSError):  # The thread has just ended.
            self._computed_s = self._clock()
        return max(self._computed_s, (SYSTEM.monotonic() - self._started) / 20)

    def _run(self) -> None:
        try:
            self._clock = thread_clock()
            self._evaluate()
        finally:
            self._ended.set()
            self._put_back.wait()
            self.in_use.release()

    def _evaluate(self) -> None:
        if len(self.known) < len(self._candidates) or "" in self.known:
            return  # Some candidates have equal keys or none.
        task = replace(self._task, estimator=writable_copy(self._task.estimator))
        # A worker raises the error again, and `fit` reports its place.
        with contextlib.suppress(Exception), self._native.limit(limits=1, user_api="openmp"):
            for candidate, outcomes in enumerate(self.known.values()):
                parameters = {name: writable_copy(each) for name, each in self._candidates[candidate].items()}
                seed = trial_seed(self._seed, candidate)
                for split in range(len(task.splits)):
                    if self._is_over:
                        return
                    random.seed(trial_seed(seed, split))
                    np.random.seed(trial_seed(seed, split))
                    outcomes.append(task.outcome(parameters, split, candidate))
                    self._done += 1
