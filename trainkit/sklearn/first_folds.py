"""Evaluation of a search's first folds in the program's own process, until workers take over."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import ThreadpoolController

from trainkit.clock import SYSTEM, thread_clock
from trainkit.sklearn.outcomes import Outcome, candidate_key
from trainkit.sklearn.trials import EvaluationTask, writable_copy
from trainkit.tune.core.seeds import trial_seed

MOST_CANDIDATES = 100
"""Maximum number of candidates of a search for which this process evaluates the first folds itself."""

MOST_S = 1.0
"""Seconds of remaining work above which workers that are running always take over."""

START_AFTER_S = 0.5
"""Maximum seconds of work, finished and remaining, that this process does without starting a session."""

HAND_OVER_S = 0.1
"""Seconds that workers of a running session need for their first fold."""

LOOK_S = 0.02
"""Minimum seconds between two checks of the progress, because each check delays the evaluation."""

FIRST_LOOK_S = 0.005
"""Seconds before the first check if workers are running, because they are idle until the check."""

LEAVE_S = 0.1
"""Seconds to wait for the end of the current fold before the fold is abandoned."""


def worth_starting(spent_s: float, first_s: float, folds_done: int, folds_left: int) -> bool:
    """Return True if this process should start workers while it evaluates folds itself.

    The estimate leaves out the first fold, because the first fold also loads libraries. The start of workers
    occupies a CPU for a second or two. During these seconds, a fit on all CPUs is several times slower.

    Args:
        spent_s: seconds for the finished folds and the current fold.
        first_s: seconds for the first fold.
        folds_done: number of finished folds.
        folds_left: number of remaining folds of the search.
    """
    left_s = (spent_s - first_s) / folds_done * folds_left if folds_done else 0.0
    return spent_s + left_s > START_AFTER_S


def worth_handing_over(fold_s: float, folds_left: int, workers: int) -> bool:
    """Return True if running workers should take over, because much work is left or workers are faster.

    Args:
        fold_s: seconds for a fold.
        folds_left: number of remaining folds of the search.
        workers: number of workers that evaluate folds at once.
    """
    here_s = fold_s * folds_left
    return here_s > min(MOST_S, HAND_OVER_S + fold_s * math.ceil(folds_left / workers))


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    """Return the loaded native libraries; cached, because finding libraries takes as long as a small fit.

    Args:
        modules: number of imported modules that could have loaded a library, used as the cache's key.
    """
    del modules
    return ThreadpoolController()


class FirstFolds:
    """Folds that this process itself evaluates, in order, in a thread that may be abandoned.

    Only one search of a process evaluates folds at a time, because all threads share the global random
    generators. While one search does so, a second search leaves all of its folds to workers.

    Scores equal the workers' scores, because libraries use one thread, and the global random generators are
    seeded equally. The generators' states are restored afterwards.

    An abandoned fold continues to its end while the workers run, because an error raised from outside could
    leave a library's lock held. Workers evaluate the same fold later than other folds, so the end of the
    search seldom waits for the abandoned fold. After Ctrl-C nothing waits for the abandoned fold, which may
    draw from the global random generators until its end.

    Args:
        task: the task to evaluate.
        candidates: all candidates, in order.
        seed: seed of the search; None if none was given.

    Attributes:
        known: outcomes of the candidates' first folds, by candidate key.
    """

    in_use: ClassVar = threading.Lock()

    def __init__(
        self, task: EvaluationTask, candidates: Sequence[Mapping[str, Any]], seed: int | None
    ) -> None:
        self._task, self._candidates = task, candidates
        self._seed = secrets.randbits(32) if seed is None else seed
        self.known: dict[str, list[Outcome]] = {candidate_key(each, task.digest): [] for each in candidates}
        self._done, self._is_over, self._computed_s, self._first_s = 0, False, 0.0, 0.0
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
        """Evaluate folds in a thread while the block runs; start no fold after the block."""
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
                # If the thread never started, the lock is released by the next line. A started thread
                # releases the lock itself after its last fold.
                self.in_use.release()
            elif self._ended.is_set():
                self._thread.join()

    def _wait(self) -> None:
        self._is_over = True
        if self._waits:
            self._ended.wait()

    def stop(self) -> bool:
        """Start no further fold; return False if the current fold did not end soon, and is abandoned."""
        self._is_over = True
        return self._ended.wait(LEAVE_S)

    def leave(self) -> None:
        """Do not wait for the current fold when the block of `running` ends."""
        self._waits = False

    def suffice(self, workers: int, *, there: bool) -> bool:
        """Wait until all folds are done or workers should take over; return True if all folds are done.

        Args:
            workers: number of workers that evaluate folds at once.
            there: True if the workers are running or almost ready.
        """
        spent_s, least_s = 0.0, FIRST_LOOK_S if there else LOOK_S
        while self.left and not self._ended.wait(max(least_s, spent_s)):
            # The time of the unfinished fold so far is a lower bound for its duration. The first fold may
            # need some additional milliseconds to load libraries.
            spent_s = self._spent_s()
            fold_s = (spent_s - self._first_s) / self._done if self._done else spent_s - LOOK_S / 2
            if there and worth_handing_over(fold_s, self.left, workers):
                break
            if not there and worth_starting(spent_s, self._first_s, self._done, self.left):
                break
        return self.left == 0

    def _spent_s(self) -> float:
        """Return the CPU seconds of the evaluating thread, which do not depend on other load, but at least
        1/20 of the elapsed time.
        """
        with contextlib.suppress(OSError):  # reading the time fails if the thread has just ended
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
            return  # outcomes are stored by key, and some candidates have the same key or no key
        task = replace(self._task, estimator=writable_copy(self._task.estimator))
        # The error is dropped, because a worker will raise it again, and `fit` will report where it occurred.
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
                    if not self._done:
                        self._first_s = self._spent_s()
                    self._done += 1
