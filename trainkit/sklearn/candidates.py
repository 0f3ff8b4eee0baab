"""Sources of candidates, a list or a searcher of the tuner; and the first folds of a list, in the program."""

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
        candidates: parameters by name; any objects, estimators too.
    """

    def __init__(self, candidates: Sequence[Mapping[str, Any]]) -> None:
        super().__init__()
        self.candidates = candidates
        self._next = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a copy with the same candidates: `best_params_` holds the objects that were given."""
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
        searcher: that suggests.
        space: for the tuner, as `param_space`; None: the searcher knows it.
        num_samples: how many suggestions; -1: as many as it has.
        learns: True if what it suggests depends on the scores.
        seed: of everything random; None: draws one.
    """

    searcher: Searcher
    space: Mapping[str, Any] | None = None
    num_samples: int = -1
    learns: bool = False
    seed: int | None = None

    @property
    def total(self) -> int | None:
        """Number of candidates; None if it is not known."""
        return self.searcher.total_samples if self.known_beforehand else None

    @property
    def known_beforehand(self) -> bool:
        """True if the candidates are a list, in which one may stand twice."""
        return isinstance(self.searcher, CandidateList)


RANDOM = "random"
BOHB = "bohb"
LEARNING = {
    "bayesian": "BayesOptSearch",
    BOHB: "TuneBOHB",
    "hyperopt": "HyperOptSearch",
    "optuna": "OptunaSearch",
}
"""Searchers that learn, by the names of tune-sklearn."""


def search_of(
    optimization: Any,
    distributions: Any,
    n_trials: int,
    random_state: Any,
    arguments: Mapping[str, Any] | None,
) -> CandidateSource:
    """Return a source of `n_trials` candidates.

    Args:
        optimization: a name, in any case, or a searcher.
        distributions: the space, as a user writes it.
        n_trials: candidates.
        random_state: as scikit-learn takes it; a `RandomState` goes on, so another search differs.
        arguments: of the searcher's constructor.

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
            f"search_optimization={optimization!r} is none of {', '.join(names)}, nor a searcher such as "
            f"trainkit.tune.search.OptunaSearch().{did_you_mean(name, names)}"
        )
    cls: Any = SEARCHERS.find(LEARNING[name])
    given, seed = dict(arguments or {}), seed_of(random_state)
    if name == "bayesian":  # it has a seed by default; the others take the tuner's
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
    # A generator is advanced by exactly the draws of the candidates, as in RandomizedSearchCV.
    seed = random_state if isinstance(random_state, numbers.Integral) else None
    return CandidateSource(CandidateList(list(sampler)), None, -1, False, None if seed is None else int(seed))


def seed_of(random_state: Any) -> int:
    """Return the seed of a search; None draws it from NumPy's global generator, as in scikit-learn."""
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


# --- folds in the program itself ------------------------------------------------------------------

MOST_VALUES = 1 << 21
"""Size of an X beyond which a first fold is not tried in the program."""

MOST_CANDIDATES = 100
"""Candidates beyond which it is not tried either."""

MOST_S = 1.0
"""Seconds of work beyond which workers that are there always do the rest."""

START_AFTER_S = 0.5
"""Seconds of work in the program, done and to come, for which no session is started."""

HAND_OVER_S = 0.1
"""Seconds that workers of a session which is there need for their first fold."""

LOOK_S = 0.02
"""Seconds between two looks at the folds, at least: each look makes them wait."""

LEAVE_S = 0.1
"""Seconds to wait for a fold that is left, which may take as long as it likes."""

_HARMLESS = {"builtins", "numpy", "scipy", "sklearn"}
"""Packages whose code neither ends a process nor leaves anything behind in it."""


def worth_starting(spent_s: float, folds_done: int, folds_left: int) -> bool:
    """Return True if the program should start workers while it evaluates folds itself.

    Args:
        spent_s: seconds for the folds that are done and the one under way.
        folds_done: 1 at least.
        folds_left: of the search.
    """
    return spent_s * (1 + folds_left / folds_done) > START_AFTER_S


def worth_handing_over(fold_s: float, folds_left: int, workers: int) -> bool:
    """Return True if workers that are there should do the rest: it is much, or they are faster.

    Args:
        fold_s: seconds for a fold.
        folds_left: of the search.
        workers: that evaluate folds at once.
    """
    here_s = fold_s * folds_left
    return here_s > min(MOST_S, HAND_OVER_S + fold_s * math.ceil(folds_left / workers))


def may_be_here(task: EvaluationTask, candidates: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if folds can't harm the program: all code is scikit-learn's, and the data is small.

    It returns False where that can't be told.
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
    except Exception:  # of an object of the user's, which a worker meets again
        return False


def _is_harmless(value: Any) -> bool:
    named = callable(value) and hasattr(value, "__name__")
    module = getattr(value, "__module__", None) if named else type(value).__module__  # methods of C have none
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
    """Return the native libraries that are loaded; finding them takes as long as a small fit.

    Args:
        modules: number of imported modules that could have loaded a library.
    """
    del modules
    return ThreadpoolController()


class FirstFolds:
    """Folds that the program evaluates itself, in order, in a thread that can be left alone.

    Only one search of the program does so at a time, as all threads share the global generators. While
    another does, none is evaluated.

    Scores are those of the workers: libraries have one thread, and the global generators, which are put back,
    are seeded as there.

    A fold that is left goes on to its end, beside the workers: an error raised from outside could leave a
    lock of a library taken. Workers begin that fold later, so the end of the search seldom waits for it.
    Nothing waits for it after Ctrl-C; until it has ended it may still draw from the global generators.

    Args:
        task: what is evaluated.
        candidates: all, in order.
        seed: of the search; None: none was given.

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
        """Number of folds that are not done."""
        return len(self._candidates) * len(self._task.splits) - self._done

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Evaluate folds from here on; no other begins once the block has ended."""
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
                self.in_use.release()  # otherwise the thread does so, after its last fold
            elif self._ended.is_set():
                self._thread.join()

    def _wait(self) -> None:
        self._is_over = True
        if self._waits:
            self._ended.wait()

    def stop(self) -> bool:
        """Begin no further fold, and leave the one under way; return True if that is done already."""
        self._is_over = True
        return self._ended.wait(LEAVE_S)

    def leave(self) -> None:
        """Have the end of the block not wait for the fold under way."""
        self._waits = False

    def suffice(self, workers: int, *, there: bool) -> bool:
        """Wait until all folds are done, or workers are better at it; return True if all are.

        Args:
            workers: that evaluate folds at once.
            there: they are, or nearly.
        """
        spent_s = 0.0
        while self.left and not self._ended.wait(max(LOOK_S, spent_s)):
            spent_s, done = self._spent_s(), max(1, self._done)  # the fold under way takes so long at least
            if there and worth_handing_over(spent_s / done, self.left, workers):
                break
            if not there and worth_starting(spent_s, done, self.left):
                break
        return self.left == 0

    def _spent_s(self) -> float:
        """Return the seconds computed, which a busy machine doesn't change; some at least, if it waits."""
        with contextlib.suppress(OSError):  # the thread has just ended
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
            return  # candidates that can't be told apart
        task = replace(self._task, estimator=writable_copy(self._task.estimator))
        # What is raised, a worker meets again, and `fit` says where.
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
