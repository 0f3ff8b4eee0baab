"""Workers that play trials against a scheduler alone: no controller, no process, no clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.tune.schedulers import Decision, TrialScheduler, Verdict


@dataclass
class Played:
    """A trial as the workers know it."""

    status: str = "PENDING"
    time: int = 0
    spent: int = 0
    failures: int = 0


class SimulatedWorkers:
    """Runs `samples` trials of a scheduler on `workers` workers; each report is one unit of time.

    Args:
        value: what trial n reports at a time.
        chance: whose report comes next, and which trial fails; None: in turn, and none fails.
        fail_rate: of a report; half of the failures are tried again from the last pause.
        end_rate: of a report, by which a trial ends by itself.
        end_at: time at which all end by themselves.

    Attributes:
        calls: all that the scheduler was told, in order, with its answers.
        decisions: by trial and time, those with a reason.
    """

    def __init__(
        self,
        scheduler: TrialScheduler,
        *,
        samples: int,
        workers: int = 1,
        value: Callable[[int, int], float] = lambda trial, time: float(trial),
        chance: random.Random | None = None,
        fail_rate: float = 0.0,
        end_rate: float = 0.0,
        end_at: int = 10**9,
    ) -> None:
        self.scheduler = scheduler
        self.trials: dict[str, Played] = {}
        self.calls: list[tuple[str, tuple[Any, ...], Any]] = []
        self.decisions: list[tuple[str, int, Decision]] = []
        self.resumed: list[tuple[str, Mapping[str, Any]]] = []
        self._samples = samples
        self._workers = workers
        self._value = value
        self._chance = chance or random.Random(0)
        self._in_turn = chance is None
        self._fail_rate = fail_rate
        self._end_rate = end_rate
        self._end_at = end_at
        self._saved: dict[str, int] = {}

    def tell(self, name: str, *arguments: Any) -> Any:
        answer = getattr(self.scheduler, name)(*arguments)
        self.calls.append((name, arguments, answer))
        self._hear_verdicts()
        return answer

    def _hear_verdicts(self) -> None:
        for trial_id, decision in self.scheduler.verdicts():
            assert decision.verdict is Verdict.STOP
            self.calls.append(("verdict", (trial_id,), decision))
            self.decisions.append((trial_id, self.trials[trial_id].time, decision))
            if self.trials[trial_id].status != "RUNNING":  # again, after a failure in its pause
                self._end(trial_id)

    def _end(self, trial_id: str, status: str = "TERMINATED") -> None:
        self.trials[trial_id].status = status
        self.tell("on_trial_error" if status == "ERROR" else "on_trial_complete", trial_id)

    def those(self, status: str) -> list[str]:
        return [trial_id for trial_id, trial in self.trials.items() if trial.status == status]

    def run(self) -> SimulatedWorkers:
        self.fill()
        while running := self.those("RUNNING"):
            self._report(running[0] if self._in_turn else self._chance.choice(running))
            self.fill()
        return self

    def add(self) -> str:
        trial_id = str(len(self.trials))
        self.trials[trial_id] = Played()
        self.tell("on_trial_add", trial_id)
        return trial_id

    def fill(self) -> None:
        while len(self.those("RUNNING")) < self._workers:
            more = len(self.trials) < self._samples
            chosen = self.scheduler.choose_trial_to_run(self.those("PENDING"), self.those("PAUSED"), new=more)
            if chosen is None and more:
                chosen = self.add()
            elif chosen is None:
                known = len(self.calls)
                self.tell("on_no_more_trials")
                if len(self.calls) > known + 1:  # it has led to something
                    continue
                if self.scheduler.choose_trial_to_run((), self.those("PAUSED")) is None:
                    return
                continue
            trial = self.trials[chosen]
            if trial.status == "PAUSED":
                self.resumed.append((chosen, self.tell("on_trial_resume", chosen)))
            trial.status = "RUNNING"

    def _report(self, trial_id: str) -> None:
        trial = self.trials[trial_id]
        if self._chance.random() < self._fail_rate:
            trial.failures += 1
            trial.time = self._saved.get(trial_id, 0)
            if self._chance.random() < 0.5 and trial.failures < 3:
                trial.status = "PENDING"
            else:
                self._end(trial_id, "ERROR")
            return
        trial.time += 1
        trial.spent += 1
        result = {"training_iteration": trial.time, "m": self._value(int(trial_id), trial.time)}
        decision = self.scheduler.on_result(trial_id, result)
        self.calls.append(("on_result", (trial_id, result), decision))
        if decision.reason:
            self.decisions.append((trial_id, trial.time, decision))
        over = trial.time >= self._end_at or self._chance.random() < self._end_rate
        if decision.verdict is Verdict.STOP or over:
            self._end(trial_id)
        elif decision.verdict is Verdict.PAUSE:
            self._pause(trial_id)
        self._hear_verdicts()

    def _pause(self, trial_id: str) -> None:
        trial = self.trials[trial_id]
        if self._chance.random() < self._fail_rate:  # while it saves, so that it runs again from before
            trial.time, trial.status = self._saved.get(trial_id, 0), "PENDING"
            return
        self._saved[trial_id] = trial.time
        trial.status = "PAUSED"
