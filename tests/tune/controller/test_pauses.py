"""What the controller does with a scheduler that pauses trials, and with what cuts a pause short."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.tune.controller.harness import Play, population
from tests.tune.pausing import Counted, CutShort
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Failure
from trainkit.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule
from trainkit.tune.schedulers.base import NO_CONFIG, Decision, Donor, TrialScheduler, Verdict
from trainkit.tune.search import BasicVariantGenerator
from trainkit.tune.search.base import SearcherWrapper
from trainkit.tune.store.writer import ExperimentStore

PAUSE = Decision(Verdict.PAUSE, {"rule": "half"})


class Half(TrialScheduler):
    """All wait after their first report until `size` have come, or none comes any more; the best goes on."""

    label = "half"

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.size = size
        self.scores: dict[str, float] = {}
        self.winner: str | None = None
        self.added = 0
        self._verdicts: list[tuple[str, Decision]] = []

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        self.added += 1

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        if trial_id == self.winner or trial_id in self.scores:
            return Decision(Verdict.CONTINUE)
        self.scores[trial_id] = score or 0.0
        if len(self.scores) == self.size:
            self._choose()
        return PAUSE

    def _choose(self) -> None:
        if self.winner is None and self.scores:
            self.winner = max(self.scores, key=lambda each: self.scores[each])
            losers = [each for each in self.scores if each != self.winner]
            self._verdicts = [(each, Decision(Verdict.STOP, {"rule": "half"})) for each in losers]

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        verdicts, self._verdicts = self._verdicts, []
        return verdicts

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        if pending:
            return pending[0]
        return self.winner if self.winner in paused else None

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        return {"rule": "half", "of": len(self.scores)}

    def on_no_more_trials(self) -> None:
        self.size = min(self.size, self.added)
        if len(self.scores) == self.size:
            self._choose()


def play(size: int = 3, **arguments: Any) -> Play:
    arguments = {"num_samples": 3, "cpus": 1, "metric": "m", "mode": "max", **arguments}
    return Play(scheduler=Half(size), **arguments)


def test_a_pause_saves_ends_the_process_and_goes_on_from_the_checkpoint():
    game = play(started=1)
    (stop,) = game.reported(0, {"m": 5.0})
    assert stop == ev.Stop(game.trial(0).trial_id, save=True)
    game.finished(0, checkpoint="checkpoint_000000")
    assert game.statuses() == ["PAUSED", "PENDING"]
    game.pauses(1, {"m": 1.0})
    game.pauses(2, {"m": 2.0})
    assert game.statuses() == ["PENDING", "TERMINATED", "TERMINATED"]
    winner = game.trial(0)
    assert (winner.attempt, winner.reason) == (1, "resumed by half: rule half, of 3")
    assert game.calls == {winner.trial_id: "setup"}
    assert game.iterations[winner.trial_id] == 1
    game.ends(0, {"m": 6.0})
    assert game.controller.done
    verdicts = [str(each.decision.verdict) for each in game.recorded(ev.DecisionMade)]
    assert verdicts == ["PAUSE", "PAUSE", "PAUSE", "STOP", "STOP", "RESUME"]


def test_a_trial_that_would_go_on_at_once_keeps_its_process():
    game = play()
    game.pauses(0, {"m": 1.0})
    game.pauses(1, {"m": 2.0})
    game.started(2)
    (advance,) = game.reported(2, {"m": 3.0})
    assert advance == ev.Advance(game.trial(2).trial_id)
    assert game.trial(2).attempt == 0
    assert [str(each.decision.verdict) for each in game.recorded(ev.DecisionMade)][-4:] == [
        "PAUSE",
        "STOP",
        "STOP",
        "RESUME",
    ]
    other = play(keeps_processes=False)
    other.pauses(0, {"m": 1.0})
    other.pauses(1, {"m": 2.0})
    other.started(2)
    (stop,) = other.reported(2, {"m": 3.0})
    assert isinstance(stop, ev.Stop)


def test_a_verdict_on_a_trial_that_is_still_saving_ends_it():
    game = play(cpus=3, started=3)
    game.reported(0, {"m": 1.0})
    game.reported(1, {"m": 3.0})
    game.reported(2, {"m": 2.0})
    game.finished(0)  # no checkpoint needed: it is not paused any more
    assert game.statuses() == ["TERMINATED", "RUNNING", "RUNNING"]


def test_the_scheduler_hears_that_no_trial_comes_before_paused_ones_are_let_go():
    game = play(size=10)
    game.pauses(0, {"m": 0.0})
    game.pauses(1, {"m": 1.0})
    game.started(2)
    game.reported(2, {"m": 2.0})
    assert game.statuses() == ["TERMINATED", "TERMINATED", "RUNNING"]


def test_stop_asked_of_a_paused_trial_ends_it():
    game = play()
    game.pauses(0, {"m": 1.0})
    game.order("stop", "somebody", trial=game.trial(0).trial_id)
    assert (game.statuses()[0], game.trial(0).reason) == ("TERMINATED", "stopped by somebody")


def test_an_interrupt_leaves_paused_trials_paused_and_a_budget_lets_them_go():
    game = play()
    game.pauses(0, {"m": 1.0})
    game.interrupt()
    game.started(1)
    game.finished(1)
    assert game.controller.done
    game.controller.close(game.time)
    assert game.statuses() == ["PAUSED", "PENDING"]
    budget = play(time_budget_s=1.0)
    budget.pauses(0, {"m": 1.0})
    budget.tick(2.0)
    budget.started(1)
    budget.finished(1)
    budget.controller.close(budget.time)
    assert budget.statuses() == ["TERMINATED", "TERMINATED"]
    assert budget.trial(0).reason == "time budget: not promoted"


# --- another trial's state ------------------------------------------------------------------------


class Exchange(Half):
    """Every report after the first pauses with trial 0 and then trial 1 as donors; saves at the first."""

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        if time == 1:
            return Decision(Verdict.CONTINUE, {"rule": "save"}, save=True)
        donors = tuple(Donor(f"test_{index:05d}", {"x": index + 0.5}) for index in (0, 1))
        return Decision(Verdict.PAUSE, {"rule": "exploit"}, donors=donors)

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        return pending[0] if pending else paused[0] if paused else None


def exchanging() -> Play:
    """With three trials that run."""
    return Play(scheduler=Exchange(), num_samples=3, cpus=3, metric="m", mode="max", saves=True, started=3)


def test_a_trial_takes_over_the_checkpoint_and_the_configuration_of_a_donor():
    game = exchanging()
    (save,) = game.reported(0, {"m": 1.0})
    assert save == ev.Save(game.trial(0).trial_id)
    assert game.saved(0, "checkpoint_000000") == [ev.Advance(game.trial(0).trial_id)]
    game.reported(2, {"m": 1.0})
    game.saved(2)  # it can't save
    game.reported(2, {"m": 0.0})
    game.finished(2, "checkpoint_000000")
    (adoption,) = game.adoptions
    assert (adoption.donor, adoption.dirname) == (game.trial(0), "checkpoint_000001")
    assert game.statuses()[2] == "PAUSED"
    suggested = game.trial(2).config
    game.adopted()
    receiver = game.trial(2)
    assert (receiver.config, receiver.suggested, receiver.attempt) == ({"x": 0.5}, suggested, 1)
    assert game.calls[receiver.trial_id] == "setup"
    assert game.iterations[receiver.trial_id] == 2  # its own count goes on
    (change,) = game.recorded(ev.Rearranged)
    assert (change.donor, change.donor_iteration, change.config) == (game.trial(0), 1, {"x": 0.5})


def test_a_donor_that_is_saving_is_waited_for():
    game = exchanging()
    game.reported(0, {"m": 1.0})
    for value in (1.0, 0.0):
        game.reported(2, {"m": value})
        if value:
            game.saved(2)
    game.finished(2, "checkpoint_000000")
    assert not game.adoptions
    game.saved(0, "checkpoint_000000")
    assert len(game.adoptions) == 1


@pytest.mark.parametrize("there", [False, True])
def test_without_a_donors_checkpoint_or_its_copy_the_trial_goes_on_as_it_is(there):
    game = exchanging()
    if there:
        game.reported(1, {"m": 1.0})
        game.saved(1, "checkpoint_000000")
    game.reported(2, {"m": 1.0})
    game.saved(2)
    game.reported(2, {"m": 0.0})
    game.finished(2, "checkpoint_000000")
    if there:
        assert game.adoptions[0].donor is game.trial(1)
        game.adopted(problem="the disk is full")
    noted = [each.detail for each in game.recorded(ev.Noted) if each.kind == "no exchange"]
    assert noted == ["the disk is full" if there else "no donor has a checkpoint: test_00000, test_00001"]
    assert game.calls[game.trial(2).trial_id] == "setup"
    assert not game.trial(2).tried


@pytest.mark.parametrize("num_to_keep", [None, 1])
@pytest.mark.parametrize("first", ["receiver", "donor"])
def test_the_state_that_was_judged_is_taken_over_though_its_donor_has_ended(first, num_to_keep):
    """The receiver's process ends only after the donor has come to its last report."""
    scheduler = population(perturbation_interval=2, quantile_fraction=0.5, synch=True)
    game = Play(
        scheduler=scheduler,
        num_samples=2,
        metric="m",
        saves=True,
        stop={"training_iteration": 4},
        checkpoints=tune.CheckpointConfig(num_to_keep=num_to_keep, checkpoint_at_end=True),
        started=2,
    )
    receiver, donor = 0, 1
    for index in (receiver, donor):
        game.reported(index, {"m": 1.0 - index})
    if first == "receiver":
        game.reported(receiver, {"m": 1.0})
        assert game.reported(donor, {"m": 0.0}) == [ev.Save(game.trial(donor).trial_id)]
        game.saved(donor, "checkpoint_000000")
    else:
        game.reported(donor, {"m": 0.0})
        game.reported(receiver, {"m": 1.0})
        game.finished(donor, "checkpoint_000000")
        game.started(donor)
    game.reported(donor, {"m": 0.0})
    game.reported(donor, {"m": 0.0})
    game.finished(donor, "checkpoint_000001")
    assert game.statuses() == ["RUNNING", "TERMINATED"]
    game.finished(receiver, "checkpoint_000000")
    (adoption,) = game.adoptions
    assert (adoption.donor, adoption.checkpoint.iteration) == (game.trial(donor), 2)
    game.adopted()
    (change,) = game.recorded(ev.Rearranged)
    assert change.donor_iteration == 2
    kept = [each.iteration for each in game.trial(donor).checkpoints]
    assert kept == ([2, 4] if num_to_keep is None else [4])


