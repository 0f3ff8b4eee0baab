"""Commands that add configurations to a running experiment, or set how much is tried of what."""

from __future__ import annotations

import pytest

from tests.tune.controller.harness import Play, configs, kinds, outcome, population, refusal
from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.controller import steering
from trainkit.tune.schedulers import PopulationBasedTrainingReplay
from trainkit.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher, TuneBOHB

CHECKPOINT = "checkpoint_000000"


def test_an_added_configuration_is_tried_next_and_is_one_of_the_samples():
    play = Play(num_samples=3, cpus=1, started=1)
    play.order("add", config={"x": 0.25})
    assert outcome(play) == '{"x":0.25} is tried next'
    play.reported(0, {}, done=True)
    assert configs(play)[1] == {"x": 0.25}
    play.ends(1)
    play.started(2)
    play.order("add", config={"x": 0.75})
    assert play.controller.total_samples == 4, "all were suggested, so it is one more"
    assert play.recorded(ev.SettingsChanged)[-1].total_samples == 4
    play.reported(2, {}, done=True)
    play.ends(3)
    assert configs(play)[3] == {"x": 0.75}
    assert play.controller.done


def test_a_configuration_beside_a_grid_takes_no_place_of_it():
    play = Play(num_samples=1, cpus=1, space={"x": tune.grid_search([1, 2]), "y": 5}, started=1)
    play.order("add", config={"x": 2})
    for index in (0, 1):
        play.reported(index, {}, done=True)
        play.started(index + 1)
    assert configs(play) == [{"x": 1, "y": 5}, {"x": 2, "y": 5}, {"x": 2, "y": 5}]
    play.order("add", config={})
    assert "x is missing: give a value" in refusal(play)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"x": 7.0}, "x=7.0 is not in uniform"),
        ({"x": 10**400}, "is not in uniform"),
        ({"x": "0.5"}, "is not in uniform"),
        ({"z": 0.5}, "a configuration gives z=0.5, which is not in the space"),
        ([1], "give a dictionary"),
        (None, "give a dictionary"),
    ],
)
def test_what_is_none_of_the_space_is_not_added(config, words):
    play = Play(num_samples=2, cpus=1)
    play.order("add", config=config)
    assert words in refusal(play)
    assert play.controller.total_samples == 2


class Listed(Searcher):
    """Suggests what stands in a list, whatever `num_samples` is."""

    given = (0.5, 0.25)

    def __init__(self) -> None:
        super().__init__()
        self.left = list(self.given)

    @property
    def total_samples(self):
        return len(self.given)

    def suggest(self, trial_id):
        return {"x": self.left.pop(0), "y": 0.5} if self.left else self.FINISHED


class Endless(Listed):
    @property
    def total_samples(self):
        return None


def test_more_and_fewer_samples():
    play = Play(num_samples=2, cpus=1, started=1)
    play.reported(0, {}, done=True)
    play.started(1)
    play.order("set", num_samples=4)
    assert outcome(play) == "from now on num_samples=4"
    play.order("set", num_samples=1)
    assert "num_samples=1 makes 1 trials, but 2 are already suggested" in refusal(play)
    for index in (1, 2):
        play.reported(index, {}, done=True)
        play.started(index + 1)
    play.order("set", num_samples=-1)
    assert play.controller.total_samples is None
    play.order("set", num_samples=4)
    play.reported(3, {}, done=True)
    assert play.controller.done


@pytest.mark.parametrize(
    ("searcher", "words"), [(Listed, "makes 2 trials, as before"), (Endless, "changes nothing")]
)
def test_samples_that_a_searcher_does_not_count_are_refused(searcher, words):
    play = Play(num_samples=-1, cpus=1, searcher=searcher())
    play.order("set", num_samples=9)
    assert f"num_samples=9 {words}" in refusal(play)
    assert play.recorded(ev.SettingsChanged) == []
    play.order("add", config={"x": 0.75})
    for index in range(3):
        play.ends(index)
    assert [config["x"] for config in configs(play)] == [0.5, 0.75, 0.25]
    assert play.controller.done


def test_repetitions_are_counted_one_by_one_also_after_a_refusal():
    play = Play(num_samples=4, cpus=1, searcher=Repeater(BasicVariantGenerator(), repeat=2), started=1)
    for number, words in ((5, "makes 4 trials, as before"), (1, "makes 0 trials, but 1 are")):
        play.order("set", num_samples=number)
        assert words in refusal(play)
        assert play.controller.total_samples == 4
    play.order("set", num_samples=6)
    assert outcome(play) == "from now on num_samples=6"
    assert play.controller.total_samples == 6


