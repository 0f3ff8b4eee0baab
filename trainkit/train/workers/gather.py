"""Collection of all workers' results of one call, and of the cause of failures.

If a worker fails in a training step, the other workers wait for this worker in a collective, and fail too.
The cause of the failures is a dead process or an error in the user's code. An error that only reports a lost
worker is called a symptom (failure_cause.py). If all errors are symptoms, the cause is the worker that does
not answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ActorDiedError, GangError, TaskError, message_of
from trainkit.runtime import api as runtime
from trainkit.train.distributed import failure_cause

log = logging.getLogger(__name__)

GRACE_PERIOD_S = 5.0
"""Seconds to wait for the cause after an error that is only a symptom, and for workers to end cleanly."""

APART_S = 30.0
"""Seconds to wait for the other workers after a worker raised an error in a call in which workers need not
communicate.
"""

TELL_S = 60.0
"""Seconds after which a warning names the workers that the other workers wait for."""

LOOK_S = 1.0
"""Seconds between two checks for the answer of a worker in this process."""


@dataclass(eq=False)
class GatheredResults:
    """Results of one call from all workers.

    Attributes:
        pending: rank of the worker for each reference of a call without an answer.
        what: name of the call, for messages.
        world_size: number of workers.
        at_once: True if the workers communicate in the call. All workers are then ended at the first failure
            that is not a symptom, or if some workers have answered and the other workers do not answer within
            `timeout_s`.
        timeout_s: time limit of a collective, in seconds.
        end_workers: function that ends all workers.
        is_end: function that returns True for an error that is the expected end of a worker; the worker's
            result is then None.
        results: results of the workers that have answered, by rank.
        failures: errors of the workers that have failed, by rank.
        late: ranks of workers that had not answered when the workers were ended.
    """

    pending: dict[Any, int]
    _: KW_ONLY
    what: str
    world_size: int
    at_once: bool
    timeout_s: float
    end_workers: Callable[[], None]
    is_end: Callable[[BaseException], bool] = lambda _: False
    results: dict[int, Any] = field(default_factory=dict, init=False)
    failures: dict[int, BaseException] = field(default_factory=dict, init=False)
    late: list[int] = field(default_factory=list, init=False)
    _beside: bool = field(default=False, init=False)
    _answered_at: float | None = field(default=None, init=False)
    _failed_at: float | None = field(default=None, init=False)
    _ends_at: float | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)

    def collect(self, within_s: float | None = None) -> None:
        """Wait until all workers have answered, or until a failure means that the other workers will not
        answer.

        Args:
            within_s: seconds after which the other workers are ended; None for no limit.
        """
        if within_s is not None:
            self._ends_at = SYSTEM.monotonic() + within_s
        while self.pending:
            left = self._time_left()
            if left is not None and left <= 0:
                break
            if self._beside:
                left = LOOK_S if left is None else min(left, LOOK_S)
            tell_in = self._tell_in()
            first = [seconds for seconds in (left, tell_in) if seconds is not None]
            done, _ = runtime.wait(list(self.pending), num_returns=1, timeout=min(first, default=None))
            for ref in done:
                self._take(ref)
            if not done and tell_in is not None and tell_in <= min(first):
                self._tell()
            if self.at_once and any(not self._is_symptom(error) for error in self.failures.values()):
                break
        # With `at_once`, the workers are ended even if all remote workers have answered, because a worker in
        # this process may still wait.
        if self.pending or (self.failures and self.at_once):
            self._end_all()

    def collect_beside(self, own_part: Callable[[], Any]) -> None:
        """Call `own_part`, worker 0's part, on this thread; collect the other results on another thread."""
        self._beside = True
        watch = threading.Thread(target=self.collect, name="trainkit-gather", daemon=True)
        watch.start()
        try:
            self.results[0] = own_part()
            self._answered_at = SYSTEM.monotonic()
        except Exception as error:  # The error counts as the answer of worker 0.
            self._fail(0, error)
            if self.at_once:
                if self._is_symptom(error):
                    watch.join(GRACE_PERIOD_S)
                self._end_all()
        except BaseException:
            self._end_all()
            raise
        finally:
            watch.join()

    def ranks(self) -> set[int]:
        """Return the ranks of the workers that have received the call."""
        return {*self.pending.values(), *self.results, *self.failures}

    @property
    def failed(self) -> bool:
        """True if some workers gave no result."""
        return bool(self.failures or self.late)

    def deaths(self) -> list[int]:
        """Return the ranks of workers that died, or of which a process that loads data died."""
        return [rank for rank, error in self.failures.items() if self._is_death(error)]

    def lost(self) -> list[int]:
        """Return the ranks of the workers that died or do not answer, if the call failed because of them.

        If the cause is unknown, return all failed workers. If the user's code raised an error, return [].
        """
        if self._raised():
            return []
        return self._died() or self.late or sorted(self.failures)

    def cause(self) -> int:
        """Return the rank of the worker whose failure caused the other failures."""
        raised = [rank for rank, _ in self._raised()]
        return (raised or self.lost())[0]

    def verdict(self, *, ended: bool) -> BaseException:
        """Return the error that the call raises.

        Args:
            ended: True if the workers were ended after the failure.
        """
        world_size = self.world_size
        if raised := self._raised():
            rank, error = raised[0]
            if world_size > 1:
                fate = "; the other workers were ended too" if ended else ""
                error.add_note(f"raised by worker {rank} of {world_size}{fate}")
                if (advised := failure_cause.advice(error)) is not None:
                    error.add_note(advised)
            return error
        if died := self._died():
            error = self.failures[died[0]]
            how = f"died: {error}"
            if failure_cause.lost_loader(error):
                how = f"lost a process that loads its data: {message_of(error).strip()}"
            verdict = GangError(f"worker {died[0]} of {world_size} {how}")
            verdict.__cause__ = error
        else:
            waited = sorted(set(self.failures) - set(self.late))
            # If no worker has failed, some workers have answered, and the other workers have not answered in
            # time.
            symptom = self.failures[waited[0]] if waited else None
            verdict = GangError(self._missed(waited, symptom))
            verdict.__cause__ = symptom
        return verdict

    def _missed(self, waited: list[int], error: BaseException | None) -> str:
        """Return the error message about workers that did not join a collective of the other workers."""
        many = len(self.late) > 1
        late = f"worker{'s' if many else ''} {', '.join(map(str, self.late))} of {self.world_size}"
        if error is None:
            return f"{late} did not finish {self.what}() within timeout_s={self.timeout_s:g} after the others"
        those = f"worker{'s' if len(waited) > 1 else ''} {', '.join(map(str, waited))}"
        if not self.late and self.results:
            other = f"its {self.what}() had ended or reported"
            where = f"a collective that worker {min(self.results)} may not have entered, because {other}"
            return f"{those} of {self.world_size} waited in {where}: {message_of(error)}"
        if not self.late:
            lost = f"{those} of {self.world_size} lost the others in {self.what}()"
            return f"{lost} for an unknown reason: {message_of(error)}"
        steps = [failure_cause.waiting_step(self.failures[rank]) for rank in waited]
        told = [step for step in steps if step is not None]
        where = f"{self.what}()" if not told else f"step {min(told)}" if min(told) else "the first step"
        hangs = "they hang" if many else "it hangs"
        return (
            f"{late} did not enter {where} within timeout_s={self.timeout_s:g}, where {those} waited: "
            f"{hangs}, or the code or data need more time"
        )

    def _time_left(self) -> float | None:
        """Return the seconds left to wait for the workers without an answer; None for no limit."""
        now = SYSTEM.monotonic()
        if self._ends_at is not None:
            return self._ends_at - now
        if self._failed_at is not None:
            raised = not self.at_once and len(self._raised()) == len(self.failures)
            return self._failed_at + (APART_S if raised else GRACE_PERIOD_S) - now
        if self.at_once and self._answered_at is not None:
            return self._answered_at + self.timeout_s + GRACE_PERIOD_S - now
        return None

    def _tell_in(self) -> float | None:
        """Return the seconds until the warning about workers without an answer; None for no warning."""
        if self._told or not self.at_once or self._answered_at is None or self._failed_at is not None:
            return None
        if self.timeout_s == float("inf"):  # If collectives have no time limit, long waits are normal.
            return None
        return max(0.0, self._answered_at + TELL_S - SYSTEM.monotonic())

    def _tell(self) -> None:
        self._told = True
        missing = ", ".join(map(str, sorted(self.pending.values())))
        log.warning(
            "worker %s of %d has not finished %s() or reported in it, %.0f s after the other workers, which "
            "wait for timeout_s=%g",
            *(missing, self.world_size, self.what, TELL_S, self.timeout_s),
        )

    def _died(self) -> list[int]:
        """Return the ranks of workers that died for their own reason, in ascending order."""
        dead = {*self.deaths()} - {*self.late}
        return [rank for rank in sorted(dead) if not self._is_symptom(self.failures[rank])]

    def _raised(self) -> list[tuple[int, BaseException]]:
        """Return (rank, error) for each worker whose user code raised an error, by rank."""
        alive = [item for item in sorted(self.failures.items()) if not self._is_death(item[1])]
        return [item for item in alive if not self._is_symptom(item[1])]

    def _end_all(self) -> None:
        """End all workers; workers without an answer count as late, not as failed."""
        self.late = self.late or sorted(self.pending.values())
        self.end_workers()

    def _take(self, ref: Any) -> None:
        rank = self.pending.pop(ref)
        try:
            self.results[rank] = runtime.get(ref)
        except Exception as error:  # `verdict` decides whether the error is raised.
            if not self.is_end(error):
                self._fail(rank, error)
                return
            self.results[rank] = None
        self._answered_at = SYSTEM.monotonic()

    def _fail(self, rank: int, error: BaseException) -> None:
        self.failures[rank] = error
        if self._failed_at is None:
            self._failed_at = SYSTEM.monotonic()

    def _is_symptom(self, error: BaseException) -> bool:
        # A single worker has no peers to lose, so its errors are never symptoms.
        return self.world_size > 1 and failure_cause.is_symptom(error)

    def _is_death(self, error: BaseException) -> bool:
        # A single worker in this process still has its model after an error, so it never counts as dead.
        if self._beside and self.world_size == 1:
            return False
        died = isinstance(error, ActorDiedError) and not isinstance(error, TaskError)
        return died or failure_cause.lost_loader(error)
