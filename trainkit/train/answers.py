"""What a gang's workers answer to one call, and which of several failures is the cause.

A worker that fails in a step leaves the others waiting in a collective, so its failure ends them. Which
failure is the cause? A dead process, or an error of the user's code; an error that only says "my peer is
gone" is a symptom, and is told only if nothing better comes within a moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ActorDiedError, GangError, TaskError
from trainkit.runtime import api as runtime
from trainkit.train.process_group import lost_peer

GRACE_S = 5.0
"""How long the cause of a symptom may take to be known, and workers to part in order."""


class Answers:
    """What the workers answer to one call.

    Args:
        calls: references of the calls still out, and whose they are.
        world_size: of the gang.
        at_once: end all workers at the first failure that is a cause.
        end_workers: does so.
    """

    def __init__(
        self, calls: dict[Any, int], *, world_size: int, at_once: bool, end_workers: Callable[[], None]
    ) -> None:
        self.pending = calls
        self.results: dict[int, Any] = {}
        self.failures: dict[int, BaseException] = {}
        self.late: list[int] = []
        self._world_size = world_size
        self._at_once = at_once
        self._end_workers = end_workers

    def collect(self) -> None:
        """Wait until all have answered, or until one has failed and the others won't."""
        deadline: float | None = None
        while self.pending:
            patience = None if deadline is None else max(0.0, deadline - SYSTEM.monotonic())
            done, _ = runtime.wait(list(self.pending), num_returns=1, timeout=patience)
            for ref in done:
                self._take(ref)
            if self.failures and (not done or (self._at_once and self._cause_known())):
                break
            if self.failures and deadline is None:
                deadline = SYSTEM.monotonic() + GRACE_S
        # At once also if all of them have answered: one in this process may still wait for them.
        if self.failures and (self.pending or self._at_once):
            self._end_all()

    def collect_beside(self, own_part: Callable[[], Any]) -> None:
        """The same while worker 0's part runs here, on the thread that the user's code expects."""
        watch = threading.Thread(target=self.collect, name="trainkit-gang-watch", daemon=True)
        watch.start()
        try:
            self.results[0] = own_part()
        except Exception as error:  # It is this worker's answer, judged with the others'.
            self.failures[0] = error
            if self._at_once:
                if self._is_symptom(error):
                    watch.join(GRACE_S)
                self._end_all()
        except BaseException:
            self._end_all()
            raise
        finally:
            watch.join()

    def deaths(self) -> list[int]:
        """Workers whose process died."""
        return [rank for rank, error in self.failures.items() if isinstance(error, ActorDiedError)]

    def cause(self) -> tuple[int, BaseException]:
        """The failure that explains the others, and whose it is."""
        by_rank = sorted(self.failures.items())
        died = [item for item in by_rank if _is_death(item[1]) and item[0] not in self.late]
        raised = [item for item in by_rank if not _is_death(item[1]) and not self._is_symptom(item[1])]
        symptoms = [item for item in by_rank if not _is_death(item[1])]
        return (raised or died or symptoms)[0]

    def verdict(self, *, ended: bool) -> BaseException:
        """What to raise; `ended` says whether the workers were."""
        (rank, error), world_size = self.cause(), self._world_size
        if _is_death(error):
            verdict: BaseException = GangError(f"worker {rank} of {world_size} died: {error}")
        elif self._is_symptom(error):
            late = ", ".join(map(str, self.late))
            who = f"worker {late} did not answer" if late else "no worker knows why"
            verdict = GangError(f"worker {rank} of {world_size} lost the others, and {who}: {error}")
        else:
            if world_size > 1:
                fate = "; the others were ended with it" if ended else ""
                error.add_note(f"raised by worker {rank} of {world_size}{fate}")
            return error
        verdict.__cause__ = error
        return verdict

    def _end_all(self) -> None:
        """End the workers; those that have not answered by now die of it, which is no failure of theirs."""
        self.late = self.late or sorted(self.pending.values())
        self._end_workers()

    def _take(self, ref: Any) -> None:
        rank = self.pending.pop(ref)
        try:
            self.results[rank] = runtime.get(ref)
        except Exception as error:  # Judged by `verdict`, which raises it.
            self.failures[rank] = error

    def _cause_known(self) -> bool:
        return any(not self._is_symptom(error) for error in self.failures.values())

    def _is_symptom(self, error: BaseException) -> bool:
        if self._world_size == 1:
            return False  # Nobody is there to be lost.
        return lost_peer((error.cause or error) if isinstance(error, TaskError) else error)


def _is_death(error: BaseException) -> bool:
    return isinstance(error, ActorDiedError)