def test_a_receiver_that_fails_leaves_its_donor_no_checkpoint_to_keep():
    game = Play(
        scheduler=Exchange(),
        num_samples=3,
        cpus=3,
        metric="m",
        mode="max",
        saves=True,
        checkpoints=tune.CheckpointConfig(num_to_keep=1),
        started=3,
    )
    for index in (0, 2):
        game.reported(index, {"m": 1.0})
        game.saved(index, "checkpoint_000000")
    game.reported(2, {"m": 0.0})
    assert game.trial(0).offered == {"test_00002": 1}
    game.failed(2, retry=False)
    assert not game.trial(0).offered


def test_after_a_restore_the_state_that_was_judged_is_taken_over(tmp_path):
    """The run is cut off while the receiver's process ends, and its donor has come further."""

    def begun(**arguments: Any) -> Play:
        scheduler = population(perturbation_interval=2, quantile_fraction=0.5, synch=True)
        return Play(scheduler=scheduler, num_samples=2, metric="m", saves=True, store=store, **arguments)

    receiver, donor = 0, 1
    facts = {"created": 0.0, "tune_config": {"num_samples": 2}}
    with contextlib.closing(ExperimentStore.create(tmp_path / "e", facts)) as store:
        game = begun(started=2)
        for value in (1.0, 0.0):
            game.reported(receiver, {"m": 1.0})
            game.reported(donor, {"m": value})
        game.saved(donor, "checkpoint_000000")
        game.reported(donor, {"m": 0.0}, "checkpoint_000001")
        again = begun()
        assert again.statuses() == ["PAUSED", "PENDING"]
        (adoption,) = again.adoptions
        assert (adoption.donor, adoption.checkpoint.iteration) == (again.trial(donor), 2)
        again.adopted()
        assert not again.trial(donor).offered