def test_a_fault_of_a_command_is_its_refusal(monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError("one by none")

    monkeypatch.setitem(steering.VERBS, "prioritise", fail)
    play = Play(num_samples=2, cpus=1)
    play.order("prioritise", trial="test_00001")
    assert refusal(play) == "it failed: ZeroDivisionError: one by none"
    assert "Traceback" in caplog.text


def starts(actions: list[ev.Action]) -> list[str]:
    return [each.trial.trial_id for each in actions if isinstance(each, ev.Start)]


def test_a_population_of_fewer_waits_for_nobody_who_will_not_come():
    play = Play(num_samples=3, cpus=1, scheduler=population(synch=True), metric="m", saves=True)
    play.pauses(0, {"m": 1.0})
    play.pauses(1, {"m": 2.0})
    play.order("stop", trial="test_00002")
    assert play.statuses()[:2] == ["PAUSED", "PAUSED"], "they wait for the third to come to the barrier"
    play.order("set", num_samples=9)
    assert play.controller.total_samples == 9
    play.ends(2, {"m": 3.0})
    play.pauses(3, {"m": 4.0})
    assert play.statuses()[:2] == ["PAUSED", "PAUSED"], "they wait for those that were added"
    assert play.statuses()[4] == "PENDING"
    play.order("set", num_samples=5)
    actions = play.pauses(4, {"m": 5.0})
    assert len(starts(actions)) == 1 or play.adoptions, "all there are have come, and are judged together"
    exploits = [each for each in play.recorded(ev.DecisionMade) if each.decision.donors]
    assert exploits and {each.trial.trial_id for each in exploits} <= {"test_00003", "test_00004"}


def test_a_population_takes_in_who_is_added():
    play = Play(num_samples=2, cpus=1, scheduler=population(synch=True), metric="m", saves=True)
    play.pauses(0, {"m": 1.0})
    play.started(1)
    play.order("add", config={"x": 0.5})
    assert play.controller.total_samples == 3
    play.reported(1, {"m": 2.0})
    assert starts(play.finished(1, CHECKPOINT)) == ["test_00002"], "nobody is judged before it has come"
    assert not [each for each in play.recorded(ev.DecisionMade) if each.decision.donors]
    assert [each.detail for each in play.recorded(ev.Noted) if each.kind == ev.TOTAL] == ["3"]


def test_a_replay_keeps_to_its_one_trial():
    policy = {"initial": {"x": 0.5}, "changes": [[3, {"x": 0.25}]]}
    scheduler = PopulationBasedTrainingReplay(policy)
    play = Play(num_samples=1, cpus=1, scheduler=scheduler, space={"x": 0.5}, saves=True, started=1)
    orders = ("set", {"num_samples": 2}), ("set", {"num_samples": -1}), ("add", {"config": {}})
    for verb, arguments in orders:
        play.order(verb, **arguments)
        assert "a replay trains only one trial" in refusal(play)
        assert play.controller.total_samples == 1
    play.reported(0, {}, done=True)
    assert play.controller.done


def test_an_addition_to_a_searcher_with_a_space_of_its_own_is_of_that_space():
    own = TuneBOHB(space={"x": tune.uniform(0, 1), "y": tune.uniform(0, 1)}, metric="loss", mode="min")
    limited = ConcurrencyLimiter(own, max_concurrent=1)
    play = Play(num_samples=3, cpus=1, searcher=limited, space={"z": 5}, metric="loss")
    for config in ({"x": 0.5}, {"x": "abc", "y": 0.5}, {"x": 7.0, "y": 0.5}):
        play.order("add", config=config)
        assert "is not in the space of ConcurrencyLimiter: give every parameter" in refusal(play)
    play.order("add", config={"x": 0.5, "y": 0.25})
    for index in range(3):
        play.ends(index, {"loss": 1.0})
    assert configs(play)[1] == {"x": 0.5, "y": 0.25, "z": 5}
    assert play.controller.done


def test_an_addition_beside_repetitions_is_run_once_and_breaks_no_unit():
    searcher = Repeater(BasicVariantGenerator(), repeat=2)
    play = Play(num_samples=4, cpus=1, searcher=searcher, metric="loss")
    play.order("add", config={"x": 0.5})
    assert play.controller.total_samples == 5
    for index in range(5):
        play.ends(index, {"loss": 1.0})
    assert play.controller.done
    first, added, *others = configs(play)
    assert added == {"x": 0.5}
    assert [config["__trial_index__"] for config in (first, *others)] == [0, 1, 0, 1]


def test_more_and_fewer_trials_at_once():
    play = Play(num_samples=9, cpus=4, max_concurrent=1)
    assert len(play.calls) == 1
    play.order("set", max_concurrent_trials=3)
    assert len(play.calls) == 3
    play.order("set", max_concurrent_trials=1)
    for index in (0, 1):
        play.started(index)
        assert kinds(play.reported(index, {}, done=True)) == ["Release"]
    play.order("set", max_concurrent_trials=0)
    assert len(play.calls) == 4


def test_another_time_budget():
    play = Play(num_samples=1, time_budget_s=10.0, started=1)
    play.tick(5)
    play.order("set", time_budget_s=4)
    assert "already took 5" in refusal(play)
    play.order("set", time_budget_s=20)
    assert play.controller.deadline == 20.0
    play.order("set", time_budget_s=-1)
    play.tick(1000)
    assert play.controller.ending == ""


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"lr": 1},
        {"num_samples": 0},
        {"num_samples": 1.5},
        {"num_samples": True},
        {"num_samples": "9"},
        {"num_samples": 10**400},
        {"time_budget_s": 10**400},
        {"time_budget_s": -2},
        {"max_concurrent_trials": -1},
        {"num_samples": 9, "max_concurrent_trials": "x"},
    ],
)
def test_settings_that_make_no_sense_change_nothing(given):
    play = Play(num_samples=2, cpus=1)
    play.order("set", **given)
    assert refusal(play)
    assert play.controller.total_samples == 2
    assert play.recorded(ev.SettingsChanged) == []
