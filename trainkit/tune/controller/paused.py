"""Paused trials: which go on, which end, and which take over another's state.

PAUSE --> its process ends, having saved --> PAUSED --> chosen --> PENDING, from its checkpoint
                                               |  donors: Adopt --> Adopted, with another configuration
PAUSE, and it would be chosen at once: it runs on in its process
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.attempt import ActiveAttempt, adopt_checkpoint, set_status
from trainkit.tune.controller.rules import Plan
from trainkit.tune.controller.run_queue import RunQueue
from trainkit.tune.core.checkpoint import checkpoint_dirname
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Donor, Verdict, words_for
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.schedulers.words import in_words
from trainkit.tune.search.proposals import Proposals

NO_CHECKPOINT = (
    "no checkpoint to go on from: give one to tune.report(metrics, checkpoint=...), or define "
    "save_checkpoint() and load_checkpoint(); or choose a scheduler that pauses no trial, such as "
    "ASHAScheduler()"
)


class PausedTrials:
    """See the module.

    Args:
        plan: the experiment's rules.
        step: where records and actions gather.
        scheduler: whose word it is.
        proposals: told of pauses.
        turns: with the line of those paused.
        trials: by id.
        live: those with a process, by id.
    """

    def __init__(
        self,
        plan: Plan,
        step: ev.Step,
        scheduler: CheckedScheduler,
        proposals: Proposals,
        turns: RunQueue,
        trials: Mapping[str, Trial],
        live: Mapping[str, ActiveAttempt],
    ) -> None:
        self._plan = plan
        self._step = step
        self._scheduler = scheduler
        self._proposals = proposals
        self._turns = turns
        self._trials = trials
        self._live = live
        self._hoping: dict[str, Decision] = {}
        """Decisions on trials whose donor is just saving a checkpoint."""
        self._adopting: dict[str, tuple[Donor, int]] = {}
        """By trial, whose checkpoint is being copied to it, and after which report that was saved."""

    def __len__(self) -> int:
        """How many trials are neither in the line nor have a process."""
        return len(self._hoping) + len(self._adopting)

    def require_known(self, trial_id: str, decision: Decision) -> None:
        """Refuse donors that are no trials of the experiment.

        Raises:
            ConfigError: one is none.
        """
        for donor in decision.donors:
            if donor.trial_id not in self._trials:
                raise ConfigError(
                    f"the scheduler {self._scheduler.name} lets trial {trial_id} take over the state of "
                    f"{donor.trial_id!r}, which no trial has for an id: name donors by the ids that "
                    "on_trial_add() told it"
                )

    # --- into the pause ---------------------------------------------------------------------------

    def goes_on(self, live: ActiveAttempt, time: float) -> bool:
        """Whether a trial that is to be paused runs on instead, being the next to go on; that is noted."""
        decision = live.pause
        if decision is None or decision.donors or decision.request is not None:
            return False
        if not self._plan.keeps_processes or not self._turns.goes_on_at_once(live.trial):
            return False
        self._resumed(live.trial)
        return True

    def begin(
        self, trial: Trial, decision: Decision, time: float, reason: str, problem: str
    ) -> Failure | None:
        """The trial's process has ended, maybe with a problem; return why it can't be paused, if it can't."""
        if not self.may_begin(trial, decision):
            if problem:  # such as a kill while it saved: the next attempt may do better
                text = f"{self._scheduler.label} paused the trial, which left no checkpoint to go on from: "
                return Failure("CheckpointError", text + problem)
            by = self._scheduler.label if decision.request is None else "a change of resources"
            text = f"{by} paused the trial, and it has {NO_CHECKPOINT}"
            return Failure("ConfigError", text, retry=False)
        set_status(self._step, trial, time, TrialStatus.PAUSED, reason)
        self._proposals.on_pause(trial.trial_id)
        self._carry_out(trial, decision, time)
        return None

    @property
    def nobody_saves(self) -> bool:
        """True if no trial of the experiment has ever had a checkpoint."""
        return not any(trial.next_checkpoint for trial in self._trials.values())

    def may_begin(self, trial: Trial, decision: Decision | None) -> bool:
        """Return whether the trial, or a donor, has a state to go on from after the pause."""
        donors = () if decision is None else decision.donors
        there = (self._trials[donor.trial_id].checkpoint for donor in donors)
        return trial.checkpoint is not None or any(checkpoint is not None for checkpoint in there)

    def take_up(self, owed: Mapping[str, Decision], time: float) -> None:
        """Carry out what was decided on paused trials before a kill, and not done yet."""
        for trial_id, decision in owed.items():
            self.require_known(trial_id, decision)
            if self._turns.paused.remove(self._trials[trial_id]):
                self._carry_out(self._trials[trial_id], decision, time)

    def _carry_out(self, trial: Trial, decision: Decision, time: float) -> None:
        if decision.request is not None:
            before, trial.request = trial.request, decision.request
            trial.granted = decision.request
            self._step.records.append(ev.Rearranged(trial, time, before=before))
            self._scheduler.on_trial_request(trial.trial_id, trial.request, before)
        self._exchange(trial, decision, time)

    def _exchange(self, trial: Trial, decision: Decision, time: float) -> None:
        """Let a paused trial take over the state of a donor, if there is to be one."""
        for each in decision.donors:
            donor, live = self._trials[each.trial_id], self._live.get(each.trial_id)
            if live is not None and live.is_saving:
                self._hoping[trial.trial_id] = decision
                return
            if donor.checkpoint is not None:
                self._adopting[trial.trial_id] = each, donor.checkpoint.iteration
                dirname = checkpoint_dirname(trial.next_checkpoint)
                self._step.actions.append(ev.Adopt(trial, donor, donor.checkpoint, dirname))
                return
        if decision.donors:
            who = ", ".join(donor.trial_id for donor in decision.donors)
            self._step.records.append(
                ev.Noted(time, "no exchange", f"no checkpoint has {who}", trial.trial_id)
            )
        self._turns.paused.add(trial)

    def look_again(self, time: float) -> None:
        """Donors may have saved by now."""
        if not self._hoping:
            return
        for trial_id, decision in list(self._hoping.items()):
            del self._hoping[trial_id]
            self._exchange(self._trials[trial_id], decision, time)

    def adopted(self, event: ev.Adopted) -> Trial | None:
        """A donor's checkpoint was copied, or was not; return the trial if it has another configuration."""
        donor, iteration = self._adopting.pop(event.trial_id, (None, 0))
        if donor is None:  # it was stopped meanwhile
            return None
        trial = self._trials[event.trial_id]
        self._turns.paused.add(trial)
        if event.checkpoint is None:
            self._step.records.append(ev.Noted(event.time, "no exchange", event.problem, trial.trial_id))
            return None
        adopt_checkpoint(self._step, self._plan.checkpoints, trial, event.checkpoint)
        trial.tried.append(trial.config)
        trial.config = dict(donor.config)
        self._step.records.append(
            ev.Rearranged(trial, event.time, trial.config, self._trials[donor.trial_id], iteration)
        )
        self._scheduler.on_trial_change(trial.trial_id, trial.config, donor.trial_id)
        return trial

    # --- out of it --------------------------------------------------------------------------------

    def end(self, trial: Trial, time: float) -> None:
        """A trial that was paused goes on."""
        words = self._resumed(trial)
        self._proposals.on_unpause(trial.trial_id)
        trial.attempt += 1
        set_status(self._step, trial, time, TrialStatus.PENDING, words)

    def _resumed(self, trial: Trial) -> str:
        decision = Decision(Verdict.RESUME, self._scheduler.on_trial_resume(trial.trial_id))
        self._step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
        return words_for(decision, self._scheduler.label)

    def why_not_chosen(self, trial: Trial) -> str:
        """Note and say why a trial, paused to the end, did not go on; '' if that is not known."""
        decision = Decision(Verdict.STOP, self._scheduler.why_not_chosen(trial.trial_id))
        if decision.reason:
            self._step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
        return in_words(decision.reason)

    def remove(self, trial: Trial) -> bool:
        """Forget a paused trial, which is to be ended; False if it isn't paused."""
        hoped = self._hoping.pop(trial.trial_id, None) is not None
        adopted = self._adopting.pop(trial.trial_id, None) is not None
        return self._turns.paused.remove(trial) or hoped or adopted

    def heed(self, verdicts: Sequence[tuple[str, Decision]], time: float) -> list[tuple[Trial, str]]:
        """Do what the scheduler has decided on trials that wait; return those to end, and why."""
        return list(self._heeded(verdicts, time))

    def _heeded(self, verdicts: Sequence[tuple[str, Decision]], time: float) -> Iterator[tuple[Trial, str]]:
        for trial_id, decision in verdicts:
            if trial_id not in self._trials:
                raise ConfigError(
                    f"{self._scheduler.name}.verdicts() decided on {trial_id!r}, which no trial has for an id"
                )
            self.require_known(trial_id, decision)
            trial, live = self._trials[trial_id], self._live.get(trial_id)
            if trial.status.is_finished or (live is not None and live.is_ending):
                continue
            self._step.records.append(ev.DecisionMade(trial, trial.attempt, trial.iteration, decision))
            stopped = decision.verdict is Verdict.STOP
            reason = words_for(decision, self._scheduler.label)
            if live is not None and stopped:
                live.outcome = TrialStatus.TERMINATED, reason
            elif live is not None:
                live.pause = decision
            elif stopped and (self.remove(trial) or self._turns.waiting.remove(trial)):
                yield trial, reason
            elif self._turns.paused.remove(trial):
                self._exchange(trial, decision, time)
