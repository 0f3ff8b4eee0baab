"""Commands to the controller: what each does, what it refuses, and that a restore comes to the same state."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune.controller.harness import Play, configs, kinds, outcome, population, refusal
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.controller import Controller
from trainkit.tune.controller.state import Steering
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.schedulers import ASHAScheduler, FIFOScheduler
from trainkit.tune.schedulers.base import Decision, Donor, TrialScheduler, Verdict
from trainkit.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, TuneBOHB
from trainkit.tune.store.writer import ExperimentStore

CHECKPOINT = "checkpoint_000000"


def test_a_trial_pauses_at_its_next_report_and_goes_on_from_there():
    play = Play(num_samples=3, cpus=1, started=1)
    play.reported(0, {}, CHECKPOINT)
    assert play.order("pause", trial="test_00000") == []
    assert outcome(play) == "trial test_00000 pauses at its next report"
    assert kinds(play.reported(0, {})) == ["Stop"]
    assert kinds(play.finished(0)) == ["Release", "Start"], "the next one has its place"
    assert (play.trial(0).status, play.trial(0).reason) == ("PAUSED", "paused by ann")
    play.order("pause", "bob", trial="test_00000")
    assert "was paused already by ann" in refusal(play)
    assert play.order("resume", "bob", trial="test_00000") == []
    assert (play.trial(0).status, play.trial(0).attempt) == ("PENDING", 1)
    play.started(1)
    (start,) = [each for each in play.reported(1, {}, done=True) if isinstance(each, ev.Start)]
    assert (start.trial.trial_id, start.attempt, start.checkpoint.dirname) == ("test_00000", 1, CHECKPOINT)
    assert [each["verb"] for each in play.answers] == ["pause", "pause", "resume"]


class Ends(FIFOScheduler):
    """Writes down how each trial ended."""

    def __init__(self):
        super().__init__()
        self.ends = {}

    def on_trial_complete(self, trial_id):
        self.ends[trial_id] = "complete"

    def on_trial_error(self, trial_id):
        self.ends[trial_id] = "failed"


def test_a_trial_that_a_command_stops_is_not_complete_for_the_scheduler(tmp_path):
    facts = {"prefix": "test", "space": "", "created": 0.0}
    with contextlib.closing(ExperimentStore.create(tmp_path / "e", facts)) as store:
        heard, again = Ends(), Ends()
        play = Play(num_samples=3, cpus=2, scheduler=heard, store=store, started=2)
        play.order("stop", trial="test_00000")
        play.order("stop", trial="test_00000")
        assert "is about to end" in refusal(play)
        play.reported(0, {})
        play.finished(0)
        play.reported(1, {}, done=True)
        play.finished(1)
        play.order("stop", trial="test_00002")
        play.started(2)
        play.reported(2, {})
        play.finished(2)
        ends = {"test_00000": "failed", "test_00001": "complete", "test_00002": "failed"}
        assert play.statuses() == ["TERMINATED"] * 3
        Play(num_samples=3, cpus=2, scheduler=again, store=store)
        assert heard.ends == again.ends == ends


def test_a_trial_without_a_checkpoint_is_not_paused_and_does_not_fail():
    play = Play(num_samples=1, started=1)
    play.order("pause", trial="test_00000")
    assert "is not paused, as it has no checkpoint to resume from: give one to tune.report(" in refusal(play)
    assert kinds(play.reported(0, {})) == ["Advance"]


def test_a_class_that_can_save_pauses_before_it_has_saved_anything():
    play = Play(num_samples=1, saves=True, started=1)
    play.order("pause", trial="test_00000")
    (stop,) = play.reported(0, {})
    assert stop == ev.Stop("test_00000", save=True)
    play.finished(0, CHECKPOINT)
    assert play.statuses() == ["PAUSED"]
    assert play.controller.is_held
    assert not play.controller.done


def test_a_class_that_fails_to_save_waits_to_begin_anew_and_has_not_failed():
    play = Play(num_samples=1, saves=True, started=1)
    play.order("pause", trial="test_00000")
    play.reported(0, {})
    play.finished(0, None, problem="Traceback: disk full")
    assert play.statuses() == ["PENDING"]
    assert "left no checkpoint to resume from: Traceback: disk full" in play.trial(0).reason
    assert play.controller.is_held
    assert kinds(play.order("resume", trial="test_00000")) == ["Start"]
    assert play.trial(0).failures == 0


def test_a_trial_that_waits_is_held_where_it_waits():
    def request_of(config):
        return PlacementGroupFactory([{"CPU": 2 if config["x"] == 1 else 1}])

    play = Play(
        num_samples=1, cpus=2, space={"x": tune.grid_search([0, 1, 2])}, request_of=request_of, started=1
    )
    assert play.statuses() == ["RUNNING", "PENDING"], (
        "there is no room for the second, and it keeps its place"
    )
    (start,) = play.order("pause", trial="test_00001")
    assert outcome(play) == "trial test_00001 does not start until it is resumed"
    assert start.trial.trial_id == "test_00002", "whom it holds up no more"
    play.started(2)
    play.reported(0, {}, done=True)
    assert kinds(play.reported(2, {}, done=True)) == ["Release"], "there is room, and it is held"
    assert play.statuses() == ["TERMINATED", "PENDING", "TERMINATED"] and play.controller.is_held
    (start,) = play.order("resume", trial="test_00001")
    assert (start.trial.trial_id, start.attempt) == ("test_00001", 0)


def test_who_is_unknown_or_has_ended_is_not_paused():
    play = Play(num_samples=2, cpus=2, started=1)
    play.order("pause", trial="test_00009")
    assert "no trial of the experiment has the id 'test_00009'" in refusal(play)
    play.failed(0)
    play.order("pause", trial="test_00000")
    assert "has ended already: ERROR" in refusal(play)


class Handed(FIFOScheduler):
    """Decides on trials that wait as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: list = []

    def verdicts(self):
        handed, self.handed = self.handed, []
        return handed


