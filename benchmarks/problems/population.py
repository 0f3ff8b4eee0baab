"""A population whose members train in step, with states that a scheduler copies between members.

The scheduler receives the calls of a real controller, so its real behaviour is measured. No process is
started and no file is written.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import Decision, TrialScheduler, Verdict


@dataclass
class Member:
    """A member of the population; `copied` counts how often it has copied another member's state."""

    config: dict[str, Any]
    state: Any
    score: float = 0.0
    copied: int = 0


Step = Callable[[Any, Mapping[str, Any], int], tuple[Any, float]]
"""Function (state, configuration, step number from 1) -> next state and its score."""


class Population:
    """A population that is driven by a scheduler.

    Args:
        scheduler: scheduler of the population; larger scores are better.
        configs: configuration of each member.
        state: initial state of each member.
        step: function that trains a member for one step.
        seed: seed of the scheduler's random generator.
    """

    def __init__(
        self, scheduler: TrialScheduler, configs: Sequence[dict[str, Any]], state: Any, step: Step, seed: int
    ) -> None:
        scheduler.set_search_properties("score", "max", scheduler_generator(seed), len(configs))
        self._scheduler = scheduler
        self._step = step
        self.members = {
            f"{number:05}": Member(dict(config), copy.deepcopy(state))
            for number, config in enumerate(configs)
        }
        self._paused: list[str] = []
        for trial_id, member in self.members.items():
            scheduler.on_trial_add(trial_id, member.config)

    def run(self, steps: int) -> list[float]:
        """Let all members train; return the best score after each step."""
        best = []
        for number in range(1, steps + 1):
            for member in self.members.values():
                member.state, member.score = self._step(member.state, member.config, number)
            best.append(max(member.score for member in self.members.values()))
            for trial_id, member in self.members.items():
                report = {"training_iteration": number, "score": member.score, "config": dict(member.config)}
                self._take(trial_id, self._scheduler.on_result(trial_id, report))
                for other, decision in self._scheduler.verdicts():
                    self._take(other, decision)
            while self._paused:
                chosen = self._scheduler.choose_trial_to_run([], self._paused)
                if chosen is None:
                    raise RuntimeError(f"step {number}: members stay paused: {', '.join(self._paused)}")
                self._paused.remove(chosen)
                self._scheduler.on_trial_resume(chosen)
        return best

    def _take(self, trial_id: str, decision: Decision) -> None:
        if decision.verdict is Verdict.STOP:
            raise RuntimeError(f"{trial_id} was stopped: {dict(decision.reason)}")
        if decision.verdict is Verdict.PAUSE and trial_id not in self._paused:
            self._paused.append(trial_id)
        for donor in decision.donors[:1]:  # all members have a state to give
            member = self.members[trial_id]
            member.state = copy.deepcopy(self.members[donor.trial_id].state)
            member.score = self.members[donor.trial_id].score
            member.config = dict(donor.config)
            member.copied += 1
            self._scheduler.on_trial_change(trial_id, member.config, donor.trial_id)
