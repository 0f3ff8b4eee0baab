"""Population based training: quantiles, who exploits whom, turns, the barrier, explore and settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import PopulationBasedTraining, Verdict
from trainkit.tune.schedulers.pbt.population import quantile_size, quantiles
from trainkit.tune.space.search_space import Space

CONTINUE, PAUSE = Verdict.CONTINUE, Verdict.PAUSE


def population(members: int = 4, seed: int = 0, mode: str = "max", total: int | None = None, **arguments):
    """A scheduler with members "0", "1", ..., each of which has lr = 0.1."""
    settings = {
        "time_attr": "training_iteration",
        "perturbation_interval": 10,
        "hyperparam_mutations": {"lr": tune.uniform(0, 1)},
    }
    scheduler = PopulationBasedTraining(metric="m", mode=mode, **(settings | arguments))
    scheduler.set_search_properties("m", mode, scheduler_generator(seed), total or members)
    for number in range(members):
        scheduler.on_trial_add(str(number), {"lr": 0.1, "member": number})
    return scheduler


def report(scheduler, trial_id, t, score):
    return scheduler.on_result(str(trial_id), {"training_iteration": t, "m": score})


# --- property 22 ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "fraction", "size"),
    [
        (3, 0.25, 1),
        (5, 0.25, 2),
        (10, 0.25, 3),
        (10, 0.2, 2),
        (2, 0.5, 1),
        (1, 0.5, 0),
        (10, 0.0, 0),
        (10, 0.3, 3),
        (1000, 0.001, 1),
    ],
)
def test_the_size_of_a_quantile(members, fraction, size):  # property 22
    assert quantile_size(members, fraction) == size


scores = st.lists(st.integers(-3, 3) | st.just(-math.inf), max_size=12)


@given(scores, st.floats(0, 0.5))
def test_donors_and_receivers_are_disjoint_and_nan_never_donates(values, fraction):  # property 22
    pairs = [(str(number), float(value)) for number, value in enumerate(values)]
    found = quantiles(pairs, fraction)
    known = dict(pairs)
    assert not found.lower & set(found.upper)
    assert all(known[member] > -math.inf for member in found.upper)
    lost = {member for member, value in pairs if value == -math.inf}
    if fraction and found.ranked:
        assert lost <= found.lower and (found.upper or not lost)
    else:
        assert not found.lower and not found.upper
    if found.upper:
        assert max(known[member] for member in found.lower) <= min(known[member] for member in found.upper)


def test_of_equal_scores_the_first_ranks_before():
    assert quantiles([("a", 1.0), ("b", 1.0), ("c", 1.0)], 0.5).ranked == ("a", "b", "c")


def test_nan_is_exploited_by_nobody_and_exploits():  # property 22
    scheduler = population()
    for number, score in enumerate([3, math.nan, 1, math.inf]):
        decision = report(scheduler, number, 10, score)
    assert decision.verdict is PAUSE and [donor.trial_id for donor in decision.donors] == ["0"]
    assert decision.reason["rank"] is None and decision.reason["score"] is None


# --- asynchronous ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_worst_exploits_one_of_the_best(mode):
    sign = 1 if mode == "max" else -1
    scheduler = population(8, mode=mode)
    for number in range(7, 0, -1):
        decision = report(scheduler, number, 10, sign * number)
    decision = report(scheduler, 0, 10, 0)
    assert decision.verdict is PAUSE
    assert {donor.trial_id for donor in decision.donors} == {"6", "7"}
    for donor in decision.donors:
        assert donor.config["member"] == int(donor.trial_id)
        assert 0 <= donor.config["lr"] <= 1 and donor.config["lr"] != 0.1
    reason = decision.reason
    assert reason["rule"] == "exploit" and (reason["rank"], reason["members"]) == (8, 8)
    assert reason["score"] == 0 and reason["donor_score"] == sign * int(reason["donor"])
    assert reason["donor"] == decision.donors[0].trial_id
    assert reason["changes"]["lr"]["old"] == 0.1
    assert reason["changes"]["lr"]["new"] == decision.donors[0].config["lr"]
    assert reason["other_donors"] == [donor.trial_id for donor in decision.donors[1:]]


def test_donors_come_in_random_order():
    first = set()
    for seed in range(20):
        scheduler = population(8, seed)
        for number in range(7, -1, -1):
            decision = report(scheduler, number, 10, number)
        first.add(decision.donors[0].trial_id)
    assert first == {"6", "7"}


def test_the_best_save_and_the_others_do_not():
    scheduler = population()
    saves = [report(scheduler, number, 10, score).save for number, score in enumerate([1, 2, 4, 3])]
    assert saves == [False, True, True, False]  # the first is alone then, so it is in no quantile


def test_a_jump_over_two_intervals_counts_once():
    scheduler = population()
    report(scheduler, 0, 10, 5)
    assert report(scheduler, 1, 25, 1).verdict is PAUSE
    assert not report(scheduler, 1, 29, 1).reason
    assert report(scheduler, 1, 30, 1).reason["rule"] == "exploit"


def test_a_long_report_does_not_drift_the_schedule():
    scheduler = population(2)
    assert [bool(report(scheduler, 0, t, 1).reason) for t in (9, 13, 19, 20, 29.5, 31)] == [
        False, True, False, True, False, True,
    ]  # fmt: skip


def test_intervals_that_have_no_exact_float_are_met():
    scheduler = population(2, perturbation_interval=0.1)
    assert all(report(scheduler, 0, k / 10, 1).reason for k in range(1, 50))


def test_nobody_is_judged_before_the_burn_in():
    scheduler = population(2, burn_in_period=25)
    judged = [t for t in range(1, 61) if report(scheduler, 0, t, 1).reason]
    assert judged == [30, 40, 50, 60]


def test_late_and_repeated_reports_change_nothing():  # property 10
    scheduler = population()
    report(scheduler, 0, 10, 5)
    assert report(scheduler, 1, 10, 1).verdict is PAUSE
    for t, score in ((10, 9), (9, 9), (3, 9)):
        assert report(scheduler, 1, t, score) == tune.schedulers.base.CONTINUE
    assert report(scheduler, 2, 10, 3).reason["members"] == 3
    scheduler.on_trial_complete("0")
    assert report(scheduler, 0, 20, 9) == tune.schedulers.base.CONTINUE


def test_one_that_has_ended_is_no_donor():
    scheduler = population(3)
    report(scheduler, 0, 10, 5)
    report(scheduler, 1, 10, 4)
    scheduler.on_trial_complete("0")
    decision = report(scheduler, 2, 10, 1)
    assert [donor.trial_id for donor in decision.donors] == ["1"]
    scheduler.on_trial_error("1")
    assert report(scheduler, 2, 20, 1).verdict is CONTINUE


def test_one_that_has_taken_over_a_state_is_no_donor_until_it_is_judged():
    scheduler = population(2, quantile_fraction=0.5)
    report(scheduler, 0, 10, 5)
    decision = report(scheduler, 1, 10, 4)
    scheduler.on_trial_change("1", decision.donors[0].config, "0")
    scheduler.on_trial_resume("1")
    assert report(scheduler, 0, 20, 3).verdict is CONTINUE
    report(scheduler, 1, 20, 4)
    assert report(scheduler, 0, 30, 3).donors[0].trial_id == "1"


def test_equal_scores_exploit_only_where_chance_breaks_ties():
    for tie, expected in (("arrival", 0), ("random", 1)):
        paused = 0
        for seed in range(20):
            scheduler = population(2, seed, quantile_fraction=0.5, tie=tie)
            verdicts = [report(scheduler, number, 10, 1).verdict for number in range(2)]
            paused += verdicts.count(PAUSE)
        assert (paused > 0) == expected


def test_the_time_that_comes_with_the_state_of_a_donor():
    """A clock that a checkpoint holds jumps by an exploit; that is no interval trained."""
    scheduler = population(3)
    report(scheduler, 0, 60, 5)
    decision = report(scheduler, 1, 40, 1)
    scheduler.on_trial_change("1", decision.donors[0].config, "0")
    assert not report(scheduler, 1, 61, 6).reason
    assert report(scheduler, 1, 70, 6).reason
    decision = report(scheduler, 0, 80, 1)
    scheduler.on_trial_change("0", decision.donors[0].config, "1")
    assert not report(scheduler, 0, 71, 2).reason
    assert report(scheduler, 0, 80, 2).reason


def test_the_time_that_counts_on_in_the_slot():
    scheduler = population(2, quantile_fraction=0.5)
    report(scheduler, 0, 60, 5)
    decision = report(scheduler, 1, 40, 1)
    scheduler.on_trial_change("1", decision.donors[0].config, "0")
    assert [t for t in range(41, 71) if report(scheduler, 1, t, 1).reason] == [50, 60, 70]


def test_the_configuration_that_really_was_is_the_one_explored():
    scheduler = population(2, quantile_fraction=0.5, resample_probability=0)
    scheduler.on_trial_change("0", {"lr": 0.5, "member": 7})
    report(scheduler, 0, 10, 5)
    (donor,) = report(scheduler, 1, 10, 1).donors
    assert donor.config["member"] == 7
    assert donor.config["lr"] in (pytest.approx(0.6), pytest.approx(0.4))


# --- turns: a population larger than what can run ---------------------------------------------------


def test_members_give_way_while_others_are_to_begin():
    scheduler = population(2, total=3)
    assert report(scheduler, 0, 10, 1).verdict is PAUSE
    assert scheduler.choose_trial_to_run([], ["0"], new=True) is None
    scheduler.on_trial_add("2", {"lr": 0.1})
    assert scheduler.choose_trial_to_run([], ["0"]) == "0"


def test_the_least_trained_goes_first_and_of_equal_ones_the_one_that_waits_longest():
    scheduler = population(4, total=5)
    for number, t in ((2, 20), (1, 10), (0, 10)):
        assert report(scheduler, number, t, 5 - number).verdict is PAUSE
    assert scheduler.choose_trial_to_run([], ["0", "1", "2"]) == "1"
    assert scheduler.choose_trial_to_run([], ["0", "2"]) == "0"
    assert scheduler.choose_trial_to_run(["3"], ["0", "1", "2"]) == "3"
    assert scheduler.choose_trial_to_run([], []) is None
    assert scheduler.on_trial_resume("1")["time"] == 10


def test_nobody_gives_way_to_one_that_is_further_on():
    scheduler = population(2, total=3)
    assert report(scheduler, 0, 30, 5).verdict is PAUSE
    scheduler.on_no_more_trials()
    assert report(scheduler, 1, 10, 6).verdict is CONTINUE
    assert report(scheduler, 1, 30, 6).verdict is PAUSE


def test_of_a_search_without_end_paused_members_go_first():
    scheduler = population(2, total=None)
    scheduler.set_search_properties("m", "max", scheduler_generator(0), None)
    report(scheduler, 0, 10, 5)
    assert report(scheduler, 1, 10, 1).verdict is PAUSE
    assert scheduler.choose_trial_to_run([], ["1"], new=True) == "1"


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