def test_a_paused_trial_takes_over_a_state_before_it_goes_on():
    scheduler = Handed()
    play = Play(num_samples=2, cpus=2, saves=True, scheduler=scheduler, started=2)
    play.order("pause", trial="test_00000")
    play.reported(0, {})
    play.finished(0, CHECKPOINT)
    play.reported(1, {}, CHECKPOINT)
    exchange = Decision(Verdict.PAUSE, {}, donors=(Donor("test_00001", {"x": 0.5}),))
    scheduler.handed = [("test_00000", exchange)]
    play.reported(1, {})
    play.order("resume", trial="test_00000")
    before = len(play.records)
    (start,) = play.adopted()
    assert [type(each) for each in play.records[before:]][:3] == [
        ev.CheckpointAdded,
        ev.Rearranged,
        ev.StatusChanged,
    ]
    assert (start.trial.config, start.attempt) == ({"x": 0.5}, 1)
    assert start.checkpoint.dirname == "checkpoint_000001", "it is the donor's"


def test_a_trial_that_waits_for_its_retry_does_not_run_while_it_is_held():
    play = Play(num_samples=1, cpus=1, failure=tune.FailureConfig(max_failures=1), started=1)
    play.reported(0, {}, CHECKPOINT)
    play.order("pause", trial="test_00000")
    assert kinds(play.failed(0)) == ["Release"]
    assert play.statuses() == ["PENDING"]
    assert play.controller.is_held
    assert kinds(play.order("resume", trial="test_00000")) == ["Start"]


def test_a_pause_that_is_lifted_before_it_has_come_leaves_nothing():
    play = Play(num_samples=1, started=1)
    play.reported(0, {}, CHECKPOINT)
    play.order("pause", trial="test_00000")
    play.order("resume", trial="test_00000")
    assert kinds(play.reported(0, {})) == ["Advance"]
    play.order("pause", trial="test_00000")
    assert kinds(play.reported(0, {})) == ["Stop"]
    play.order("resume", trial="test_00000")
    assert kinds(play.finished(0)) == ["Release", "Start"], "its process had been told to end"


def test_a_paused_experiment_starts_nothing_and_goes_on_where_it_was():
    play = Play(num_samples=4, cpus=2, started=2)
    play.reported(0, {}, CHECKPOINT)
    play.order("pause")
    assert "of 2 running trials" in outcome(play)
    play.order("pause", "bob")
    assert refusal(play) == "the experiment was paused already by ann"
    assert kinds(play.reported(1, {})) == ["Advance"], "it has nothing to go on from"
    play.reported(0, {})
    assert kinds(play.finished(0)) == ["Release"]
    play.order("resume", trial="test_00000")
    assert "waits for the experiment, which was paused by ann" in refusal(play)
    assert kinds(play.reported(1, {}, done=True)) == ["Release"]
    assert play.statuses() == ["PAUSED", "TERMINATED"]
    assert play.controller.is_held
    assert kinds(play.order("resume")) == ["Start", "Start"]
    assert play.statuses() == ["PENDING", "TERMINATED", "PENDING"]
    play.order("resume")
    assert "the experiment is not paused" in refusal(play)


