"""Population based training: the barrier of synch=True, explore as the user has it, and settings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.schedulers.pbt.test_pbt import CONTINUE, PAUSE, population, report
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.schedulers import described_scheduler
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import decode_config, encode_config

# --- synchronous ----------------------------------------------------------------------------------


def test_all_wait_for_the_last_and_are_judged_together():
    scheduler = population(4, synch=True)
    for number in range(3):
        assert report(scheduler, number, 9, number).verdict is CONTINUE
        decision = report(scheduler, number, 10, number)
        assert decision.verdict is PAUSE and not decision.donors
        assert (decision.reason["arrived"], decision.reason["members"]) == (number + 1, 4)
        assert not scheduler.verdicts()
        assert scheduler.choose_trial_to_run([], [str(number)]) is None
    assert report(scheduler, 3, 10, 3).verdict is PAUSE
    ((trial_id, decision),) = scheduler.verdicts()
    assert trial_id == "0" and decision.donors[0].trial_id == "3"
    assert not scheduler.verdicts()
    assert scheduler.choose_trial_to_run([], ["0", "1", "2", "3"]) == "0"
    assert report(scheduler, 1, 19, 1).verdict is CONTINUE
    assert report(scheduler, 1, 20, 1).verdict is PAUSE


def test_failed_and_finished_members_do_not_hold_the_barrier():  # property 24
    scheduler = population(5, synch=True)
    scheduler.on_trial_error("0")
    for number, score in ((1, 1), (2, 2), (3, 3)):
        report(scheduler, number, 10, score)
    assert scheduler.choose_trial_to_run([], ["1", "2", "3"]) is None
    scheduler.on_trial_complete("4")
    assert [trial_id for trial_id, _ in scheduler.verdicts()] == ["1"]
    assert scheduler.choose_trial_to_run([], ["1", "2", "3"]) == "1"


def test_members_that_never_come_do_not_hold_the_barrier():
    scheduler = population(2, total=4, synch=True)
    for number in range(2):
        report(scheduler, number, 10, number)
    assert scheduler.choose_trial_to_run([], ["0", "1"], new=True) is None
    scheduler.on_no_more_trials()
    assert len(scheduler.verdicts()) == 1
    assert scheduler.choose_trial_to_run([], ["0", "1"]) == "0"


def test_one_that_fails_as_it_waits_comes_again():
    scheduler = population(2, synch=True)
    report(scheduler, 0, 10, 1)
    assert report(scheduler, 0, 8, 1).verdict is CONTINUE
    assert report(scheduler, 0, 10, 7).verdict is PAUSE
    report(scheduler, 1, 10, 2)
    assert [trial_id for trial_id, _ in scheduler.verdicts()] == ["0"]  # by the score that it had first


def test_a_jump_takes_the_next_barrier_along():
    scheduler = population(2, synch=True)
    report(scheduler, 0, 35, 1)
    report(scheduler, 1, 10, 2)
    assert report(scheduler, 1, 20, 2).verdict is CONTINUE
    assert report(scheduler, 1, 40, 2).verdict is PAUSE


@given(
    st.integers(1, 6),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12), st.integers(0, 9)), max_size=60),
)
def test_no_order_of_events_leaves_all_waiting(members, synch, events):  # property 16
    """Whatever comes when: as long as a member lives, one runs or may be chosen."""
    scheduler = population(members, synch=synch)
    paused, live, time = [], {str(number) for number in range(members)}, dict.fromkeys(map(str, range(6)), 0)
    for number, step, score in events:
        trial_id = str(number % members)
        if trial_id not in live or trial_id in paused:
            continue
        if step == 12:
            live.discard(trial_id)
            scheduler.on_trial_error(trial_id)
        else:
            time[trial_id] += step
            if report(scheduler, trial_id, time[trial_id], score).verdict is PAUSE:
                paused.append(trial_id)
        for changed, decision in scheduler.verdicts():
            assert changed in paused
            scheduler.on_trial_change(changed, decision.donors[0].config, decision.donors[0].trial_id)
        running = live - set(paused)
        if live and not running:
            chosen = scheduler.choose_trial_to_run([], sorted(paused))
            assert chosen is not None
            paused.remove(chosen)
            scheduler.on_trial_resume(chosen)


# --- both: explore as the user has it ---------------------------------------------------------------


def exploit_once(**arguments):
    scheduler = population(2, quantile_fraction=0.5, **arguments)
    report(scheduler, 0, 10, 5)
    return report(scheduler, 1, 10, 1)


def test_a_custom_function_has_the_last_word():
    def halve(config):
        return {**config, "lr": 0.25, "seen": True}

    decision = exploit_once(custom_explore_fn=halve)
    assert decision.donors[0].config == {"lr": 0.25, "member": 0, "seen": True}
    assert decision.reason["changes"]["lr"] == {"old": 0.1, "new": 0.25, "how": "custom"}
    alone = exploit_once(custom_explore_fn=halve, hyperparam_mutations=None)
    assert alone.donors[0].config["lr"] == 0.25


@pytest.mark.parametrize(
    ("custom", "words"),
    [
        (lambda config: None, "custom_explore_fn returned None"),
        (lambda config: {**config, "lr": 1.5}, r"lr=1.5, which is outside uniform\(0.0, 1.0\)"),
        (lambda config: {**config, "lr": "a"}, "outside"),
    ],
)
def test_a_custom_function_that_breaks_the_rules_is_named(custom, words):
    with pytest.raises(ConfigError, match=words):
        exploit_once(custom_explore_fn=custom)


# --- settings -------------------------------------------------------------------------------------


def test_a_report_without_what_is_required():
    for result, words in (
        ({"training_iteration": 1}, "metric='m'"),
        ({"training_iteration": 1, "m": "high"}, "metric='m'"),
        ({"m": 1}, "time_attr='training_iteration'"),
    ):
        with pytest.raises(ConfigError, match=words):
            population(1).on_result("0", result)
        assert population(1, require_attrs=False).on_result("0", result).verdict is CONTINUE


def test_it_is_made_again_from_its_arguments():
    scheduler = population(synch=True, tie="random", quantile_fraction=0.5)
    stored = encode_config({"class": "PopulationBasedTraining", "arguments": scheduler.arguments})
    again = described_scheduler(decode_config(stored))
    assert again.arguments == scheduler.arguments
    scheduler = population(custom_explore_fn=lambda config: config)
    stored = encode_config({"class": "PopulationBasedTraining", "arguments": scheduler.arguments})
    assert described_scheduler(decode_config(stored)) is None  # the user gives it again


# --- a space with conditions and rules ----------------------------------------------------------------

CONDITIONAL = {
    "optimizer": tune.choice(["sgd", "adam"]),
    "lr": 0.1,
    "momentum": tune.when({"optimizer": "sgd"}, tune.uniform(0.5, 0.99)),
    "nesterov": tune.when({"optimizer": "sgd"}, tune.sample_from(lambda spec: spec.config.momentum > 0.9)),
    "rules": tune.forbid({"optimizer": "adam", "size": 4}),
}


@pytest.mark.parametrize("start", [{"optimizer": "adam", "size": 2}, {"optimizer": "sgd", "size": 2}])
def test_what_depends_on_an_explored_value_goes_or_comes(start):
    mutations = {
        "optimizer": tune.choice(["sgd", "adam"]),
        "lr": tune.uniform(0, 1),
        "momentum": tune.uniform(0.5, 0.99),
        "size": [1, 2, 4],
    }
    if start["optimizer"] == "sgd":
        start = {**start, "momentum": 0.6, "nesterov": False}
    seen = set()
    for seed in range(60):
        scheduler = population(0, seed, total=2, quantile_fraction=0.5, hyperparam_mutations=mutations)
        scheduler.take_space(Space.of(scheduler.completed_space(CONDITIONAL)))
        for number in range(2):
            scheduler.on_trial_add(str(number), {**start, "lr": 0.1})
        report(scheduler, 0, 10, 5)
        config = dict(report(scheduler, 1, 10, 1).donors[0].config)
        seen.add((config["optimizer"], config["size"]))
        assert ("momentum" in config) == ("nesterov" in config) == (config["optimizer"] == "sgd")
        assert config["lr"] != 0.1 and type(config.get("nesterov", True)) is bool
    assert {name for name, _ in seen} == {"sgd", "adam"}
    assert ("adam", 4) not in seen and ("sgd", 4) in seen


def test_where_everything_else_is_forbidden_the_configuration_stays():
    rule = tune.forbid(lambda config: config["lr"] != 0.1)
    scheduler = population(0, total=2, quantile_fraction=0.5)
    scheduler.take_space(Space.of({"lr": 0.1, "rules": rule}))
    for number in range(2):
        scheduler.on_trial_add(str(number), {"lr": 0.1})
    report(scheduler, 0, 10, 5)
    decision = report(scheduler, 1, 10, 1)
    assert decision.donors[0].config == {"lr": 0.1}
    assert decision.reason["changes"]["lr"]["how"] == "keep"


def test_options_with_domains_of_their_own_are_no_mutation():
    options = [{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}]
    for mutation in (tune.choice(options), options):
        with pytest.raises(ConfigError, match="options with domains"):
            population(1, hyperparam_mutations={"optimizer": mutation})
