"""Executor that runs trials on simulated workers with a virtual clock, without processes."""

from __future__ import annotations

import heapq
import inspect
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeVar

from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.checkpoint import checkpoint_dirname
from trainkit.tune.core.checks import is_finite, is_whole, require
from trainkit.tune.core.metrics import plain_metrics
from trainkit.tune.core.seeds import simulation_generator, trial_draws
from trainkit.tune.core.trial import Failure, Trial
from trainkit.tune.store.reader import SIMULATED

T = TypeVar("T")


class Kind(IntEnum):
    """Kind of a future event; the numbers order events at the same time."""

    FINISH = 0
    FAILURE = 1
    START = 2


FINISH, FAILURE, START = Kind.FINISH, Kind.FAILURE, Kind.START


class Agenda(Generic[T]):
    """Heap of future events, ordered by time, kind and order of insertion.

    Attributes:
        now: the virtual time in seconds; it advances when events are taken, and never decreases.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, int, T]] = []
        self._number = 0

    def put(self, time: float, kind: Kind, what: T) -> None:
        """Schedule `what` at `time`, which must not be before `now`."""
        self._number += 1
        heapq.heappush(self._heap, (time, kind, self._number, what))

    @property
    def next_time(self) -> float | None:
        """Time of the next event; None: no event is left."""
        return self._heap[0][0] if self._heap else None

    def take(self) -> list[T]:
        """Advance the clock to the next event, and return all events of this time that belong together.

        The returned events are either all ends of work (results and failures), or all starts. So new work is
        chosen only after all results of the same time are known.
        """
        heap = self._heap
        time, first, _, what = heapq.heappop(heap)
        self.now = time
        batch = [what]
        starts = first is START
        while heap and heap[0][0] == time and (heap[0][1] is START) is starts:
            batch.append(heapq.heappop(heap)[3])
        return batch

    def wait_until(self, time: float) -> None:
        """Advance the clock to `time`; no event may be earlier."""
        self.now = max(self.now, time)


Script = Sequence[tuple[float, int]]
"""Failures at given times, as pairs (seconds, number of the trial)."""

_BLOCK = 256
"""Number of random numbers drawn at once; single draws would take longer than the rest of a step."""


def slowdowns(std: float, seed: int) -> Iterator[float]:
    """Yield random factors on the durations of attempts, without end: 1 + |N(0, std)|.

    Source: Li et al. 2020, arXiv:1810.05934, appendix A.1.

    Args:
        std: standard deviation of the normal distribution; 0: durations stay unchanged.
        seed: seed of the experiment.
    """
    rng = simulation_generator(seed, "stragglers")
    while True:
        yield from (1.0 + abs(rng.normal(0.0, std, _BLOCK))).tolist()


class Failures:
    """Random or given times at which attempts fail.

    Args:
        given: probability that a running attempt fails within a second, constant over time; or a `Script` of
            failures.
        seed: seed of the experiment.

    Raises:
        ConfigError: `given` is neither a probability nor a script.
    """

    def __init__(self, given: float | Script, seed: int) -> None:
        self._draws: Iterator[float] | None = None
        self._script: defaultdict[int, list[float]] = defaultdict(list)
        if isinstance(given, (int, float)):
            require(0 <= given < 1, f"failures={given!r}: give a probability per second, from 0 to below 1")
            if given > 0:
                self._draws = self._drawn(seed, -1.0 / math.log1p(-given))
            return
        for entry in _entries(given):
            self._script[entry[1]].append(float(entry[0]))
        for times in self._script.values():
            times.sort()

    @staticmethod
    def _drawn(seed: int, mean_s: float) -> Iterator[float]:
        rng = simulation_generator(seed, "failures")
        while True:
            yield from rng.exponential(mean_s, _BLOCK).tolist()

    def due(self, trial: int, now: float) -> float:
        """Return the time at which an attempt that begins at `now` fails; infinity: never.

        Failures in the script at or before `now` are ignored.
        """
        if self._draws is not None:
            return now + next(self._draws)
        if not self._script:
            return math.inf
        times = self._script.get(trial, [])
        place = bisect_left(times, math.nextafter(now, math.inf))
        return times[place] if place < len(times) else math.inf


def _entries(given: object) -> Script:
    words = f"failures={given!r:.100}: give a probability per second, or pairs (seconds, number of the trial)"
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(words)
    for entry in given:
        if not (isinstance(entry, Sequence) and len(entry) == 2):
            raise ConfigError(words)
        time, trial = entry
        require(is_finite(time) and time >= 0 and is_whole(trial) and trial >= 0, words)
    return given


COST = "time_this_iter_s"
WORKER_FAILED = Failure("WorkerFailed", "the simulated worker failed")

PATIENCE = 10_000
"""Number of iterations after which a trial without a known end counts as endless."""

FAILURES = 1000
"""Number of consecutive failed attempts after which unlimited retries count as endless."""

_Objective = Callable[..., Mapping[str, Any]]


@dataclass(slots=True)
class _Run:
    """Attempt of a trial that has a simulated worker.

    Attributes:
        factor: factor on the durations of iterations.
        fails_at: time at which the attempt fails, if it still runs then.
        since: iteration from which the attempt resumed.
        spent_s: duration of this attempt so far; `before_s` is the total duration of previous attempts.
        state: state that the objective returned last.
        saved_at: iteration of the last simulated checkpoint.
    """

    trial: Trial
    attempt: int
    worker: int
    factor: float
    fails_at: float
    since: int
    iteration: int
    before_s: float
    spent_s: float = 0.0
    state: Any = None
    saved_at: int = -1


@dataclass(eq=False, kw_only=True)
class SimulatedExecutor:
    """Executor of simulated trials.

    Attributes:
        objective: function that maps configuration, iteration and generator to metrics. An objective with a
            parameter `state` also receives the value that its last report had under the key "state".
        workers: number of concurrent attempts.
        agenda: heap of future events.
        slowdowns: random factors on the durations of attempts.
        failures: times at which attempts fail.
        seed: seed of the experiment.
        resume: True: trials resume where they stopped; False: trials restart from the beginning each time.
        endless: True if no known rule ends trials, so that a trial with very many iterations is an error.
        relentless: True if every failure leads to a retry, so that a long series of failures is an error.
        timed: True if the experiment ends at a given time. A long series of failures that take time is then
            no error.
        marks: True: every report has a simulated checkpoint; False: only if the controller requests a
            checkpoint.
        errors: exceptions of the objective, by trial and attempt.

    Raises:
        ConfigError: the objective can't be called with `(config, training_iteration, rng)`.
    """

    objective: _Objective
    workers: int
    agenda: Agenda[ev.Event]
    slowdowns: Iterator[float]
    failures: Failures
    seed: int
    resume: bool
    marks: bool
    endless: bool
    relentless: bool
    timed: bool
    errors: dict[tuple[str, int], BaseException] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._with_state = _takes_state(self.objective)
        # The generator depends only on the seed, the trial and the iteration. So a trial measures the same
        # values under every scheduler, and each time that it runs again.
        self._rng, self._set_rng = trial_draws(self.seed)
        self._failed_in_a_row = 0
        self._free = list(range(self.workers))
        self._runs: dict[str, _Run] = {}
        self._states: dict[str, dict[int, Any]] = {}
        """States that the objective returned, by trial id and number of the checkpoint."""

    def cut(self) -> None:
        """End every attempt immediately, because the experiment is over."""
        for run in list(self._runs.values()):
            self._finish(run, None)

    # --- actions ----------------------------------------------------------------------------------

    def start(self, action: ev.Start) -> None:
        trial, now = action.trial, self.agenda.now
        run = _Run(
            trial,
            action.attempt,
            heapq.heappop(self._free),
            next(self.slowdowns),
            self.failures.due(trial.index, now),
            action.iteration,
            action.iteration,
            0.0 if action.checkpoint is None else action.checkpoint.time_total_s,
        )
        if action.checkpoint is not None and self._with_state:
            run.state = self._states.get(trial.trial_id, {}).get(action.checkpoint.number)
        self._runs[trial.trial_id] = run
        started = ev.Started(trial.trial_id, action.attempt, now, run.worker, SIMULATED, "")
        self.agenda.put(now, START, started)

    def advance(self, action: ev.Advance) -> None:
        """Run one iteration; schedule the report for the iteration's end, unless the attempt fails before."""
        run = self._runs[action.trial_id]
        trial, now = run.trial, self.agenda.now
        iteration = run.iteration + 1
        try:
            metrics = self._run_objective(run, iteration)
        except Exception as error:
            self.errors[trial.trial_id, run.attempt] = error
            self._fail(run, now, Failure.raised(error))
            return
        took_s = metrics.pop(COST, 1.0)
        if not (is_finite(took_s) and took_s > 0):
            raise ConfigError(f"the objective returned {COST}={took_s!r}: give seconds above 0, or none")
        took_s = float(took_s) * run.factor
        time = now + took_s
        if run.fails_at < time:
            self._fail(run, run.fails_at, WORKER_FAILED)
            return
        if math.isinf(time):
            raise ConfigError(
                f"with {COST}={took_s!r} of trial {trial.trial_id} the simulated time becomes infinite"
            )
        self._failed_in_a_row = 0
        run.iteration = iteration
        run.spent_s += took_s
        if self.endless and iteration > PATIENCE:
            raise ConfigError(
                f"trial {trial.trial_id} has run {PATIENCE} iterations and has no known end: give horizon_s, "
                "max_work or RunConfig(stop={'training_iteration': ...}), or return {'done': True} in time"
            )
        done = bool(metrics.pop("done", False))
        filled = {
            "training_iteration": iteration,
            COST: took_s,
            "time_total_s": run.before_s + run.spent_s,
            "timestamp": time,
            "iterations_since_restore": iteration - run.since,
            "time_since_restore": run.spent_s,
            **metrics,
        }
        mark = self._mark(run) if self.marks and self.resume and not done else None
        event = ev.Reported(trial.trial_id, run.attempt, time, iteration, filled, mark, done)
        self.agenda.put(time, FINISH, event)

    def _fail(self, run: _Run, time: float, failure: Failure) -> None:
        self._failed_in_a_row += not (self.timed and time > self.agenda.now)
        if self.relentless and self._failed_in_a_row > FAILURES:
            raise ConfigError(
                f"{FAILURES} attempts have failed in a row, the last by {failure.kind}: {failure.message}; "
                "the simulation would not end: fix the cause, or set FailureConfig(max_failed_trials=...)"
            )
        self.agenda.put(time, FAILURE, ev.Failed(run.trial.trial_id, run.attempt, time, failure))

    def _run_objective(self, run: _Run, iteration: int) -> dict[str, Any]:
        self._set_rng(run.trial.index, iteration)
        if not self._with_state:
            return plain_metrics(self.objective(run.trial.config, iteration, self._rng))
        metrics = dict(self.objective(run.trial.config, iteration, self._rng, state=run.state))
        run.state = metrics.pop("state", None)
        return plain_metrics(metrics)

    def stop(self, action: ev.Stop) -> None:
        run = self._runs[action.trial_id]
        self._finish(run, self._mark(run) if action.save else None)

    def _finish(self, run: _Run, mark: str | None) -> None:
        now = self.agenda.now
        iteration = run.iteration if self.resume else 0
        event = ev.Finished(run.trial.trial_id, run.attempt, now, iteration, mark)
        self.agenda.put(now, FINISH, event)

    def _mark(self, run: _Run) -> str | None:
        """Save a simulated checkpoint and return its name; None if the current iteration already has a
        checkpoint.
        """
        if run.saved_at == run.iteration:
            return None
        run.saved_at = run.iteration
        number = run.trial.next_checkpoint
        if self._with_state and self.resume:
            self._states.setdefault(run.trial.trial_id, {})[number] = run.state
        return checkpoint_dirname(number)

    def save(self, action: ev.Save) -> None:
        run = self._runs[action.trial_id]
        now, iteration = self.agenda.now, run.iteration if self.resume else 0
        saved = ev.Saved(run.trial.trial_id, run.attempt, now, iteration, self._mark(run))
        self.agenda.put(now, FINISH, saved)

    def adopt(self, action: ev.Adopt) -> None:
        trial, donor, now = action.trial, action.donor, self.agenda.now
        if self._with_state:
            state = self._states.get(donor.trial_id, {}).get(action.checkpoint.number)
            number = int(action.dirname.rsplit("_", 1)[1])
            self._states.setdefault(trial.trial_id, {})[number] = state
        adopted = ev.Adopted(trial.trial_id, trial.attempt, now, action.dirname)
        self.agenda.put(now, FINISH, adopted)

    def delete_checkpoint(self, action: ev.DeleteCheckpoint) -> None:
        self._states.get(action.trial.trial_id, {}).pop(action.checkpoint.number, None)

    def release(self, action: ev.Release | ev.Kill) -> None:
        run = self._runs.pop(action.trial_id, None)
        if run is not None:
            heapq.heappush(self._free, run.worker)

    def interrupt(self, action: ev.Interrupt) -> None:
        """Do nothing; the later Kill ends the trial."""

    def kill(self, action: ev.Kill) -> None:
        self.release(action)


def _takes_state(objective: _Objective) -> bool:
    try:
        signature = inspect.signature(objective)
        takes = "state" in signature.parameters
        signature.bind({}, 1, None, **({"state": None} if takes else {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"objective: {error}; its arguments are (config, training_iteration, rng) and optionally state"
        ) from error
    return takes