def test_a_scheduler_that_pauses_decides_when_its_trial_goes_on():
    play = Play(
        num_samples=3,
        cpus=1,
        metric="m",
        scheduler=ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"),
        started=1,
    )
    play.reported(0, {"m": 1.0}, CHECKPOINT)
    play.finished(0)
    assert play.statuses()[0] == "PAUSED"
    play.order("resume", trial="test_00000")
    assert "and only its scheduler can resume it" in refusal(play)
    play.order("pause", trial="test_00000")
    for index in (1, 2):
        play.started(index)
        play.reported(index, {"m": 2.0}, CHECKPOINT)
        play.finished(index)
    assert play.controller.is_held, "it is the best, and would be promoted"
    assert kinds(play.order("resume", trial="test_00000")) == ["Start"]


def test_who_is_put_first_runs_before_the_others():
    play = Play(num_samples=4, cpus=1, failure=tune.FailureConfig(max_failures=2), saves=True)
    for index in (0, 1, 2):
        play.started(index)
        play.order("pause", trial=f"test_0000{index}")
        play.reported(index, {})
        play.finished(index, CHECKPOINT)
    play.order("prioritise", trial="test_00003")
    assert refusal(play) == "trial test_00003 is already running"
    play.order("prioritise")
    assert "needs the id of a trial" in refusal(play)
    play.order("prioritise", trial="test_00002")
    assert "once it is resumed" in outcome(play)
    for index in (0, 1, 2):
        play.order("resume", trial=f"test_0000{index}")
    play.order("prioritise", trial="test_00001")
    play.started(3)
    order = []
    for _ in range(3):
        (start,) = [
            each
            for each in play.reported(int((order or ["3"])[-1]), {}, done=True)
            if isinstance(each, ev.Start)
        ]
        order.append(start.trial.trial_id[-1])
        play.started(int(order[-1]))
    assert order == ["1", "2", "0"], "the last that was put first comes first"


def test_a_budget_ends_what_is_held():
    play = Play(num_samples=2, cpus=1, saves=True, time_budget_s=10.0, started=1)
    play.order("pause")
    play.reported(0, {})
    play.finished(0, CHECKPOINT)
    assert play.controller.deadline == 10.0
    play.tick(11)
    assert play.controller.done
    play.controller.close(play.time)
    assert play.statuses() == ["TERMINATED"]


def test_commands_to_an_experiment_that_ends_are_refused():
    play = Play(num_samples=2)
    play.interrupt()
    for verb in ("pause", "resume", "prioritise", "stop"):
        play.order(verb, trial="test_00000")
        assert refusal(play) == "the experiment is already ending: interrupted"


# --- laws ----------------------------------------------------------------------------------------


def steering_of(controller: Controller) -> Steering:
    return controller._state.steering


def order_any(data: st.DataObject, play: Play) -> None:
    trials = [trial.trial_id for trial in play.controller.trials]
    verb = data.draw(
        st.sampled_from(["pause", "pause", "resume", "resume", "prioritise", "stop", "add", "set"])
    )
    if verb == "add":
        play.order("add", config={"x": data.draw(st.sampled_from([0.25, 0.5, 2.0]))})
        return
    if verb == "set":
        play.order("set", num_samples=data.draw(st.integers(1, 9)))
        return
    trial = data.draw(st.sampled_from([*trials, "unknown", None]))
    if verb == "stop" and trial is None:
        return
    play.time += 0.001
    play.order(verb, **({} if trial is None else {"trial": trial}))


def go_on(data: st.DataObject, play: Play) -> None:
    """One of the processes has news."""
    if play.adoptions:
        play.adopted(problem=data.draw(st.sampled_from(["", "", "the disk is full"])))
        return
    trial_id = data.draw(st.sampled_from(sorted(play.calls)))
    index = int(trial_id.split("_")[1])
    name = f"checkpoint_{play.trial(index).next_checkpoint:06d}"
    match play.calls[trial_id]:
        case "setup":
            play.started(index)
        case "advance":
            act = data.draw(st.sampled_from(["report", "report", "save", "save", "done", "fail"]))
            metrics = {"m": data.draw(st.floats(0, 1))}
            if act == "fail":
                play.failed(index)
            else:
                play.reported(index, metrics, name if act == "save" else None, done=act == "done")
        case "save":
            play.saved(index, data.draw(st.sampled_from([None, name])))
        case "stop":
            play.finished(index, data.draw(st.sampled_from([None, name])))


SCHEDULERS = {
    "fifo": FIFOScheduler,
    "asha": lambda: ASHAScheduler(max_t=4, reduction_factor=2),
    "promotion": lambda: ASHAScheduler(max_t=4, reduction_factor=2, type="promotion"),
    "pbt": lambda: population(),
    "synchronous pbt": lambda: population(synch=True),
}
SEARCHERS = {
    "random": BasicVariantGenerator,
    "a model": lambda: TuneBOHB(),
    "limited": lambda: ConcurrencyLimiter(TuneBOHB(), max_concurrent=2),
    "repeated": lambda: Repeater(BasicVariantGenerator(), repeat=2),
}