def promotion(**arguments) -> ASHAScheduler:
    return ASHAScheduler(**{"max_t": 9, "reduction_factor": 3, "type": "promotion", **arguments})


def played(**arguments) -> Play:
    return Play(**{"num_samples": 3, "cpus": 1, "metric": "m", "mode": "max", **arguments})


def test_who_was_told_to_stop_is_not_paused_by_its_next_report():
    game = played(scheduler=promotion(), started=1)
    game.order("stop", trial=game.trial(0).trial_id)
    game.reported(0, {"m": 9.0})
    game.finished(0, checkpoint="checkpoint_000000")
    assert (game.trial(0).status, game.trial(0).reason) == ("TERMINATED", "stopped by ann")


def out_of_memory(game: Play, index: int) -> None:
    game.started(index)
    game.send(ev.Failed(*game._who(index), Failure("MemoryError", "", out_of_memory=True)))


def alone(**arguments) -> Play:
    """Trial 0 is to run alone."""
    policy = tune.FailureConfig(out_of_memory="retry_alone")
    game = played(scheduler=promotion(), failure=policy, **arguments)
    out_of_memory(game, 0)
    return game


def test_a_trial_that_runs_alone_is_promoted_as_any():
    game = alone()
    game.pauses(1, {"m": 1.0})
    game.pauses(2, {"m": 2.0})
    assert game.calls == {"test_00000": "setup"}
    game.started(0)
    game.reported(0, {"m": 9.0})
    assert game.calls == {"test_00000": "advance"}


def test_a_pause_of_one_that_runs_alone_ends_and_it_runs_once_nothing_else_does():
    game = alone(num_samples=-1, cpus=2)
    game.pauses(1, {"m": 1.0})
    assert game.calls == {"test_00000": "setup"}, "without end of trials it is its turn as soon as may be"
    game.pauses(0, {"m": 9.0})
    assert game.statuses() == ["PAUSED", "PAUSED", "PENDING", "PENDING"]
    game.started(3)
    game.pauses(2, {"m": 2.0})
    assert (game.trial(0).status, game.trial(0).reason[:15]) == ("PENDING", "resumed by ASHA")
    assert game.calls == {"test_00003": "advance"}
    game.reported(3, {"m": 0.0})
    game.finished(3, checkpoint="checkpoint_000000")
    assert game.calls == {"test_00000": "setup"}
    game.started(0)
    game.reported(0, {"m": 9.0})
    assert game.calls == {"test_00000": "advance"}


def lost_as_it_saved(max_failures: int) -> Play:
    game = played(scheduler=promotion(), failure=tune.FailureConfig(max_failures=max_failures), started=1)
    game.reported(0, {"m": 1.0})
    game.finished(0, checkpoint=None, problem="f_00000 (pid 12) was killed by SIGKILL")
    return game


def test_a_kill_while_a_pause_saves_is_a_failure_like_any_other():
    failure = lost_as_it_saved(max_failures=0).trial(0).failure
    assert (failure.kind, failure.message) == (
        "CheckpointError",
        "ASHA paused the trial, which left no checkpoint to resume from: "
        "f_00000 (pid 12) was killed by SIGKILL",
    )
    game = lost_as_it_saved(max_failures=1)
    assert game.statuses()[0] == "PENDING"
    game.pauses(0, {"m": 1.0})
    assert game.statuses()[0] == "PAUSED"


class Counting(Counted):
    def reports(self, number):
        return {"m": self.config["x"] * number, "done": number == 20}


class Heard(SearcherWrapper):
    """Notes which of its trials are paused."""

    def __init__(self, searcher):
        super().__init__(searcher)
        self.resting = set()

    def on_pause(self, trial_id):
        self.resting.add(trial_id)

    def on_unpause(self, trial_id):
        self.resting.remove(trial_id)


def cut_short(fit, after: int, **settings) -> None:
    drawn = {"num_samples": 12, "search_alg": "random"}
    settings = {"metric": "m", "mode": "max", "seed": 1, **drawn, **settings}
    with pytest.raises(KeyboardInterrupt):
        fit(Counting, {"x": tune.uniform(0, 1)}, run={"callbacks": [CutShort(after)]}, **settings)


@pytest.mark.parametrize(
    ("other", "ends"),
    [
        (promotion(grace_period=3), {3, 9}),
        (HyperBandScheduler(max_t=27, narrow_first=True), {3, 9, 20}),
        (MedianStoppingRule("training_iteration", grace_period=30), {20}),
    ],
)
def test_a_restore_with_another_scheduler_forgets_no_paused_trial(inline, fit, restore, other, ends):
    """What it has not paused itself it would never choose."""
    cut_short(fit, 25, scheduler=promotion(), max_concurrent_trials=2)
    grid = restore(Counting, scheduler=other, run={"callbacks": [CutShort(0)]})
    assert grid.num_terminated == 12
    assert {result.metrics["training_iteration"] for result in grid} <= ends


def test_a_scheduler_of_later_ends_what_it_would_have_stopped(inline, fit, restore):
    cut_short(fit, 40, scheduler=promotion(), max_concurrent_trials=1)
    grid = restore(Counting, scheduler=HyperBandScheduler(max_t=9), run={"callbacks": [CutShort(0)]})
    reasons = Counter(result.reason[:33] for result in grid if result.metrics["training_iteration"] == 1)
    assert reasons["stopped by HyperBand: rung 1 of b"] == reasons.total() > 0


def test_a_searcher_hears_that_a_paused_trial_begins_anew(inline, fit, restore):
    cut_short(fit, 12, scheduler=promotion(), search_alg=Heard(BasicVariantGenerator()))
    heard = Heard(BasicVariantGenerator())
    anew = tune.ResumeConfig(unfinished=tune.ResumeConfig.ResumeType.RESTART)
    with pytest.raises(KeyboardInterrupt):
        restore(Counting, resume_config=anew, search_alg=heard, run={"callbacks": [CutShort(2)]})
    assert not heard.resting


def test_a_report_that_pauses_a_trial_is_not_its_last():
    game = played(scheduler=promotion())
    game.pauses(0, {"m": 1.0})
    assert game.recorded(ev.ResultAdded)[0].result["done"] is False