def heard_by(scheduler: TrialScheduler) -> list[Any]:
    """Return what a scheduler will decide, as it comes: on reports, and on trials that wait."""
    heard: list[Any] = []

    def kept(ask: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*args: Any) -> Any:
            found = ask(*args)
            if found:
                heard.append((*args[:1], found))
            return found

        return answer

    for name in ("on_result", "verdicts"):
        setattr(scheduler, name, kept(getattr(scheduler, name)))
    return heard


def the_rest(play: Play) -> None:
    """Lift what holds, and let all trials come to their ends."""
    if steering_of(play.controller).paused_by:
        play.order("resume")
    for trial_id in list(steering_of(play.controller).holds):
        play.order("resume", trial=trial_id)
    for _ in range(400):
        if play.controller.done:
            break
        if play.adoptions:
            play.adopted()
        for trial_id in sorted(play.calls):
            index = int(trial_id.split("_")[1])
            name = f"checkpoint_{play.trial(index).next_checkpoint:06d}"
            match play.calls.get(trial_id):
                case "setup":
                    play.started(index)
                case "advance":
                    play.reported(index, {"m": 0.5}, name, done=play.iterations[trial_id] >= 6)
                case "save":
                    play.saved(index, name)
                case "stop":
                    play.finished(index, name)
    assert play.controller.done
    assert play.calls == {}
    assert len(play.controller.ledger) == 0


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_after_any_commands_a_restore_comes_to_the_same_state_and_all_ends(data):
    arguments = {
        "num_samples": data.draw(st.integers(2, 6)),
        "cpus": data.draw(st.integers(1, 3)),
        "metric": "m",
        "saves": data.draw(st.booleans()),
        "failure": tune.FailureConfig(max_failures=data.draw(st.integers(0, 1))),
    }
    scheduler = SCHEDULERS[data.draw(st.sampled_from(sorted(SCHEDULERS)))]
    searcher = SEARCHERS[data.draw(st.sampled_from(sorted(SEARCHERS)))]
    facts = {"created": 0.0, "tune_config": {"num_samples": arguments["num_samples"]}}
    with tempfile.TemporaryDirectory() as root:
        store = ExperimentStore.create(Path(root, "e"), facts)
        with contextlib.closing(store):
            first, again_first = scheduler(), scheduler()
            decided, decided_again = heard_by(first), heard_by(again_first)
            play = Play(**arguments, searcher=searcher(), scheduler=first, store=store)
            begun_with = play.searcher.total_samples
            for _ in range(data.draw(st.integers(0, 60))):
                if play.controller.done:
                    break
                assert len(play.calls) <= arguments["cpus"]
                if data.draw(st.integers(0, 2)) == 0 or not (play.calls or play.adoptions):
                    order_any(data, play)
                else:
                    go_on(data, play)
            live, statuses = steering_of(play.controller), play.statuses()
            failed = [trial.trial_id for trial in play.controller.trials if trial.failures]
            total, suggested = play.controller.total_samples, configs(play)
            waiting = [config for _, config in play.controller._state.source.added.waiting]
            told_total, decided = first.total_samples, list(decided)
            with store.reader() as reader:
                arguments["num_samples"] = reader.facts()["tune_config"]["num_samples"]
            again = Play(
                **arguments,
                searcher=searcher(),
                scheduler=again_first,
                store=store,
                first_total=begun_with,
            )
            assert again.controller.total_samples == again_first.total_samples == total == told_total
            assert decided_again[: len(decided)] == decided, "a replay decides as the live run did"
            assert configs(again)[: len(suggested)] == suggested
            waiting_again = [config for _, config in again.controller._state.source.added.waiting]
            assert [*configs(again)[len(suggested) :], *waiting_again][: len(waiting)] == waiting
            restored = steering_of(again.controller)
            assert (restored.paused_by, restored.holds) == (live.paused_by, live.holds)
            assert list(restored.first) == list(live.first)
            assert restored.pulled <= live.pulled
            for trial, status in zip(again.controller.trials, statuses, strict=False):
                if status in ("TERMINATED", "ERROR"):
                    assert trial.status == status
                if status == "PAUSED" and trial.trial_id in live.pulled:
                    assert trial.status is TrialStatus.PAUSED
                    assert trial.trial_id in restored.pulled
                if live.who_holds(trial.trial_id) and not trial.status.is_finished:
                    assert trial.trial_id not in again.calls, "it is held"
            assert [trial.trial_id for trial in again.controller.trials if trial.failures] == failed
            the_rest(again)
